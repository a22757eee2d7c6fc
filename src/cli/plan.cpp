// redline plan: memory, step and batch size of a configuration on one card.
#include "cli/plan.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/shards.h"
#include "base/words.h"
#include "cli/commands.h"
#include "cli/config.h"
#include "cli/output.h"
#include "config/keys.h"
#include "config/load.h"
#include "config/ramps.h"
#include "io/json.h"
#include "model/fp8_linears.h"
#include "perf/batch_size.h"
#include "perf/fit.h"
#include "perf/fp8_choice.h"
#include "report/figures.h"
#include "report/live_line.h"
#include "report/run_record.h"
#include "train/checkpoint.h"
#include "train/ends.h"
#include "train/memory_advice.h"
#include "train/recipe.h"
#include "train/run_folder.h"

namespace redline::cli {

io::Json memory_json(const MemoryKinds& m, bool ranks) {
  io::Json json;
  for (const MemoryKind& kind : kMemoryKinds) {
    if (kind.ranks && !ranks) continue;
    std::string key(kind.name);
    std::ranges::replace(key, ' ', '_');
    json[key] = m.*kind.bytes;
  }
  json["total"] = m.total();
  return json;
}

std::string size(std::int64_t bytes) { return report::bytes(static_cast<double>(bytes)); }

std::string hours_in_words(double hours) {
  return hours < 100 ? fmt::format("{:.3g}", hours) : report::grouped(std::llround(hours));
}

std::string parameters_of(const perf::Plan& plan) {
  const auto count = [](std::int64_t n) { return report::count(static_cast<double>(n)); };
  std::string text = fmt::format("{} parameters", count(plan.parameters));
  if (plan.active_parameters != plan.parameters) text += fmt::format(", {} active", count(plan.active_parameters));
  return text;
}

std::string no_end(const config::Config& config) {
  if (config.train.epochs > 0) return "train.epochs are counted in the data, which a plan does not read";
  return "nothing says when it ends (train.max_steps, train.max_tokens, train.epochs, train.max_hours)";
}

std::string padding_in_words(const config::Config& config, const perf::Filled& f) {
  if (!f.known())
    return fmt::format("{}, and how much that pads is not known: {}; the figures above are of full rows",
                       f.cause(config), f.problem);
  return fmt::format("{}: {} of the token slots hold no document ({}, {} looked at)", f.cause(config),
                     report::percent(1 - f.own.utilisation), f.source, report::grouped(f.documents, "document"));
}

io::Json filling_json(const config::Config& config, const std::optional<perf::Filled>& f) {
  if (!f) return nullptr;
  if (!f->known()) return {{"packing", config.data.packing}, {"problem", f->problem}};
  return {{"packing", config.data.packing},
          {"source", f->source},
          {"documents", f->documents},
          {"padding", 1 - f->own.utilisation},
          {"packed", {{"set", f->set()}, {"padding", 1 - f->packed.utilisation}}}};
}

std::string_view token_name(const std::optional<perf::Filled>& filled) {
  return filled && filled->known() ? "real token" : "token";
}

void print_trace(const std::string& file, std::string_view of) {
  print(
      fmt::format("\ntrace     {} (a planned step of {}; open it in chrome://tracing or ui.perfetto.dev)\n", file, of));
}

perf::SearchOptions plan_progress() {
  constexpr double kPatience = 1;  // seconds
  perf::SearchOptions options;
  options.progress = [line = std::make_shared<report::LiveLine>(stderr), start = steady_seconds()](
                         const std::string&, std::size_t number, std::size_t) {
    if (steady_seconds() - start >= kPatience) line->show(fmt::format("planning, setting {}", number));
  };
  return options;
}

namespace {

constexpr std::size_t kRunnersUp = 4;
constexpr double kManyTimes = 10;  // the memory, above which percents say less than times

struct Planned {
  std::string name;  // of the configuration
  config::Config config;
  perf::Machine machine;
  model::Fp8Reasons fp8_reasons = {};  // of the products in the configuration's list
  perf::Plan plan;
  perf::Choice choice;
  std::optional<perf::Fit> fit;  // where the configuration does not fit as it is; the plan is then of its fastest way
  std::vector<std::string> gains = {};
  // Where nothing fits without the host's memory: the step as it is cut, or cut otherwise, which does with it. Where
  // that has too little for any cut: how much would do.
  std::optional<perf::MovedCut> moved = {};
  std::optional<perf::HostNeed> host_need = {};
  std::string changes = {};            // of types and rows that would fit where no cut does
  std::optional<perf::Filled> filled;  // where rows are not full
  std::optional<perf::Plan> packed;    // then, the same with packed rows
  std::optional<perf::Growth> growth;  // with --grow
  bool pads() const { return packed.has_value(); }
  std::string more_host() const { return host_need ? perf::in_words(*host_need, config, fit->room) : ""; }
  std::string gpus_instead() const {
    if (!choice.best.empty() || choice.enough_gpus == 0) return "";
    return fmt::format("; {} hold it with nothing moved (redline plan --gpus {})", counted(choice.enough_gpus, "GPU"),
                       choice.enough_gpus);
  }
  std::string why() const {
    if (moved) {
      const bool as_asked = moved->setting == perf::setting_of(config);
      return perf::in_words(moved->fit, perf::with_setting(config, moved->setting),
                            as_asked ? perf::kAsAsked : perf::kCutSo) +
             gpus_instead();
    }
    std::vector<std::string> others;
    if (host_need) others.push_back(more_host());
    if (!changes.empty()) others.push_back(changes);
    const std::string why = perf::why(choice, machine, others);
    if (!fit || fit->ways.empty() || choice.best.empty()) return why;
    const double times = choice.best[0].expected.step_seconds / plan.expected.step_seconds *
                         static_cast<double>(plan.tokens_per_step) /
                         static_cast<double>(choice.best[0].tokens_per_step);
    if (times <= 1) return why;
    return fmt::format("{}; with bytes moved, as `fit` says, the step as it is cut is {:.1f}% faster", why,
                       100 * (times - 1));
  }
  // With what memory.fit moves and computes again: what `plan` is of.
  config::Config as_it_runs() const {
    config::Config c = config;
    if (fit && !fit->ways.empty()) c.memory.placement = fit->ways[0].placement;
    return c;
  }
  // The step that is planned, which with train.batch_size=auto is not the one that is chosen.
  std::string step_in_words() const {
    return fmt::format("{}, {} x {}{}", name, counted(config.train.batch_size, "row"), config.train.accumulate,
                       plan.fits ? "" : ", which does not fit");
  }
  // 0: nothing says when to end, or only train.epochs, which are counted in the data.
  std::int64_t steps() const {
    const std::int64_t by_steps = train::total_steps(config.train);
    const double in_time = 3600 * config.train.max_hours / plan.expected.step_seconds;
    if (config.train.max_hours == 0 || (by_steps > 0 && full_steps(by_steps) <= in_time)) return by_steps;
    const double batches = in_time * static_cast<double>(config.train.accumulate);
    return std::max<std::int64_t>(1, config::nearest_steps(config.train, batches));
  }
  // Converts steps into full ones, since the first may be parts of one.
  double full_steps(std::int64_t steps) const {
    return static_cast<double>(config::micro_batches_before(config.train, steps)) /
           static_cast<double>(config.train.accumulate);
  }
  std::int64_t checkpoints_kept() const {
    if (steps() > 0) return train::checkpoints_kept(config.checkpoint, steps());
    return std::max<std::int64_t>(config.checkpoint.keep, 2);
  }
  double hours() const { return full_steps(steps()) * plan.expected.step_seconds / 3600; }
};

// The type of products.
std::string computes_in(const Planned& p) {
  if (p.config.precision.matmul == "fp8" && model::fp8_products(p.config).taken.empty()) return "bf16";
  const bool card = p.machine.kind == device::Kind::cuda;
  return card || p.config.precision.matmul == "fp8" ? p.config.precision.matmul : "fp32";
}

std::string snapshot_in_words(const Planned& p) {
  if (p.machine.kind == device::Kind::cpu) return "where that is free";
  if (!p.plan.snapshot_on_device) return "in the host's memory: the card has no room for it";
  if (p.plan.snapshot_on_host == 0) return "on the card";
  if (p.plan.snapshot_on_host == p.plan.snapshot) return "in the host's memory, where the state lies";
  return fmt::format("{} on the card and {} in the host's memory", size(p.plan.snapshot - p.plan.snapshot_on_host),
                     size(p.plan.snapshot_on_host));
}

void print_model(const Planned& p) {
  const perf::Machine& m = p.machine;
  print(fmt::format("plan      {} for {}: {} ({}), copies {:.0f} GB/s, {}; {}\n", p.name, m.name,
                    report::flop_rate(m.peak_flops), m.source, m.copy_rate * 1e-9, size(m.memory), computes_in(p)));
  if (p.config.precision.matmul == "fp8") {
    const bool lacks = m.kind == device::Kind::cuda && m.tflops.fp8 == 0;
    print(fmt::format("fp8       {}{}\n", model::in_words(model::fp8_products(p.config), p.fp8_reasons),
                      lacks ? ": the card has no fp8" : ""));
  }
  print(fmt::format("model     {}\n", parameters_of(p.plan)));
  const perf::FlopParts& f = p.plan.flops;
  const auto share = [&](double part) { return report::percent(part / f.total()); };
  print(fmt::format(
      "flops     {} a token: attention projections {}, scores {}, mlp {}, head {}; {} with masked pairs (palm)\n",
      report::flops(f.total()), share(f.projections), share(f.scores), share(f.mlp), share(f.head),
      report::flops(f.palm())));
  const config::Train& t = p.config.train;
  print(fmt::format("batch     {} x {}{} = {} a step; {} recomputed{}{}\n", counted(t.batch_size, "row"),
                    counted(t.seq_len, "token"),
                    t.accumulate > 1 ? fmt::format(" x {} micro-batches", t.accumulate) : "",
                    report::grouped(p.plan.tokens_per_step, "token"), train::what_is_recomputed(p.as_it_runs()),
                    t.automatic_batch_size ? "; train.batch_size is auto and takes the choice below" : "",
                    config::ramps_in_words(t)));
}

void print_memory(const Planned& p) {
  const perf::MemoryKinds& m = p.plan.memory;
  print("\nmemory\n");
  const auto line = [](std::string_view kind, std::int64_t bytes, std::string_view about) {
    print(fmt::format("  {:<15} {:>9}{}{}\n", kind, size(bytes), about.empty() ? "" : "  ", about));
  };
  const std::map<std::string_view, std::string> about = {{"moments", p.config.optim.moments},
                                                         {"averages", "of the weights, train.average"},
                                                         {"activations", fmt::format("most at {}", p.plan.peak_node)},
                                                         {"inputs", "batch, results, tables"},
                                                         {"context", "the driver's, and the libraries' kernels"}};
  for (const auto& [kind, bytes, ranks] : kMemoryKinds)
    if (m.*bytes > 0 || (!ranks && kind != "averages" && kind != "context"))
      line(kind, m.*bytes, about.contains(kind) ? about.at(kind) : "");
  const std::int64_t most = p.machine.memory;
  std::string fits = fmt::format("of {}: it fits", size(most));
  if (m.total() > most) fits = fmt::format("of {}: it does not fit", size(most));
  if (const std::int64_t limit = config::bytes_of_amount(p.config.memory.limit); m.arena > limit)
    fits = fmt::format("{} of it values, and memory.limit is {}: it does not fit", size(m.arena), size(limit));
  line("total", m.total(), fits);
  if (m.host_arena > 0) line("host's memory", m.host_arena, "beside the device's: values that lie there");
  if (p.fit) {
    print(fmt::format("\nfit       {}{}\n", perf::in_words(*p.fit, p.config),
                      p.host_need ? "; " + p.more_host() : std::string()));
    for (const std::string& gain : p.gains) print(fmt::format("          {}\n", gain));
  }
  const std::int64_t kept = p.checkpoints_kept();
  print(fmt::format("\ndisk      {} a checkpoint, {} for the {} (checkpoint.keep = {}, checkpoint.keep_every = {})\n",
                    size(p.plan.checkpoint), size(kept * p.plan.checkpoint),
                    kept == 1 ? "one that is kept" : fmt::format("{} that are kept", kept), p.config.checkpoint.keep,
                    p.config.checkpoint.keep_every));
  print(fmt::format("saving    {} more for a copy of the state while a checkpoint is written, {}\n",
                    size(p.plan.snapshot), snapshot_in_words(p)));
  print("\nlargest activations there\n");
  for (const perf::NamedBytes& v : p.plan.largest)
    print(fmt::format("  {:>3} x {:<32} {:>9}\n", v.count, v.name, size(v.bytes)));
}

void print_filling(const Planned& p) {
  if (!p.filled) return;
  print(report::paragraph("padding   ", padding_in_words(p.config, *p.filled)));
  if (!p.pads()) return;
  const perf::Expected &now = p.plan.expected, &then = p.packed->expected;
  print(report::paragraph(
      "packing   ", fmt::format("{} fills {}: {}, mfu {}, {:.2f} times the real tokens a second", p.filled->set(),
                                report::percent(p.filled->packed.utilisation), report::token_rate(then.tokens_per_s),
                                report::percent(then.mfu), then.tokens_per_s / now.tokens_per_s)));
}

void print_expected(const Planned& p) {
  const perf::Expected& e = p.plan.expected;
  print(
      fmt::format("\nexpected  step {}, {}{}, mfu {}, palm {} ({}; each node at the rate its kind was measured "
                  "to reach)\n",
                  report::duration(e.step_seconds), p.pads() ? "real " : "", report::token_rate(e.tokens_per_s),
                  report::percent(e.mfu), report::percent(e.mfu_palm), p.pads() ? "padded rows" : "full rows"));
  if (p.steps() == 0) return print(fmt::format("          the time of the run is not known: {}\n", no_end(p.config)));
  print(fmt::format("          {} for {}, {}\n", report::duration(3600 * p.hours()), report::grouped(p.steps(), "step"),
                    report::count(p.full_steps(p.steps()) * static_cast<double>(p.plan.tokens_per_step) *
                                      perf::filling_of(p.filled).utilisation,
                                  token_name(p.filled))));
}

// The cut of the step that fits with bytes moved.
std::vector<std::string> moved_keys(const Planned& p) {
  return {fmt::format("train.batch_size={}", p.moved->setting.batch_size),
          fmt::format("train.accumulate={}", p.moved->setting.accumulate)};
}

void print_choice(const Planned& p) {
  const perf::Choice& c = p.choice;
  if (p.moved) {
    const bool as_asked = !p.fit->ways.empty();
    print(fmt::format("\nchoice    {}, with bytes moved{}\n", fmt::join(moved_keys(p), " "),
                      as_asked ? " as `fit` says" + p.gpus_instead() : ""));
    if (!as_asked) print(report::paragraph("          ", p.why()));
    print(fmt::format("          step {}, {}{}\n", report::duration(p.moved->fit.seconds()), p.pads() ? "real " : "",
                      report::token_rate(perf::filling_of(p.filled).utilisation *
                                         static_cast<double>(p.plan.tokens_per_step) / p.moved->fit.seconds())));
    return;
  }
  if (c.best.empty()) {
    print(fmt::format("\nchoice    none: {}\n", p.why()));
    return;
  }
  print(fmt::format("\nchoice    {}{}", fmt::join(perf::keys_to_set(c, c.best[0].setting), " "),
                    p.fit && !p.fit->ways.empty() ? ", with nothing in the host's memory" : ""));
  print(fmt::format("\n          {}\n\n", p.why()));
  print(fmt::format("{:<24} {:>9} {:>13} {:>7} {:>10}\n", "rows x micro-batches", "step", "tokens/s", "mfu", "memory"));
  for (std::size_t i = 0; i < std::min(c.best.size(), 1 + kRunnersUp); ++i) {
    const perf::Plan& b = c.best[i];
    print(fmt::format(
        "{:<24} {:>9} {:>13} {:>7} {:>10}\n",
        fmt::format("{} x {}, recompute {}", b.setting.batch_size, b.setting.accumulate, b.setting.recompute),
        report::duration(b.expected.step_seconds), report::token_rate(b.expected.tokens_per_s),
        report::percent(b.expected.mfu), size(b.memory.total())));
  }
}

// The rows of --grow, and what to set for those that fill the card.
void print_growth(const Planned& p) {
  if (!p.growth) return;
  const auto share = [&](const perf::Plan& plan) {
    return static_cast<double>(plan.memory.total()) / static_cast<double>(p.machine.memory);
  };
  const auto own = static_cast<double>(p.plan.setting.batch_size);
  print(fmt::format("\n{:<24} {:>9} {:>13} {:>7} {:>10} {:>10} {:>9}\n", "grow: rows", "step", "tokens/s", "mfu",
                    "memory", "of it", "optim.lr"));
  const auto line = [&](const perf::Plan& plan, std::string_view about) {
    const perf::Expected& e = plan.expected;
    const auto rows = static_cast<double>(plan.setting.batch_size);
    print(fmt::format(
        "{:<24} {:>9} {:>13} {:>7} {:>10} {:>10} {:>9}{}\n",
        fmt::format("{} x {}, {:.3g} times", plan.setting.batch_size, plan.setting.accumulate, rows / own),
        report::duration(e.step_seconds), report::token_rate(e.tokens_per_s), report::percent(e.mfu),
        size(plan.memory.total()),
        share(plan) < kManyTimes ? report::percent(share(plan)) : fmt::format("{:.0f} times", share(plan)),
        train::short_rate(perf::with_setting(p.config, plan.setting).optim.lr), plan.fits ? about : "  does not fit"));
  };
  for (const perf::Plan& plan : p.growth->rows) line(plan, "");
  const auto& filling = p.growth->filling;
  if (!filling) {
    print(fmt::format("\ngrow      nothing: not even one row keeps within {:.0f}% of the memory\n",
                      100 * perf::kMostFilled));
    return;
  }
  line(*filling, "  fills it");
  perf::Choice as_it_is;
  as_it_is.config = p.config;
  print(fmt::format("\ngrow      {}\n", fmt::join(perf::keys_to_set(as_it_is, filling->setting), " ")));
  const std::int64_t rows = filling->setting.batch_size, asked = p.plan.setting.batch_size;
  std::string about =
      fmt::format("{}takes {} of the memory ({:.0f} to {:.0f}% are meant",
                  rows < asked ? fmt::format("{} take more than is meant; this ", counted(asked, "row")) : "",
                  report::percent(share(*filling)), 100 * perf::kLeastFilled, 100 * perf::kMostFilled);
  if (share(*filling) < perf::kLeastFilled) about += "; one row more is too much, or more than a batch can have";
  about += ")";
  if (p.growth->rows[0].fits)
    about += fmt::format(", for {:.2f} times the tokens a second",
                         filling->expected.tokens_per_s / p.plan.expected.tokens_per_s);
  about += "; rates follow the root of the rows of a step";
  if (p.config.train.max_steps > 0 && rows != asked)
    about += fmt::format(", and train.max_steps stays: the run has {} tokens", rows > asked ? "more" : "fewer");
  print(report::paragraph("          ", about));
}

io::Json setting_json(const perf::Plan& p) {
  return {{"batch_size", p.setting.batch_size},
          {"accumulate", p.setting.accumulate},
          {"recompute", p.setting.recompute},
          {"step_ms", 1e3 * p.expected.step_seconds},
          {"tokens_per_s", p.expected.tokens_per_s},
          {"mfu", p.expected.mfu},
          {"memory", p.memory.total()}};
}

io::Json fit_json(const Planned& p) {
  io::Json ways = io::Json::array();
  for (const perf::FitWay& way : p.fit->ways)
    ways.push_back({{"moments_on_host", way.placement.moments},
                    {"moment_layers", way.placement.moment_layers},
                    {"masters_on_host", way.placement.masters},
                    {"averages_on_host", way.placement.averages},
                    {"copies_made", way.placement.copies},
                    {"gradients_on_host", way.placement.gradients},
                    {"weights_on_host", way.placement.weights},
                    {"residuals_on_host", way.placement.residuals},
                    {"recompute", way.placement.recompute.empty() ? p.config.train.recompute : way.placement.recompute},
                    {"recompute_layers", way.placement.recompute_layers},
                    {"arena_bytes", way.device},
                    {"host_arena_bytes", way.host},
                    {"step_ms", 1e3 * way.seconds}});
  return {{"asked_arena_bytes", p.fit->asked.device},
          {"asked_step_ms", 1e3 * p.fit->asked.seconds},
          {"ways", std::move(ways)},
          {"gains", p.gains},
          {"more_host", p.host_need ? io::Json{{"bytes", p.host_need->bytes}, {"words", p.more_host()}} : io::Json()}};
}

io::Json padding_json(const Planned& p) {
  io::Json json = filling_json(p.config, p.filled);
  if (!p.pads()) return json;
  io::Json& packed = json["packed"];
  packed["tokens_per_s"] = p.packed->expected.tokens_per_s;
  packed["mfu"] = p.packed->expected.mfu;
  packed["gain"] = p.packed->expected.tokens_per_s / p.plan.expected.tokens_per_s;
  return json;
}

io::Json growth_json(const Planned& p) {
  if (!p.growth) return nullptr;
  const auto row = [&](const perf::Plan& plan) {
    io::Json json = setting_json(plan);
    json["fits"] = plan.fits;
    json["of_memory"] = static_cast<double>(plan.memory.total()) / static_cast<double>(p.machine.memory);
    json["lr"] = perf::with_setting(p.config, plan.setting).optim.lr;
    return json;
  };
  io::Json rows = io::Json::array(), filling;
  for (const perf::Plan& plan : p.growth->rows) rows.push_back(row(plan));
  if (p.growth->filling) {
    perf::Choice as_it_is;
    as_it_is.config = p.config;
    filling = row(*p.growth->filling);
    filling["set"] = perf::keys_to_set(as_it_is, p.growth->filling->setting);
  }
  return {{"rows", std::move(rows)}, {"filling", std::move(filling)}};
}

io::Json to_json(const Planned& p) {
  const perf::Plan& plan = p.plan;
  io::Json largest = io::Json::array(), runners_up = io::Json::array(), choice;
  for (const perf::NamedBytes& v : plan.largest)
    largest.push_back({{"name", v.name}, {"count", v.count}, {"bytes", v.bytes}});
  for (std::size_t i = 0; i < std::min(p.choice.best.size(), 1 + kRunnersUp); ++i) {
    io::Json row = setting_json(p.choice.best[i]);
    if (i > 0) {
      runners_up.push_back(std::move(row));
    } else {
      choice = std::move(row);
      choice["lr"] = perf::with_setting(p.choice.config, p.choice.best[0].setting).optim.lr;
      choice["set"] = perf::keys_to_set(p.choice, p.choice.best[0].setting);
    }
  }
  return {{"config", p.name},
          {"card", p.machine.name},
          {"precision", computes_in(p)},
          {"fp8_products", model::fp8_products(p.config).taken},
          {"peak_flops", p.machine.peak_flops},
          {"peak_source", p.machine.source},
          {"copy_bytes_per_s", p.machine.copy_rate},
          {"memory_bytes", p.machine.memory},
          {"parameters", plan.parameters},
          {"active_parameters", plan.active_parameters},
          {"flops_per_token", plan.flops.total()},
          {"flops_per_token_palm", plan.flops.palm()},
          {"flops_per_token_by_part",
           {{"attention_projections", plan.flops.projections},
            {"scores", plan.flops.scores},
            {"mlp", plan.flops.mlp},
            {"head", plan.flops.head}}},
          {"batch_size", plan.setting.batch_size},
          {"accumulate", plan.setting.accumulate},
          {"seq_len", p.config.train.seq_len},
          {"recompute", plan.setting.recompute},
          {"tokens_per_step", plan.tokens_per_step},
          {"memory", memory_json(plan.memory, false)},
          {"arena_bytes", plan.memory.arena},
          {"host_arena_bytes", plan.memory.host_arena},
          {"checkpoint_bytes", plan.checkpoint},
          {"checkpoints_kept", p.checkpoints_kept()},
          {"snapshot_bytes", plan.snapshot},
          {"snapshot_on_device", plan.takes_device_to_save()},
          {"snapshot_host_bytes", plan.snapshot_on_host},
          {"fits", plan.fits && !p.fit},  // as asked
          {"fit", p.fit ? fit_json(p) : io::Json(nullptr)},
          {"moved_cut",
           p.moved ? io::Json{{"set", moved_keys(p)}, {"step_ms", 1e3 * p.moved->fit.seconds()}} : io::Json(nullptr)},
          {"largest_activations", std::move(largest)},
          {"expected",
           {{"step_ms", 1e3 * plan.expected.step_seconds},
            {"tokens_per_s", plan.expected.tokens_per_s},
            {"mfu", plan.expected.mfu},
            {"mfu_palm", plan.expected.mfu_palm},
            {"steps", p.steps() > 0 ? io::Json(p.steps()) : io::Json(nullptr)},
            {"hours", p.steps() > 0 ? io::Json(p.hours()) : io::Json(nullptr)}}},
          {"filling", padding_json(p)},
          {"growth", growth_json(p)},
          {"choice", std::move(choice)},
          {"runners_up", std::move(runners_up)},
          {"why", p.why()}};
}

perf::Machine machine_called(const std::string& card) {
  if (!card.empty() && card != "cpu") return perf::machine_of(perf::card_called(card));
  const auto device = device::open_device(card.empty() ? "auto" : "cpu");
  return perf::machine_of(*device);
}

// The card of the table that --card names, or that this machine has; empty: neither.
std::string card_id(const std::string& named, const perf::Machine& machine) {
  if (machine.kind == device::Kind::cpu) return "";
  const perf::Card* card = named.empty() ? perf::find_card(machine.name) : &perf::card_called(named);
  return card ? std::string(card->id) : "";
}

// The folder of a run or of a Hugging Face model among the words, or its config.json; empty: there is none.
std::string named_folder(const ConfigWords& given) {
  std::error_code ignored;
  for (const std::string& word : given.words)
    if (config::find_key(word.substr(0, word.find('='))) == nullptr &&
        std::ranges::find(config::embedded_configs(), word, &config::EmbeddedFile::name) ==
            config::embedded_configs().end() &&
        (std::filesystem::is_directory(word, ignored) ||
         (word.ends_with(".json") && std::filesystem::is_regular_file(word, ignored))))
      return word;
  return "";
}

// Such a word as what it stands for: a run's configuration, or model.init_from.
ConfigWords with_folder(ConfigWords given) {
  const std::string folder = named_folder(given);
  if (folder.empty()) return given;
  const auto word = std::ranges::find(given.words, folder);
  if (real_files().exists(Path(folder) / train::kRunConfig))
    *word = (Path(folder) / train::kRunConfig).string();
  else
    *word = "model.init_from=" + folder;
  return given;
}

}  // namespace

int run_plan(const Words& words) {
  Arguments arguments(
      "plan", "memory, FLOPs, expected step time and the best batch size, before anything runs",
      "[CONFIG | FOLDER | config.json] [key=value ...] [--card NAME | --cards] [--memory GIB] [--grow] [--gpus N "
      "[--network NAME]] [--trace FILE] [--json]",
      {"redline plan gqa-180m --card h200",
       "redline plan runs/a --card h200            of a run, or of a Hugging Face model's folder",
       "redline plan Qwen3-8B/config.json precision.matmul=fp8 --cards   which card do I need?",
       "redline plan my.toml train.seq_len=4096 --card a100-80",
       "redline plan --preset llama-1.36b --card b200 --memory 80 --json",
       "redline plan ping-95m --card a100-80 --grow   more rows, up to those that fill the card",
       "redline plan my.toml --card rtx-4090 --trace step.json   a picture of the step, with what moves beside it",
       "redline plan llama-1.36b --card h200 --gpus 64 --network ndr",
       "redline plan my.toml --card a100-80 --gpus 32 --gpus-per-node 4 --nics 2 --network hdr"});
  ConfigWords config;
  std::string card;
  double memory = 0;
  bool json = false, grow = false, all_cards = false;
  GpusWanted gpus;
  config.declare(arguments);
  arguments.text("--card", "NAME", card,
                 "the card to plan for, as `redline peaks` lists them, or cpu (default: what this machine has)");
  arguments.number("--memory", "GIB", memory, 0.001, 1e6, "plan with this much memory instead of the card's");
  arguments.flag("--cards", all_cards,
                 "which card do I need: how the step fits on every card of the table, its speed and its hours");
  arguments.flag("--grow", grow,
                 "show 1, 1.5, 2 and 3 times the rows, and those that fill the memory, with the rate for each");
  arguments.integer("--gpus", "N", gpus.gpus, 1, kCutGroups,
                    "plan for so many of the card instead: memory and speed of each parallel.mode, and how they scale");
  arguments.integer("--gpus-per-node", "N", gpus.per_node, 1, kCutGroups,
                    "of them in one node, which NVLink or PCIe connects (default: 8)");
  arguments.text("--network", "NAME", gpus.network,
                 "parallel.network, between nodes: ndr, hdr, xdr, roce, roce-200, ethernet, or nvlink for one node");
  arguments.integer("--nics", "N", gpus.nics, 1, kCutGroups, "network cards of a node (default: one for each GPU)");
  arguments.text("--trace", "FILE", gpus.trace,
                 "write the planned step, with --gpus that of the choice, as a Chrome trace: a row for computing, for "
                 "copies each way and for the network");
  arguments.json(json);
  arguments.exits(kDone, "done, also where nothing fits");
  arguments.exits(kStopped, "stopped by a signal: there is no plan");
  if (!arguments.parse(words)) return kDone;
  if (gpus.gpus == 0 && (gpus.per_node > 0 || gpus.nics > 0 || !gpus.network.empty()))
    fail_user("--gpus-per-node, --network and --nics are of a plan for several GPUs; add --gpus N");
  if (grow && gpus.gpus > 0) fail_user("--grow and --gpus cannot be combined: rows grow on one card");
  if (all_cards && (grow || gpus.gpus > 0 || !card.empty() || memory > 0 || !gpus.trace.empty()))
    fail_user(
        "--cards plans for one of each card of the table: leave --card, --memory, --grow, --gpus and --trace out");

  StopAtOnce stopping("stopped; there is no plan");
  Planned p;
  config::Sources sources = sources_of(with_folder(config));
  const std::string folder = named_folder(config);
  sources.of_run = !folder.empty() && real_files().exists(Path(folder) / train::kRunConfig);
  p.name = folder.empty() || folder.ends_with(".json") ? name_of(sources) : report::run_name(folder);
  p.config = load_to_measure(sources, false, gpus.gpus > 0 ? 0 : 1);  // plan_gpus() shares a step itself
  if (!gpus.trace.empty()) check_output_file("--trace", gpus.trace, kTraceFile);
  if (!all_cards) p.machine = machine_called(card);
  for (const train::Doubt& doubt : train::doubtful_settings(p.config, 0))
    if (doubt.hint) log::note("{}", doubt.sentence);
  p.filled = perf::filled(p.config);
  if (all_cards) {
    plan_cards(p.name, p.config, p.filled, json, stopping);
    return kDone;
  }
  if (memory > 0) {
    p.machine.memory = static_cast<std::int64_t>(memory * 0x1p30);
    if (p.machine.kind == device::Kind::cpu) p.machine.host_memory = p.machine.memory;  // which is the same one
  }
  perf::Fp8Choice fp8 = perf::expect_fp8(p.config, p.machine);
  p.config = std::move(fp8.config);
  p.fp8_reasons = std::move(fp8.reasons);
  if (gpus.gpus > 0) {
    plan_gpus(p.name, p.config, p.machine, card_id(card, p.machine), p.filled, gpus, json, stopping);
    return kDone;
  }
  perf::SearchOptions options = plan_progress();
  options.filling = perf::filling_of(p.filled);
  p.plan = perf::make_plan(p.config, p.machine, {}, options.filling);
  if (!p.plan.fits && perf::chooses(p.config)) {
    p.fit = perf::find_fit(p.config, p.machine, perf::room_on(p.config, p.machine), {}, options.filling);
    p.gains = perf::gains_of_types(*p.fit, p.config, p.machine, options.filling);
    p.plan = perf::make_plan(p.as_it_runs(), p.machine, {}, options.filling);
  }
  if (p.filled && p.filled->known())
    p.packed = perf::make_plan(p.filled->mended(p.as_it_runs()), p.machine, {}, p.filled->packed);
  p.choice = perf::choose_or_relax(p.config, p.machine, options);
  if (p.fit && !p.fit->ways.empty() && p.choice.best.empty())
    p.moved = perf::MovedCut{perf::setting_of(p.config), *p.fit};
  if (p.fit && p.fit->ways.empty() && (p.choice.best.empty() || p.choice.asked_for)) {
    p.moved = perf::cut_that_moves(p.config, p.machine, p.fit->room, {}, options.filling);
    if (!p.moved) p.host_need = perf::host_needed(p.config, p.machine, p.fit->room);
  }
  if (!p.moved && p.choice.best.empty())
    p.changes = perf::changes_that_fit(p.config, p.machine, perf::room_on(p.config, p.machine));
  if (grow) p.growth = perf::grow(p.config, p.machine, options);
  std::string trace;
  if (!gpus.trace.empty())
    trace = perf::chrome_trace({perf::as_possible(p.as_it_runs(), p.machine), p.machine, {}, options.filling},
                               fmt::format("{} on {}, planned", p.step_in_words(), p.machine.name));
  stopping.hold();
  if (!trace.empty()) real_files().replace(gpus.trace, trace);
  if (json) {
    print_json(to_json(p));
    return kDone;
  }
  print_model(p);
  print_memory(p);
  print_expected(p);
  print_filling(p);
  print_choice(p);
  print_growth(p);
  if (!trace.empty()) print_trace(gpus.trace, p.step_in_words());
  return kDone;
}

}  // namespace redline::cli
