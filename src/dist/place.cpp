// The variables of each launcher, and what they must say together.
#include "dist/place.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/shards.h"

namespace redline::dist {
namespace {

class Variables {
 public:
  explicit Variables(const Lookup& lookup) : lookup_(lookup) {}

  bool has(const std::string& name) const { return !text(name).empty(); }
  std::string text(const std::string& name) const { return lookup_(name).value_or(""); }
  std::string text_of_first(std::initializer_list<const char*> names) const {
    for (const char* name : names)
      if (has(name)) return text(name);
    return "";
  }

  int number(const std::string& name, int low, int high) const {
    const std::string given = text(name);
    int n = 0;
    const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), n);
    if (given.empty()) fail_user("the environment has no {}, which the launcher of a run on several ranks sets", name);
    if (error != std::errc() || end != given.data() + given.size() || n < low || n > high)
      fail_user("the environment has {}={}; it must be a whole number from {} to {}", name, given, low, high);
    return n;
  }

 private:
  const Lookup& lookup_;
};

constexpr int kMostRanks = static_cast<int>(kCutGroups);

// MASTER_ADDR and MASTER_PORT, which count under every launcher; where they are not set, what the launcher offers.
// Ranks of one machine need no network.
void set_meeting(Place& place, const Variables& env, std::string_view address, int port, int ports) {
  place.address = env.has("MASTER_ADDR") ? env.text("MASTER_ADDR") : std::string(address);
  place.listen = env.text("REDLINE_LISTEN");
  place.token = env.text("REDLINE_TOKEN");
  if (place.one_machine()) {
    place.address = "127.0.0.1";
    place.listen.clear();
  }
  place.port = port;
  place.ports = ports;
  if (env.has("MASTER_PORT")) {
    place.port = env.number("MASTER_PORT", 1, 65535);
    place.ports = 1;
  }
}

Place from_torchrun(const Variables& env) {
  Place p;
  p.launcher = "torchrun";
  p.ranks = env.number("WORLD_SIZE", 1, kMostRanks);
  p.rank = env.number("RANK", 0, p.ranks - 1);
  if (p.alone()) return p;
  p.local_ranks = env.number("LOCAL_WORLD_SIZE", 1, p.ranks);
  p.local_rank = env.number("LOCAL_RANK", 0, p.local_ranks - 1);
  if (!env.has("MASTER_ADDR"))
    fail_user("the environment has RANK and WORLD_SIZE and no MASTER_ADDR, rank 0's machine");
  const int port = env.number("MASTER_PORT", 1, 65535);
  set_meeting(p, env, "", port, 1);
  // Without TORCHELASTIC_RESTART_COUNT: each machine's agent counts the failures of its own workers.
  p.job = fmt::format("torchrun {} {}", env.text("TORCHELASTIC_RUN_ID"), port);
  // torchrun itself may hold the port that it names.
  if (env.text("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    p.port = port + kPortsTried < 65535 ? port + 1 : port - kPortsTried;
    p.ports = kPortsTried;
  }
  return p;
}

Place from_openmpi(const Variables& env) {
  Place p;
  p.launcher = "mpirun";
  p.ranks = env.number("OMPI_COMM_WORLD_SIZE", 1, kMostRanks);
  p.rank = env.number("OMPI_COMM_WORLD_RANK", 0, p.ranks - 1);
  if (p.alone()) return p;
  p.local_ranks = env.number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, p.ranks);
  p.local_rank = env.number("OMPI_COMM_WORLD_LOCAL_RANK", 0, p.local_ranks - 1);
  if (!p.one_machine() && !env.has("MASTER_ADDR"))
    fail_user(
        "mpirun started {} ranks on several machines and the environment has no MASTER_ADDR; give all of them rank 0's "
        "machine: mpirun -x MASTER_ADDR=HOST",
        p.ranks);
  p.job = "mpirun " + env.text_of_first({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
  set_meeting(p, env, "", job_port(p.job), kPortsTried);
  return p;
}

// "2(x3),1": tasks of each machine.
std::vector<int> tasks_per_node(const std::string& name, const std::string& given) {
  std::vector<int> tasks;
  const auto wrong = [&] { fail_user("the environment has {}={}, which is no list of tasks as 2(x3),1", name, given); };
  for (std::string_view rest = given; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view item = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    int n = 0, times = 1;
    const char* const end = item.data() + item.size();
    const auto [after, error] = std::from_chars(item.data(), end, n);
    if (error != std::errc() || n < 1) wrong();
    if (after != end) {
      if (end - after < 4 || std::string_view(after, 2) != "(x" || end[-1] != ')') wrong();
      const auto [close, bad] = std::from_chars(after + 2, end - 1, times);
      if (bad != std::errc() || close != end - 1 || times < 1 || times > kMostRanks) wrong();
    }
    tasks.insert(tasks.end(), static_cast<std::size_t>(times), n);
  }
  return tasks;
}

// "gpu[07-09,12],login": gpu07.
std::string first_node(std::string_view list) {
  std::string name;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      name += list[i];
      continue;
    }
    const std::size_t close = list.find(']', i);
    if (close == list.npos) return "";
    const std::string_view inside = list.substr(i + 1, close - i - 1);
    name += inside.substr(0, inside.find_first_of(",-"));
    i = close;
  }
  return name;
}

// The variables of a step (what srun starts) count before those of the job, which may have more tasks.
Place from_slurm(const Variables& env) {
  Place p;
  const char* const tasks = env.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  p.ranks = env.number(tasks, 1, kMostRanks);
  if (p.alone()) return Place{};
  p.launcher = "Slurm";
  p.rank = env.number("SLURM_PROCID", 0, p.ranks - 1);
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"}) {
    if (!env.has(name)) continue;
    const std::vector<int> on = tasks_per_node(name, env.text(name));
    const auto node = static_cast<std::size_t>(on.size() > 1 ? env.number("SLURM_NODEID", 0, kMostRanks) : 0);
    if (node >= on.size())
      fail_user("the environment has {}={} and SLURM_NODEID={}, which contradict each other", name, env.text(name),
                node);
    p.local_ranks = on[node];
    break;
  }
  if (p.local_ranks > p.ranks)
    fail_user("the environment has {} tasks in all ({}) and {} on one machine, which contradict each other", p.ranks,
              tasks, p.local_ranks);
  p.local_rank = env.number("SLURM_LOCALID", 0, p.ranks - 1);
  p.local_ranks = std::max(p.local_ranks, p.local_rank + 1);
  p.job = fmt::format("Slurm {}.{}", env.text("SLURM_JOB_ID"), env.text("SLURM_STEP_ID"));
  // srun may run on a machine that has no rank: its address is the last resort.
  std::string address = first_node(env.text_of_first({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}));
  if (address.empty()) address = env.text("SLURM_LAUNCH_NODE_IPADDR");
  set_meeting(p, env, address, job_port(p.job), kPortsTried);
  if (p.address.empty())
    fail_user("Slurm names no machine of rank 0 (SLURM_JOB_NODELIST); set MASTER_ADDR for all tasks");
  return p;
}

Place chosen(const Variables& env) {
  const bool torchrun = env.has("RANK"), openmpi = env.has("OMPI_COMM_WORLD_RANK");
  if (!torchrun && env.has("WORLD_SIZE") && !openmpi && env.text("WORLD_SIZE") != "1")
    fail_user(
        "the environment has WORLD_SIZE={} and no RANK; start the ranks with redline launch, torchrun, srun or "
        "mpirun, or unset WORLD_SIZE",
        env.text("WORLD_SIZE"));
  if (torchrun && openmpi) {  // whoever set both must mean the same
    const Place a = from_torchrun(env), b = from_openmpi(env);
    if (a.rank != b.rank || a.ranks != b.ranks || a.local_rank != b.local_rank)
      fail_user(
          "the environment has RANK={} of WORLD_SIZE={} and OMPI_COMM_WORLD_RANK={} of OMPI_COMM_WORLD_SIZE={}, which "
          "contradict each other; unset those of the launcher that did not start this run",
          a.rank, a.ranks, b.rank, b.ranks);
    return b;
  }
  if (torchrun) return from_torchrun(env);
  if (openmpi) return from_openmpi(env);
  // A batch script and a shell inside an allocation have the job's variables, too; only what srun starts is a step.
  if (env.has("SLURM_PROCID") && env.has("SLURM_STEP_ID")) return from_slurm(env);
  return {};
}

// Launchers count their restarts; redline launch says why as well. Words of the environment are for people alone.
std::string restart_of(const Variables& env) {
  if (env.has(kRestartVariable)) return env.text(kRestartVariable);
  const auto counted = [&](const char* variable, std::string_view launcher) {
    const std::string n = env.text(variable);
    return n.empty() || n == "0" ? "" : fmt::format("restart {} by {}", n, launcher);
  };
  if (std::string words = counted("TORCHELASTIC_RESTART_COUNT", "torchrun"); !words.empty()) return words;
  return counted("SLURM_RESTART_COUNT", "Slurm");
}

}  // namespace

bool is_of_launcher(std::string_view variable) {
  constexpr std::string_view kNames[] = {"RANK",           "WORLD_SIZE",    "LOCAL_RANK",     "LOCAL_WORLD_SIZE",
                                         "MASTER_ADDR",    "MASTER_PORT",   "REDLINE_LISTEN", "REDLINE_TOKEN",
                                         kRestartVariable, kAtFaultVariable};
  // What mpirun sets for its processes keeps another mpirun below them from starting any; its settings (OMPI_MCA_btl)
  // stay.
  constexpr std::string_view kBeginnings[] = {
      "TORCHELASTIC_", "OMPI_COMM_WORLD_", "OMPI_MCA_ess_", "OMPI_MCA_orte_", "PMIX_", "PMI_", "SLURM_"};
  return std::ranges::find(kNames, variable) != std::end(kNames) ||
         std::ranges::any_of(kBeginnings, [&](std::string_view begin) { return variable.starts_with(begin); });
}

// Below the ports that systems hand out themselves (32768 on); above what services are known by.
int job_port(std::string_view job) {
  constexpr int kFirstPort = 21000, kPorts = 10000;
  return kFirstPort + static_cast<int>(hash64(job) % kPorts);
}

Place place_of_process(const Lookup& environment, std::string host) {
  const Variables env(environment);
  Place place = chosen(env);
  if (place.alone()) place = Place{};
  place.restart = restart_of(env);
  place.host = std::move(host);
  return place;
}

Place place_of_process() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {'?'};
  return place_of_process(
      [](const std::string& variable) -> std::optional<std::string> {
        const char* value = std::getenv(variable.c_str());
        return value ? std::optional<std::string>(value) : std::nullopt;
      },
      host.data());
}

std::optional<std::string> visible_card(const Place& place, const std::optional<std::string>& visible) {
  if (place.alone()) return visible;
  if (!visible || visible->empty()) return std::to_string(place.local_rank);
  std::vector<std::string> cards;
  for (std::string_view rest = *visible; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    cards.emplace_back(rest.substr(0, comma));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  if (cards.size() == 1) return cards[0];
  if (static_cast<std::size_t>(place.local_rank) >= cards.size())
    fail_user("rank {} is number {} on {}, and CUDA_VISIBLE_DEVICES={} shows {} cards; start one rank a card",
              place.rank, place.local_rank + 1, place.host, *visible, cards.size());
  return cards[static_cast<std::size_t>(place.local_rank)];
}

void take_own_card(const Place& place) {
  constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
  const char* value = std::getenv(kVisible);
  const auto card = visible_card(place, value ? std::optional<std::string>(value) : std::nullopt);
  if (card && (!value || *card != value) && ::setenv(kVisible, card->c_str(), 1) != 0)
    fail_machine("{}={} could not be put into the environment", kVisible, *card);
}

}  // namespace redline::dist
