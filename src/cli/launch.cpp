// redline launch.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <optional>

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
#include "io/checkpoint_folder.h"
#include "io/json.h"
#include "perf/scale.h"
#include "train/run_folder.h"

namespace redline::cli {
namespace {

struct LaunchOptions {
  std::int64_t ranks = 0, restarts = 0, min_ranks = 0;  // min_ranks 0: not given
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

// A file in memory, which processes that we start can write to.
class Slate {
 public:
  Slate() : file_(::memfd_create("redline launch", 0)) {
    if (!file_.open()) fail_machine("memfd_create: {}", std::strerror(errno));
  }
  int number() const { return file_.number(); }
  std::string path() const { return fmt::format("/proc/self/fd/{}", number()); }
  std::string text() const {
    std::string all(1 << 16, '\0');
    const auto n = ::pread(number(), all.data(), all.size(), 0);
    if (n < 0) fail_machine("pread: {}", std::strerror(errno));
    all.resize(static_cast<std::size_t>(n));
    return all;
  }

 private:
  dist::Descriptor file_;
};

// Where a rank may run: its card as CUDA_VISIBLE_DEVICES has it, or a place on the CPU.
struct Seat {
  int number = 0;    // among those that the launch began with
  std::string card;  // empty: none
};

std::vector<Seat> seats_of(const LaunchOptions& options, bool cards) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<Seat> seats;
  for (int rank = 0; rank < options.ranks; ++rank) {
    Seat& seat = seats.emplace_back(Seat{rank, ""});
    if (!cards) continue;
    dist::Place place;
    place.ranks = static_cast<int>(options.ranks);
    place.local_rank = options.share_card ? 0 : rank;
    seat.card = dist::visible_card(place, visible ? std::optional<std::string>(visible) : std::nullopt).value_or("");
  }
  return seats;
}

std::string in_words(const Seat& seat) {
  return seat.card.empty() ? fmt::format("place {}", seat.number) : fmt::format("card {}", seat.card);
}

// A process a rank, with the variables that torchrun sets and a token of this launch alone. On one machine nothing
// needs a network: NCCL meets on the loopback, too. `why` is a restart's; ranks write to `at_fault` who brought about
// their end.
std::vector<ProcessToStart> ranks_of(const LaunchOptions& options, const std::vector<Seat>& seats, std::int64_t attempt,
                                     const std::string& why, const Slate& at_fault) {
  const std::string port = std::to_string(free_port()), token = dist::new_token();
  std::vector<ProcessToStart> all;
  for (std::size_t rank = 0; rank < seats.size(); ++rank) {
    ProcessToStart one;
    one.program = own_path();
    one.words = options.command;
    one.name = fmt::format("rank {}", rank);
    if (rank > 0) one.prefix = fmt::format("[rank {}] ", rank);
    const std::string number = std::to_string(rank), ranks = std::to_string(seats.size());
    one.environment = {{"RANK", number},
                       {"WORLD_SIZE", ranks},
                       {"LOCAL_RANK", number},
                       {"LOCAL_WORLD_SIZE", ranks},
                       {"MASTER_ADDR", "127.0.0.1"},
                       {"MASTER_PORT", port},
                       {dist::kTokenVariable, token},
                       {"TORCHELASTIC_RUN_ID", fmt::format("redline {}", ::getpid())},
                       {"TORCHELASTIC_RESTART_COUNT", std::to_string(attempt)},
                       {"TORCHELASTIC_USE_AGENT_STORE", ""},
                       {dist::kRestartVariable, why},
                       {dist::kAtFaultVariable, std::to_string(at_fault.number())}};
    if (!seats[rank].card.empty()) {
      one.environment.emplace_back("CUDA_VISIBLE_DEVICES", seats[rank].card);
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

// The seats whose cards CUDA does not show any more. A process of its own looks at each, all at once: one that has
// asked CUDA once hears the same for ever.
std::vector<Seat> lost_cards(const std::vector<Seat>& seats) {
  std::vector<Slate> said(seats.size());
  std::vector<ProcessToStart> looks;
  for (std::size_t i = 0; i < seats.size(); ++i) {
    if (seats[i].card.empty()) continue;
    ProcessToStart& look = looks.emplace_back();
    look.program = own_path();
    look.words = {"info", "--json"};
    look.environment = {{"CUDA_VISIBLE_DEVICES", seats[i].card}};
    look.name = "redline info";
    look.log = said[i].path();
  }
  if (run_processes(looks).asked_to)
    fail_machine("stopped by a signal between two starts of the ranks; --resume goes on from the newest checkpoint");
  std::vector<Seat> lost;
  for (std::size_t i = 0; i < seats.size(); ++i) {
    if (seats[i].card.empty()) continue;
    const io::Json info = io::Json::parse(said[i].text(), nullptr, false);
    if (!info.is_object() || !info.at("cuda").at("usable").get<bool>()) lost.push_back(seats[i]);
  }
  return lost;
}

// What decides how a run that failed goes on: who failed, and whether it has come further since the last time.
class Recovery {
 public:
  Recovery(const LaunchOptions& options, std::vector<Seat> seats)
      : options_(options), folder_(value_of(options.command, "--out")), seats_(std::move(seats)) {}

  const std::vector<Seat>& seats() const { return seats_; }

  // After a failure. Returns what the next start is told of it: the fault, and the seats that are left out from here on
  // where there are any.
  std::string take_stock(const ProcessesEnd& end, const Slate& at_fault) {
    const std::int64_t saved = newest_step();
    const std::optional<std::size_t> rank = rank_at_fault(end, at_fault.text());
    const std::string name = rank ? fmt::format("rank {}", *rank) : end.who;
    std::string fault = fmt::format("{} ended by {}", end.who, end.how);
    if (std::ranges::find(end.killed, name) != end.killed.end())
      fault = fmt::format("{} hung and was killed", name);
    else if (name != end.who)
      fault = fmt::format("{} failed", name);
    std::vector<Seat> out = lost_cards(seats_);
    if (rank && out.empty()) {
      const Seat& seat = seats_[*rank];
      if (last_fault_ == seat.number && last_saved_ == saved && options_.min_ranks > 0) out.push_back(seat);
      last_fault_ = seat.number;
    }
    last_saved_ = saved;
    return out.empty() ? fault : fault + "; " + leave_out(out);
  }

 private:
  std::int64_t newest_step() const {
    if (folder_.empty()) return -1;
    const Path checkpoints = train::checkpoints_of(folder_);
    if (!real_files().exists(checkpoints)) return -1;
    const auto found = io::list_checkpoints(real_files(), checkpoints);
    return found.empty() ? -1 : found.front().step;
  }

  // The first that the ranks named; else the one that a signal ended, or that did not end by itself.
  std::optional<std::size_t> rank_at_fault(const ProcessesEnd& end, const std::string& named) const {
    std::size_t rank = 0;
    if (std::from_chars(named.data(), named.data() + named.size(), rank).ec == std::errc() && rank < seats_.size())
      return rank;
    const std::string name = !end.killed.empty() ? end.killed[0] : end.how.starts_with("signal") ? end.who : "";
    for (std::size_t r = 0; r < seats_.size(); ++r)
      if (fmt::format("rank {}", r) == name) return r;
    return std::nullopt;
  }

  // Takes seats away, and as many more as it needs so that the rest share the micro-batches of a step alike.
  std::string leave_out(const std::vector<Seat>& out) {
    std::vector<Seat> left;
    for (const Seat& seat : seats_)
      if (std::ranges::find(out, seat.number, &Seat::number) == out.end()) left.push_back(seat);
    std::string words;
    for (const Seat& seat : out) words += fmt::format("{}{}", words.empty() ? "" : ", ", in_words(seat));
    words += out.size() == 1 ? " is left out" : " are left out";
    const std::int64_t most = static_cast<std::int64_t>(left.size());
    if (options_.min_ranks == 0)
      fail_machine("{}: {} of {} are left; give --min-ranks to go on with fewer", words, most,
                   counted(static_cast<std::int64_t>(seats_.size()), "rank"));
    std::optional<config::Config> run = train::config_of_run(real_files(), folder_);
    if (!run) fail_machine("{}, and {} holds no run that could go on with fewer ranks", words, folder_.string());
    perf::reopen_mode(*run);  // fewer ranks choose anew what "auto" chose
    const std::int64_t had = std::max<std::int64_t>(run->parallel.ranks, 1);
    const std::int64_t shared = std::gcd(had * run->train.accumulate, had * run->train.accumulate_from);
    const std::int64_t sequence = run->parallel.sequence, shards = std::max<std::int64_t>(run->parallel.shards, 1);
    std::int64_t groups = most / sequence;  // of ranks that share rows
    while (groups > 0 && (shared % groups != 0 || groups * sequence % shards != 0)) --groups;
    const std::int64_t ranks = groups * sequence;
    if (ranks < options_.min_ranks)
      fail_machine("{}: {} could go on, fewer than --min-ranks {}; a step has {}, which as many ranks must share alike",
                   words, counted(ranks, "rank"), options_.min_ranks, counted(shared, "micro-batch"));
    left.resize(static_cast<std::size_t>(ranks));
    words += fmt::format("; {} instead of {}", counted(ranks, "rank"), seats_.size());
    seats_ = std::move(left);
    last_fault_ = -1;
    return words;
  }

  const LaunchOptions& options_;
  Path folder_;
  std::vector<Seat> seats_;
  int last_fault_ = -1;           // a seat's number
  std::int64_t last_saved_ = -1;  // the newest checkpoint's step after the failure before
};

void check_command(const LaunchOptions& options) {
  if (options.command.empty())
    fail_user("redline launch needs the command of the ranks after --: redline launch -n 4 -- train my.toml");
  if (const std::string& name = options.command[0]; name != "train" && name != "eval" && name != "ladder")
    fail_user("redline launch starts train, eval or ladder on several ranks, not '{}'", name);
  if (options.ranks == 0) fail_user("redline launch needs a number of ranks: -n N");
  if (options.min_ranks > 0 && options.restarts == 0)
    fail_user("--min-ranks says how a run that fails goes on: it needs --restarts R");
  if (options.min_ranks > options.ranks)
    fail_user("--min-ranks {} is more than -n {}", options.min_ranks, options.ranks);
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
      "-n N [--restarts R [--min-ranks M]] [--share-card] -- train|eval ...",
      {"redline launch -n 8 -- train my.toml --out runs/a         8 cards",
       "redline launch -n 2 -- train --device cpu                  2 ranks on the CPU",
       "redline launch -n 8 --restarts 3 -- train my.toml --out runs/a",
       "redline launch -n 8 --restarts 9 --min-ranks 4 -- train my.toml --out runs/a",
       "redline launch -n 2 --share-card -- train --out runs/b     2 ranks on one card, to try them out"});
  LaunchOptions options;
  arguments.integer("-n", "N", options.ranks, 1, 1024, "how many ranks");
  arguments.integer("--restarts", "R", options.restarts, 0, 1000000,
                    "start again with --resume after a failure, up to R times; not after bad input or a signal");
  arguments.integer("--min-ranks", "M", options.min_ranks, 1, 1024,
                    "with --restarts: go on without a card that is gone, or whose rank failed twice with no checkpoint "
                    "between, while M ranks are left");
  arguments.flag("--share-card", options.share_card, "all ranks on one card; slow, for trying ranks out");
  arguments.exits(kDone, "all ranks are done");
  arguments.exits(kFailed, "a rank failed, or was killed");
  arguments.exits(kStopped, "stopped by a signal: as its command");
  const auto dashes = std::ranges::find(words, "--");
  if (dashes != words.end()) options.command.assign(dashes + 1, words.end());
  if (!arguments.parse(Words(words.begin(), dashes))) return kDone;
  check_command(options);

  Recovery recovery(options, seats_of(options, takes_cards(options)));
  std::string why;
  for (std::int64_t attempt = 0;; ++attempt) {
    const Slate at_fault;
    const ProcessesEnd end = run_processes(ranks_of(options, recovery.seats(), attempt, why, at_fault));
    if (end.status == kDone || end.status == kStopped || end.asked_to) return end.status;
    if (end.how.starts_with("signal")) log::note("{} was ended by {}", end.who, end.how);
    for (const std::string& name : end.killed) log::note("{} did not end by itself and was killed", name);
    if (end.status == kBadInput || attempt == options.restarts) return end.status;
    if (std::ranges::find(options.command, "--resume") == options.command.end())
      options.command.emplace_back("--resume");
    why = fmt::format("restart {} of {} after a failure ({})", attempt + 1, options.restarts,
                      recovery.take_stock(end, at_fault));
    log::note("{}: the run goes on from its newest checkpoint", why);
  }
}

}  // namespace redline::cli
