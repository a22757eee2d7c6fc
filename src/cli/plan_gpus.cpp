// The plan for many cards, as text and as JSON.
#include "cli/plan_gpus.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/words.h"
#include "cli/output.h"
#include "config/ramps.h"
#include "io/json.h"
#include "perf/scale.h"
#include "report/figures.h"
#include "train/ends.h"

namespace redline::cli {
namespace {

struct Planned {
  std::string name;  // of the configuration
  std::string network;
  perf::ScalePlan scale;
  double run_tokens = 0;  // of the whole run; 0: only train.epochs says when to end
};

std::string size(std::int64_t bytes) { return report::bytes(static_cast<double>(bytes)); }
std::string setting_words(const perf::Setting& s) {
  return fmt::format("{} x {}, {}", s.batch_size, s.accumulate, s.recompute);
}
double gpu_hours(const Planned& p, const perf::RankPlan& r) { return p.run_tokens / r.tokens_per_s / 3600 * r.ranks; }

// A step of all ranks is as many times a rank's; max_hours ends a run by the rate of the choice.
double tokens_of_run(const config::Config& config, const perf::RankPlan& choice) {
  config::Train t = perf::with_setting(config, choice.setting).train;
  t.batch_size *= choice.ranks;
  const double asked = static_cast<double>(config::micro_batches_before(t, train::total_steps(t))) /
                       static_cast<double>(t.accumulate) * choice.tokens_per_step;
  const double in_time = 3600 * t.max_hours * choice.tokens_per_s;
  if (t.max_hours == 0 || (asked > 0 && asked <= in_time)) return asked;
  return in_time;
}

// A row of the table of modes: its name, and what each mode has to say.
void print_row(const Planned& p, std::string_view name,
               const std::function<std::string(const perf::RankPlan&)>& value) {
  std::string line = fmt::format("  {:<16}", name);
  for (const perf::RankPlan& m : p.scale.modes) line += fmt::format(" {:>15}", value(m));
  print(line + "\n");
}
void print_modes(const Planned& p, std::string_view title) {
  std::string line = fmt::format("\n{:<18}", title);
  for (const perf::RankPlan& m : p.scale.modes) line += fmt::format(" {:>15}", name_of(m.mode));
  print(line + "\n");
}

void print_head(const Planned& p) {
  const perf::ScalePlan& s = p.scale;
  const perf::RankPlan& c = s.choice();
  const int nodes = s.fabric.nodes(c.ranks);
  print(fmt::format("plan      {} for {} x {}, {}, {} each\n", p.name, c.ranks, s.machine.name, counted(nodes, "node"),
                    size(s.machine.memory)));
  print(fmt::format("links     {}: bus bandwidth {:.0f} GB/s inside a node", s.fabric.name,
                    1e-9 * s.fabric.inside.bus_bandwidth));
  if (nodes > 1) print(fmt::format(", {:.0f} GB/s from one to the next", 1e-9 * s.fabric.between.bus_bandwidth));
  print(" (published by others, not seen by us)\n");
  print(fmt::format("model     {} parameters\n", report::count(static_cast<double>(s.plan.parameters))));
  print(fmt::format("step      {} of each GPU, {} of all\n", report::grouped(s.plan.tokens_per_step, "token"),
                    report::grouped(std::llround(c.tokens_per_step), "token")));
}

void print_memory(const Planned& p) {
  const auto bytes = [](std::int64_t perf::RankMemory::*kind) {
    return [kind](const perf::RankPlan& m) { return size(m.memory.*kind); };
  };
  print_modes(p, "memory of a GPU");
  print_row(p, "rows, recompute", [](const perf::RankPlan& m) { return setting_words(m.setting); });
  print_row(p, "masters", bytes(&perf::RankMemory::masters));
  print_row(p, "working copies", bytes(&perf::RankMemory::working_copies));
  print_row(p, "gradients", bytes(&perf::RankMemory::gradients));
  print_row(p, "moments", bytes(&perf::RankMemory::moments));
  print_row(p, "averages", bytes(&perf::RankMemory::averages));
  print_row(p, "gathered", bytes(&perf::RankMemory::gathered));
  print_row(p, "activations", bytes(&perf::RankMemory::activations));
  print_row(p, "communication", bytes(&perf::RankMemory::communication));
  print_row(p, "the rest", bytes(&perf::RankMemory::rest));
  print_row(p, "total", [](const perf::RankPlan& m) { return size(m.memory.total()); });
  print_row(p, "tuning, at first", [](const perf::RankPlan& m) { return size(m.tuning); });
  print_row(p, "", [](const perf::RankPlan& m) { return m.fits ? "fits" : "does not fit"; });
}

void print_step(const Planned& p) {
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
  print_row(p, "stragglers", [](const perf::RankPlan& m) { return report::duration(m.times.stragglers); });
  print_row(p, "step", [](const perf::RankPlan& m) { return report::duration(m.times.total()); });
  print_row(p, "tokens", [](const perf::RankPlan& m) { return report::token_rate(m.tokens_per_s); });
  print_row(p, "mfu", [](const perf::RankPlan& m) { return report::percent(m.mfu); });
  print_row(p, "of one GPU alone", [](const perf::RankPlan& m) { return report::percent(m.efficiency); });
}

void print_choice(const Planned& p) {
  const perf::RankPlan& c = p.scale.choice();
  print(fmt::format(
      "\nchoice    parallel.mode={} train.batch_size={} train.accumulate={} train.recompute={}\n          {}\n",
      name_of(c.mode), c.setting.batch_size, c.setting.accumulate, c.setting.recompute, perf::why(p.scale)));
  if (c.times.collectives.empty()) return;
  print(fmt::format("\n{:<40} {:>6} {:>10} {:>9} {:>11}\n", fmt::format("collectives of a step, {}", name_of(c.mode)),
                    "times", "bytes", "time", "not hidden"));
  for (const perf::CollectiveUse& u : c.times.collectives)
    print(fmt::format("  {:<38} {:>6} {:>10} {:>9} {:>11}\n", fmt::format("{} of {}", name_of(u.collective), u.of),
                      u.count, report::bytes(u.bytes), report::duration(u.seconds), report::duration(u.exposed)));
}

void print_scaling(const Planned& p) {
  const auto hours = [&](double h) {
    if (p.run_tokens == 0) return std::string("-");
    return h < 100 ? fmt::format("{:.3g}", h) : report::grouped(std::llround(h));
  };
  print(fmt::format("\n{:<10} {:>13} {:>7} {:>11} {:>11} {:>10} {:>11}\n", "GPUs", "tokens", "mfu", "of one GPU",
                    "memory", "hours", "GPU-hours"));
  for (const perf::RankPlan& r : p.scale.scaling)
    print(fmt::format("{:<10} {:>13} {:>7} {:>11} {:>11} {:>10} {:>11}{}\n", r.ranks,
                      report::token_rate(r.tokens_per_s), report::percent(r.mfu), report::percent(r.efficiency),
                      size(r.memory.total()), hours(gpu_hours(p, r) / r.ranks), hours(gpu_hours(p, r)),
                      r.fits ? "" : "  does not fit"));
  print(p.run_tokens > 0
            ? fmt::format("The same rows on every GPU; hours for the run's {}.\n", report::count(p.run_tokens, "token"))
            : "The same rows on every GPU; hours are not known: train.epochs are counted in the data.\n");
}

io::Json plan_json(const Planned& p, const perf::RankPlan& r) {
  const perf::RankMemory& m = r.memory;
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
          {"gpus", r.ranks},
          {"batch_size", r.setting.batch_size},
          {"accumulate", r.setting.accumulate},
          {"recompute", r.setting.recompute},
          {"memory",
           {{"masters", m.masters},
            {"working_copies", m.working_copies},
            {"gradients", m.gradients},
            {"moments", m.moments},
            {"averages", m.averages},
            {"gathered", m.gathered},
            {"activations", m.activations},
            {"communication", m.communication},
            {"rest", m.rest},
            {"total", m.total()}}},
          {"tuning_bytes", r.tuning},
          {"fits", r.fits},
          {"step_ms", 1e3 * r.times.total()},
          {"compute_ms", 1e3 * r.times.compute},
          {"exposed_ms", 1e3 * r.times.exposed},
          {"stragglers_ms", 1e3 * r.times.stragglers},
          {"tokens_per_s", r.tokens_per_s},
          {"mfu", r.mfu},
          {"efficiency", r.efficiency},
          {"hours", ends ? io::Json(gpu_hours(p, r) / r.ranks) : io::Json(nullptr)},
          {"gpu_hours", ends ? io::Json(gpu_hours(p, r)) : io::Json(nullptr)},
          {"collectives", std::move(collectives)}};
}

io::Json to_json(const Planned& p) {
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
          {"parameters", s.plan.parameters},
          {"tokens_per_step", s.choice().tokens_per_step},
          {"run_tokens", p.run_tokens > 0 ? io::Json(p.run_tokens) : io::Json(nullptr)},
          {"modes", std::move(modes)},
          {"choice", name_of(s.choice().mode)},
          {"why", perf::why(s)},
          {"scaling", std::move(scaling)}};
}

}  // namespace

void plan_gpus(const std::string& name, const config::Config& config, const perf::Machine& machine,
               const std::string& card, const GpusAsked& asked, bool json, StopAtOnce& stopping) {
  if (card.empty())
    fail_user(
        "--gpus plans for a card whose links are known, and {} is none of them; add --card NAME, as `redline peaks` "
        "lists them",
        machine.name);
  const std::int64_t per_node = asked.per_node > 0 ? asked.per_node : 8;
  Planned p;
  p.name = name;
  p.network = asked.network.empty() ? "ndr" : asked.network;
  const perf::Network& network = perf::network_called(p.network);
  if (network.id == perf::kNoNetwork && asked.gpus > per_node)
    fail_user(
        "--network {} connects one node, and {} GPUs are more than its {}; name what is between nodes (--network ndr), "
        "or give --gpus-per-node",
        p.network, asked.gpus, per_node);
  const perf::Fabric fabric = perf::fabric_of(perf::card_called(card), network, static_cast<int>(per_node),
                                              static_cast<int>(asked.nics > 0 ? asked.nics : per_node));
  p.scale = perf::plan_ranks(config, machine, fabric, static_cast<int>(asked.gpus), plan_progress());
  p.run_tokens = tokens_of_run(config, p.scale.choice());
  stopping.hold();
  if (json) return print_json(to_json(p));
  print_head(p);
  print_memory(p);
  print_step(p);
  print_choice(p);
  print_scaling(p);
}

}  // namespace redline::cli
