// redline launch.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/words.h"
#include "cli/arguments.h"
#include "cli/processes.h"
#include "device/device.h"
#include "dist/connection.h"
#include "dist/group.h"
#include "dist/place.h"
#include "dist/token.h"

namespace redline::cli {
namespace {

struct LaunchOptions {
  std::int64_t ranks = 0, restarts = 0;
  bool share_card = false;
  Words command;  // "train" and what follows
};

// The value of a flag among the words of the command: "--device cpu" or "--device=cpu".
std::string value_of(const Words& words, const std::string& flag) {
  std::string value;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == flag && i + 1 < words.size()) value = words[i + 1];
    if (words[i].starts_with(flag + "=")) value = words[i].substr(flag.size() + 1);
  }
  return value;
}

// Below the ports that systems hand out to whoever asks, so that no other program is given it before rank 0 listens
// there.
int free_port() {
  constexpr int kFirst = 21000, kPorts = 10000;
  const int begin =
      static_cast<int>((static_cast<unsigned>(::getpid()) * 7919u + static_cast<unsigned>(unix_seconds())) % kPorts);
  std::string problem;
  for (int i = 0; i < kPorts; ++i)
    if (const int port = kFirst + (begin + i) % kPorts; !dist::listen_at("127.0.0.1", port, problem).empty())
      return port;
  fail_machine("no free port from {} to {}: {}", kFirst, kFirst + kPorts - 1, problem);
}

// A process a rank, with the variables that torchrun sets and a token of this launch alone. On one machine nothing
// needs a network: NCCL meets on the loopback, too.
std::vector<ProcessToStart> ranks_of(const LaunchOptions& options, bool cards, std::int64_t attempt) {
  const std::string port = std::to_string(free_port()), token = dist::new_token();
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<ProcessToStart> all;
  for (int rank = 0; rank < options.ranks; ++rank) {
    ProcessToStart one;
    one.program = own_path();
    one.words = options.command;
    one.name = fmt::format("rank {}", rank);
    if (rank > 0) one.prefix = fmt::format("[rank {}] ", rank);
    const std::string number = std::to_string(rank), ranks = std::to_string(options.ranks);
    one.environment = {{"RANK", number},
                       {"WORLD_SIZE", ranks},
                       {"LOCAL_RANK", number},
                       {"LOCAL_WORLD_SIZE", ranks},
                       {"MASTER_ADDR", "127.0.0.1"},
                       {"MASTER_PORT", port},
                       {dist::kTokenVariable, token},
                       {"TORCHELASTIC_RUN_ID", fmt::format("redline {}", ::getpid())},
                       {"TORCHELASTIC_RESTART_COUNT", std::to_string(attempt)},
                       {"TORCHELASTIC_USE_AGENT_STORE", ""}};
    if (cards) {
      dist::Place place;
      place.ranks = static_cast<int>(options.ranks);
      place.local_rank = options.share_card ? 0 : rank;
      if (const auto card = dist::visible_card(place, visible ? std::optional<std::string>(visible) : std::nullopt))
        one.environment.emplace_back("CUDA_VISIBLE_DEVICES", *card);
      if (options.share_card || !std::getenv("NCCL_SOCKET_IFNAME"))
        one.environment.emplace_back("NCCL_SOCKET_IFNAME", "lo");
    }
    if (options.share_card)  // NCCL takes ranks for neighbours by their machine, and refuses two on one card
      one.environment.emplace_back("NCCL_HOSTID", fmt::format("h{}", rank));
    all.push_back(std::move(one));
  }
  return all;
}

bool takes_cards(const LaunchOptions& options) {
  const std::string device = value_of(options.command, "--device");
  if (device == "cpu") {
    if (options.share_card) fail_user("--share-card is for ranks on a card, and the command has --device cpu");
    return false;
  }
  const device::CudaStatus cuda = device::cuda_status();
  if (!cuda.problem.empty()) {
    if (device == "cuda") fail_user("--device cuda: {}; use --device cpu", cuda.problem);
    if (options.share_card) fail_user("--share-card: {}", cuda.problem);
    return false;
  }
  const auto cards = static_cast<std::int64_t>(cuda.cards.size());
  if (options.ranks > cards && !options.share_card)
    fail_user(
        "{} need as many cards, and this machine shows {}; give -n {}, or --share-card to try ranks out on one card",
        counted(options.ranks, "rank"), cards, cards);
  if (const dist::EngineStatus nccl = dist::nccl_status(); !nccl.problem.empty() && options.ranks > 1)
    fail_user("several ranks on cards need NCCL: {}", nccl.problem);
  return true;
}

void check_command(const LaunchOptions& options) {
  if (options.command.empty())
    fail_user("redline launch needs the command of the ranks after --: redline launch -n 4 -- train my.toml");
  if (const std::string& name = options.command[0]; name != "train" && name != "eval" && name != "ladder")
    fail_user("redline launch starts train, eval or ladder on several ranks, not '{}'", name);
  if (options.ranks == 0) fail_user("redline launch needs a number of ranks: -n N");
  if (options.restarts > 0 && options.command[0] != "train") fail_user("--restarts is for train");
  if (options.restarts > 0 && value_of(options.command, "--out").empty())
    fail_user("--restarts goes on from a run's checkpoints: it needs the run's folder, --out DIR");
  if (const dist::Place place = dist::place_of_process(); !place.alone())
    fail_user("redline launch was itself started as rank {} of {} by {}; leave launch out", place.rank, place.ranks,
              place.launcher);
}

}  // namespace

int run_launch(const Words& words) {
  Arguments arguments(
      "launch", "train, eval or ladder on several ranks of this machine: one a card, or several on its CPU",
      "-n N [--restarts R] [--share-card] -- train|eval ...",
      {"redline launch -n 8 -- train my.toml --out runs/a         8 cards",
       "redline launch -n 2 -- train --device cpu                  2 ranks on the CPU",
       "redline launch -n 8 --restarts 3 -- train my.toml --out runs/a",
       "redline launch -n 2 --share-card -- train --out runs/b     2 ranks on one card, to try them out"});
  LaunchOptions options;
  arguments.integer("-n", "N", options.ranks, 1, 1024, "how many ranks");
  arguments.integer("--restarts", "R", options.restarts, 0, 1000000,
                    "start again with --resume after a failure, up to R times; not after bad input or a signal");
  arguments.flag("--share-card", options.share_card, "all ranks on one card; slow, for trying ranks out");
  arguments.exits(kDone, "all ranks are done");
  arguments.exits(kFailed, "a rank failed, or was killed");
  arguments.exits(kStopped, "stopped by a signal: as its command");
  const auto dashes = std::ranges::find(words, "--");
  if (dashes != words.end()) options.command.assign(dashes + 1, words.end());
  if (!arguments.parse(Words(words.begin(), dashes))) return kDone;
  check_command(options);

  const bool cards = takes_cards(options);
  for (std::int64_t attempt = 0;; ++attempt) {
    const ProcessesEnd end = run_processes(ranks_of(options, cards, attempt));
    if (end.status == kDone || end.status == kStopped || end.asked_to) return end.status;
    if (end.how.starts_with("signal")) log::note("{} was ended by {}", end.who, end.how);
    if (end.status == kBadInput || attempt == options.restarts) return end.status;
    if (std::ranges::find(options.command, "--resume") == options.command.end())
      options.command.emplace_back("--resume");
    log::note("restart {} of {} after a failure ({}): the run goes on from its newest checkpoint", attempt + 1,
              options.restarts, end.how);
  }
}

}  // namespace redline::cli
