// redline plan --gpus N: the same configuration on many of one card, in every mode, and how it scales.
#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/files.h"
#include "base/words.h"
#include "cli/output.h"
#include "cli/plan.h"
#include "config/ramps.h"
#include "io/json.h"
#include "perf/batch_size.h"
#include "perf/scale.h"
#include "report/figures.h"
#include "train/ends.h"
#include "train/on_ranks.h"

namespace redline::cli {
namespace {

struct GpusPlan {
  std::string name;  // of the configuration
  std::string network;
  perf::ScalePlan scale;
  std::optional<perf::Filled> filled;
  double run_tokens = 0;  // of the whole run, real ones; 0: not known
};

std::string_view snapshot_place(const perf::Plan& plan) {
  if (!plan.takes_device_to_save()) return "host";
  return plan.snapshot_on_host == 0 ? "card" : "both";
}

// What memory.fit computes again stands in the words of the choice.
std::string setting_words(const GpusPlan& p, const perf::RankPlan& m) {
  const bool moved = !p.scale.moved.empty() && &m == &p.scale.choice();
  return fmt::format("{} x {}, {}", m.setting.batch_size, m.setting.accumulate,
                     moved ? "as below" : m.setting.recompute);
}
double gpu_hours(const GpusPlan& p, const perf::RankPlan& r) {
  return p.run_tokens / r.expected.tokens_per_s / 3600 * r.ranks;
}

// A step of all ranks is as many times a rank's.
double tokens_of_run(const config::Config& config, const perf::RankPlan& choice, const perf::Filling& filling) {
  config::Train t = perf::with_setting(config, choice.setting).train;
  t.batch_size *= choice.ranks / config.parallel.sequence;
  const double by_steps = static_cast<double>(config::micro_batches_before(t, train::total_steps(t))) /
                          static_cast<double>(t.accumulate) * choice.tokens_of_ranks() * filling.utilisation;
  const double in_time = 3600 * t.max_hours * choice.expected.tokens_per_s;
  if (t.max_hours == 0 || (by_steps > 0 && by_steps <= in_time)) return by_steps;
  return in_time;
}

// As `redline train` takes them; none where nothing fits.
std::vector<std::string> keys_to_set(const GpusPlan& p) {
  const perf::RankPlan& c = p.scale.choice();
  if (!c.fits) return {};
  std::vector<std::string> keys = {fmt::format("parallel.mode={}", name_of(c.mode))};
  if (c.shards > 0 || p.scale.config.origins.written("parallel.shards"))
    keys.push_back(fmt::format("parallel.shards={}", c.shards));
  perf::Choice choice;
  choice.config = p.scale.config;
  choice.relaxed = p.scale.relaxed;
  for (std::string& key : perf::keys_to_set(choice, c.setting)) keys.push_back(std::move(key));
  return keys;
}

// A row of the table of modes: its name, and what each mode has to say.
void print_row(const GpusPlan& p, std::string_view name,
               const std::function<std::string(const perf::RankPlan&)>& value) {
  std::string line = fmt::format("  {:<16}", name);
  for (const perf::RankPlan& m : p.scale.modes) line += fmt::format(" {:>15}", value(m));
  print(line + "\n");
}
void print_modes(const GpusPlan& p, std::string_view title) {
  std::string line = fmt::format("\n{:<18}", title);
  for (const perf::RankPlan& m : p.scale.modes) line += fmt::format(" {:>15}", m.name());
  print(line + "\n");
}

void print_head(const GpusPlan& p) {
  const perf::ScalePlan& s = p.scale;
  const perf::RankPlan& c = s.choice();
  const int nodes = s.fabric.nodes(c.ranks);
  print(fmt::format("plan      {} for {} x {}, {}, {} each\n", p.name, c.ranks, s.machine.name, counted(nodes, "node"),
                    size(s.machine.memory)));
  print(fmt::format("links     {}: bus bandwidth {:.0f} GB/s inside a node", s.fabric.name,
                    1e-9 * s.fabric.inside.bus_bandwidth));
  if (nodes > 1) print(fmt::format(", {:.0f} GB/s from one to the next", 1e-9 * s.fabric.between.bus_bandwidth));
  print(" (published by others, not seen by us)\n");
  print(fmt::format("model     {}\n", parameters_of(c)));
  print(fmt::format("step      {} of each GPU, {} of all\n", report::grouped(c.tokens_per_step, "token"),
                    report::grouped(std::llround(c.tokens_of_ranks()), "token")));
}

void print_memory(const GpusPlan& p) {
  print_modes(p, "memory of a GPU");
  print_row(p, "rows, recompute", [&](const perf::RankPlan& m) { return setting_words(p, m); });
  for (const MemoryKind& kind : kMemoryKinds)
    if (std::ranges::any_of(p.scale.modes, [&](const perf::RankPlan& m) { return m.memory.*kind.bytes > 0; }))
      print_row(p, kind.name, [&](const perf::RankPlan& m) { return size(m.memory.*kind.bytes); });
  print_row(p, "total", [](const perf::RankPlan& m) { return size(m.memory.total()); });
  print_row(p, "", [](const perf::RankPlan& m) { return m.fits ? "fits" : "does not fit"; });
  if (std::ranges::any_of(p.scale.modes, [](const perf::RankPlan& m) { return m.memory.host_arena > 0; }))
    print_row(p, "host's memory", [](const perf::RankPlan& m) { return size(m.memory.host_arena); });
  print_row(p, "copy to save",
            [](const perf::RankPlan& m) { return fmt::format("{}, {}", size(m.snapshot), snapshot_place(m)); });
}

void print_step(const GpusPlan& p) {
  const auto of_all = [](const perf::RankPlan& m, double perf::CollectiveUse::*what) {
    double sum = 0;
    for (const perf::CollectiveUse& u : m.times.collectives) sum += u.*what;
    return sum;
  };
  print_modes(p, "step");
  print_row(p, "computing", [](const perf::RankPlan& m) { return report::duration(m.times.compute); });
  print_row(p, "communicating",
            [&](const perf::RankPlan& m) { return report::duration(of_all(m, &perf::CollectiveUse::seconds)); });
  print_row(p, "  not hidden", [](const perf::RankPlan& m) { return report::duration(m.times.exposed); });
  if (std::ranges::any_of(p.scale.modes, [](const perf::RankPlan& m) { return m.times.copying > 0; }))
    print_row(p, "  copies, too", [](const perf::RankPlan& m) { return report::duration(m.times.copying); });
  print_row(p, "stragglers", [](const perf::RankPlan& m) { return report::duration(m.times.stragglers); });
  print_row(p, "step", [](const perf::RankPlan& m) { return report::duration(m.times.total()); });
  print_row(p, fmt::format("{}s", token_name(p.filled)),
            [](const perf::RankPlan& m) { return report::token_rate(m.expected.tokens_per_s); });
  print_row(p, "mfu", [](const perf::RankPlan& m) { return report::percent(m.expected.mfu); });
  print_row(p, "palm", [](const perf::RankPlan& m) { return report::percent(m.expected.mfu_palm); });
  print_row(p, "of one GPU alone", [](const perf::RankPlan& m) { return report::percent(m.efficiency); });
}

void print_choice(const GpusPlan& p) {
  const perf::RankPlan& c = p.scale.choice();
  if (!c.fits) return print(fmt::format("\nchoice    none: {}\n", perf::why(p.scale)));
  print(fmt::format("\nchoice    {}\n", fmt::join(keys_to_set(p), " ")));
  print(report::paragraph("          ", perf::why(p.scale)));
  if (c.times.collectives.empty()) return;
  print(fmt::format("\n{:<40} {:>6} {:>10} {:>9} {:>11}\n", fmt::format("collectives of a step, {}", c.name()), "times",
                    "bytes", "time", "not hidden"));
  for (const perf::CollectiveUse& u : c.times.collectives)
    print(fmt::format("  {:<38} {:>6} {:>10} {:>9} {:>11}\n", fmt::format("{} of {}", name_of(u.collective), u.of),
                      u.count, report::bytes(u.bytes), report::duration(u.seconds), report::duration(u.exposed)));
}

void print_scaling(const GpusPlan& p) {
  const auto hours = [&](double h) {
    if (p.run_tokens == 0) return std::string("-");
    return hours_in_words(h);
  };
  print(fmt::format("\n{:<10} {:>13} {:>7} {:>11} {:>11} {:>10} {:>11}\n", "GPUs", "tokens", "mfu", "of one GPU",
                    "memory", "hours", "GPU-hours"));
  for (const perf::RankPlan& r : p.scale.scaling)
    print(fmt::format("{:<10} {:>13} {:>7} {:>11} {:>11} {:>10} {:>11}{}\n", r.ranks,
                      report::token_rate(r.expected.tokens_per_s), report::percent(r.expected.mfu),
                      report::percent(r.efficiency), size(r.memory.total()), hours(gpu_hours(p, r) / r.ranks),
                      hours(gpu_hours(p, r)), r.fits ? "" : "  does not fit"));
  print(p.run_tokens > 0
            ? fmt::format("The same rows on every GPU; hours for the run's {}.\n",
                          report::count(p.run_tokens, token_name(p.filled)))
            : fmt::format("The same rows on every GPU; hours are not known: {}.\n", no_end(p.scale.config)));
}

io::Json plan_json(const GpusPlan& p, const perf::RankPlan& r) {
  io::Json collectives = io::Json::array();
  for (const perf::CollectiveUse& u : r.times.collectives)
    collectives.push_back({{"collective", name_of(u.collective)},
                           {"of", u.of},
                           {"count", u.count},
                           {"bytes", u.bytes},
                           {"ms", 1e3 * u.seconds},
                           {"exposed_ms", 1e3 * u.exposed}});
  const bool ends = p.run_tokens > 0;
  return {{"mode", name_of(r.mode)},
          {"shards", r.shards},
          {"gpus", r.ranks},
          {"batch_size", r.setting.batch_size},
          {"accumulate", r.setting.accumulate},
          {"recompute", r.setting.recompute},
          {"memory", memory_json(r.memory, true)},
          {"host_arena_bytes", r.memory.host_arena},
          {"snapshot_bytes", r.snapshot},
          {"snapshot_on_device", r.takes_device_to_save()},
          {"snapshot_host_bytes", r.snapshot_on_host},
          {"fits", r.fits},
          {"step_ms", 1e3 * r.times.total()},
          {"compute_ms", 1e3 * r.times.compute},
          {"exposed_ms", 1e3 * r.times.exposed},
          {"copying_ms", 1e3 * r.times.copying},
          {"stragglers_ms", 1e3 * r.times.stragglers},
          {"tokens_per_s", r.expected.tokens_per_s},
          {"mfu", r.expected.mfu},
          {"mfu_palm", r.expected.mfu_palm},
          {"efficiency", r.efficiency},
          {"hours", ends ? io::Json(gpu_hours(p, r) / r.ranks) : io::Json(nullptr)},
          {"gpu_hours", ends ? io::Json(gpu_hours(p, r)) : io::Json(nullptr)},
          {"collectives", std::move(collectives)}};
}

io::Json to_json(const GpusPlan& p) {
  const perf::ScalePlan& s = p.scale;
  io::Json modes = io::Json::array(), scaling = io::Json::array();
  for (const perf::RankPlan& m : s.modes) modes.push_back(plan_json(p, m));
  for (const perf::RankPlan& r : s.scaling) scaling.push_back(plan_json(p, r));
  return {{"config", p.name},
          {"card", s.machine.name},
          {"gpus", s.choice().ranks},
          {"gpus_per_node", s.fabric.ranks_per_node},
          {"network", p.network},
          {"bus_bytes_per_s_inside", s.fabric.inside.bus_bandwidth},
          {"bus_bytes_per_s_between", s.fabric.between.bus_bandwidth},
          {"peak_flops", s.machine.peak_flops},
          {"memory_bytes", s.machine.memory},
          {"parameters", s.choice().parameters},
          {"active_parameters", s.choice().active_parameters},
          {"tokens_per_step", s.choice().tokens_of_ranks()},
          {"run_tokens", p.run_tokens > 0 ? io::Json(p.run_tokens) : io::Json(nullptr)},
          {"filling", filling_json(s.config, p.filled)},
          {"modes", std::move(modes)},
          {"choice", s.choice().fits ? io::Json(name_of(s.choice().mode)) : io::Json(nullptr)},
          {"set", keys_to_set(p)},
          {"moved", s.moved.empty() ? io::Json(nullptr) : io::Json(s.moved)},
          {"why", perf::why(s)},
          {"scaling", std::move(scaling)}};
}

}  // namespace

void plan_gpus(const std::string& name, const config::Config& given, const perf::Machine& machine,
               const std::string& card, const std::optional<perf::Filled>& filled, const GpusWanted& wanted, bool json,
               StopAtOnce& stopping) {
  if (card.empty())
    fail_user(
        "--gpus plans for a card whose links are known, and {} is none of them; add --card NAME, as `redline peaks` "
        "lists them",
        machine.name);
  const std::int64_t per_node = wanted.per_node > 0 ? wanted.per_node : 8;
  GpusPlan p;
  p.name = name;
  config::Config config = given;
  perf::reopen_mode(config);  // what a run chose for its own ranks
  if (!wanted.network.empty()) config.parallel.network = wanted.network;
  const perf::Network& network = perf::network_between(config.parallel);
  p.network = network.id;
  if (network.id == perf::kNoNetwork && wanted.gpus > per_node)
    fail_user(
        "parallel.network = \"{}\" connects one node, and {} GPUs are more than its {}; name what is between nodes "
        "(--network ndr), or give --gpus-per-node",
        p.network, wanted.gpus, per_node);
  const perf::Fabric fabric = perf::fabric_of(perf::card_called(card), network, static_cast<int>(per_node),
                                              static_cast<int>(wanted.nics > 0 ? wanted.nics : per_node));
  train::require_for_ranks(config, static_cast<int>(wanted.gpus));  // what a run would refuse has no plan
  train::share_micro_batches(config, wanted.gpus);
  p.filled = filled;
  perf::SearchOptions options = plan_progress();
  options.filling = perf::filling_of(filled);
  p.scale = perf::plan_ranks_or_relax(config, machine, fabric, static_cast<int>(wanted.gpus), options);
  p.run_tokens = tokens_of_run(p.scale.config, p.scale.choice(), options.filling);
  std::string trace;
  if (const perf::RankPlan& c = p.scale.choice(); !wanted.trace.empty()) {
    config::Config chosen = perf::as_possible(perf::with_setting(p.scale.config, c.setting), machine);
    chosen.memory.placement = p.scale.placement;
    const perf::Spread spread{.mode = c.mode, .ranks = c.ranks, .fabric = fabric};
    trace = perf::chrome_trace({chosen, machine, spread, options.filling},
                               fmt::format("{}, {} on {} x {}, planned", name, c.name(), c.ranks, machine.name));
  }
  stopping.hold();
  if (!trace.empty()) real_files().replace(wanted.trace, trace);
  if (json) return print_json(to_json(p));
  print_head(p);
  print_memory(p);
  print_step(p);
  print_choice(p);
  print_scaling(p);
  if (filled) {
    std::string padding = padding_in_words(config, *filled);
    if (filled->known())
      padding += fmt::format("; {} fills {}", filled->set(), report::percent(filled->packed.utilisation));
    print("\n" + report::paragraph("padding   ", padding));
  }
  if (!trace.empty()) print_trace(wanted.trace, p.scale.choice().name());
}

}  // namespace redline::cli
