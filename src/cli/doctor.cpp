// redline doctor: reads a run's record or times a configuration, says what keeps it from being faster, and tries what
// would mend that.
#include "cli/doctor.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/words.h"
#include "cli/commands.h"
#include "cli/config.h"
#include "cli/measuring.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "io/json.h"
#include "perf/cards.h"
#include "perf/doctor.h"
#include "perf/fit.h"
#include "perf/fp8_choice.h"
#include "perf/peak.h"
#include "perf/plan.h"
#include "perf/profile.h"
#include "perf/search.h"
#include "report/figures.h"
#include "report/live_line.h"
#include "report/page.h"
#include "report/run_record.h"
#include "report/run_summary.h"
#include "train/run_folder.h"

namespace redline::cli {
namespace {

using perf::Finding;
using report::paragraph;
using train::Illness;

// Bytes that a copy moves for each FLOP of the peak, for machines without a datasheet: two cores of a Neoverse-V1 alone
// (117 GFLOP/s), and an H200.
constexpr double kCpuBytesPerFlop = 0.4, kCardBytesPerFlop = 4.30 / 989.5;

// The mean of the known values; 0 where there are none.
double mean(const std::vector<std::size_t>& rows, const std::vector<double>& values) {
  double sum = 0, n = 0;
  for (const std::size_t i : rows) {
    if (std::isnan(values[i])) continue;
    sum += values[i];
    n += 1;
  }
  return n > 0 ? sum / n : 0;
}

double known_or(double value, double other) { return std::isnan(value) ? other : value; }

std::int64_t count_known(const std::vector<double>& values) {
  return std::ranges::count_if(values, [](double v) { return !std::isnan(v); });
}

// Takes the events of the last session.
void take_events(perf::Observed& seen, const report::RunRecord& run) {
  for (auto e = run.events.rbegin(); e != run.events.rend() && e->kind != "started"; ++e) {
    const bool attention = e->text.starts_with("attention ") && e->text.find(": reference") != e->text.npos;
    seen.reference_attention = seen.reference_attention || (e->kind == "note" && attention);
    seen.graphs_fell_back = seen.graphs_fell_back || e->text.find(troubleshooting::kGraphs) != e->text.npos;
    seen.batch_was_chosen = seen.batch_was_chosen || e->text.starts_with("train.batch_size = auto");
  }
}

// A step's share of what happens every so many of them: what one takes, whenever it was.
void take_asides(perf::Observed& seen, const report::RunRecord& run, const config::Config& config) {
  const train::Account account = run.goodput.account();
  const auto share = [](double seconds, std::int64_t times, std::int64_t every) {
    return times > 0 && every > 0 ? 1e3 * seconds / static_cast<double>(times) / static_cast<double>(every) : 0;
  };
  seen.evaluation_ms =
      share(account.of(train::Part::evaluation), count_known(run.column("eval_loss")), config.train.eval_every);
  std::set<std::int64_t> sampled;
  for (const report::Sample& s : run.samples) sampled.insert(s.step);
  seen.sampling_ms =
      share(account.of(train::Part::sampling), static_cast<std::int64_t>(sampled.size()), config.train.sample_every);
  double held = 0, until_whole = 0;
  std::int64_t saves = 0;
  for (const report::Event& e : run.events) {
    if (e.kind != "checkpoint") continue;
    held += e.held;
    until_whole += e.seconds;
    ++saves;
  }
  seen.saving_ms = share(held, saves, config.checkpoint.every);
  if (saves > 0) seen.save_seconds = until_whole / static_cast<double>(saves);
}

void take_card(perf::Observed& seen, const report::RunRecord& run, const std::vector<std::size_t>& rows) {
  if (run.throttled_rows == 0) return;
  for (const std::string& reason : run.throttle_reasons)
    if (seen.throttle.empty() || seen.throttle == device::kPowerCap) seen.throttle = reason;
  if (const double mhz = mean(rows, run.column("gpu_clock_mhz")); mhz > 0) seen.clock_mhz = mhz;
  if (const double most = report::quantile(run.column("gpu_max_clock_mhz"), 1); most > 0) seen.max_clock_mhz = most;
}

std::optional<perf::StepParts> timed_parts(const report::RunRecord& run) {
  if (!run.profile || !run.profile->contains("nodes") || !(*run.profile)["nodes"].is_array()) return {};
  perf::StepParts parts;
  for (const io::Json& node : (*run.profile)["nodes"]) {
    if (!node.is_object()) continue;
    const std::string op = node.value("op", ""), phase = node.value("phase", "");
    const double ms = node.value("ms", 0.0);
    perf::add_timed(parts, {op, phase, ms, ms * node.value("roofline", 0.0)});
  }
  return parts.ms() > 0 ? std::optional(parts) : std::nullopt;
}

perf::Learned learned_in(const report::RunRecord& run, const config::Config& config) {
  perf::Learned l;
  const std::vector<double>&losses = run.column("loss"), &norms = run.column("grad_norm"), &rates = run.column("lr"),
        &held_out = run.column("eval_loss");
  for (std::size_t i = 0; i < run.rows(); ++i) {
    if (std::isfinite(held_out[i])) l.held_out.emplace_back(run.steps[i], held_out[i]);
    if (run.steps[i] == 0) continue;  // the evaluation before the first step
    l.steps.push_back(run.steps[i]);
    l.loss.push_back(losses[i]);
    l.grad_norm.push_back(norms[i]);
    l.rate.push_back(rates[i]);
  }
  const std::vector<std::int64_t>& looks = run.routers.steps;
  l.router_looks = std::ssize(looks) / 4;
  if (l.router_looks > 0) {
    const auto first = looks.size() - static_cast<std::size_t>(l.router_looks);
    l.first_look = looks[first];
    l.last_look = looks.back();
    for (const report::LayerLoads& of : run.routers.layers) {
      perf::Learned::Router& router = l.routers.emplace_back();
      router.layer = of.layer;
      router.loads.resize(run.routers.experts());
      for (std::size_t look = first; look < looks.size(); ++look)
        for (std::size_t e = 0; e < router.loads.size(); ++e)
          router.loads[e] += static_cast<double>(of.loads[look][e]) / static_cast<double>(l.router_looks);
    }
  }
  if (!run.sessions.empty()) l.steps_of_run = run.sessions.back().steps;
  l.ranks = std::max<std::int64_t>(1, config.parallel.ranks);
  return l;
}

}  // namespace

perf::Observed observed_in(const report::RunRecord& run, const config::Config& config) {
  const report::RunSummary summary = report::summarise(run, {});
  const std::vector<std::size_t> rows = report::steady_rows(run);
  const auto of = [&](report::Column column) { return mean(rows, run.column(column)); };
  perf::Observed seen;
  seen.measured = true;
  seen.step_ms = of("step_ms");
  if (!(seen.step_ms > 0))
    fail_user("{}: no step of it was recorded; doctor needs the metrics.jsonl of a run that has made some",
              run.folder.string());
  seen.data_wait_ms = of("data_wait_ms");
  const bool has_device = count_known(run.column("device_ms")) > 0;
  seen.device_ms = has_device ? of("device_ms") : seen.step_ms - seen.data_wait_ms;
  seen.idle_ms = has_device ? of("idle_ms") : seen.data_wait_ms;
  seen.tokens = of("tokens");
  seen.padding = of("padding");
  seen.mfu = known_or(summary.figure("mean_mfu"), 0);
  seen.ranks_wait_ms = of("ranks_wait_ms");
  if (count_known(run.column("slowest_rank_ms")) > 0) {
    seen.slowest_rank_ms = of("slowest_rank_ms");
    seen.median_rank_ms = of("median_rank_ms");
    seen.slowest_rank = static_cast<std::int64_t>(report::quantile(run.column("slowest_rank"), 0.5));
  }
  take_asides(seen, run, config);
  take_card(seen, run, rows);
  take_events(seen, run);
  if (run.pipeline) seen.slowest_stage = run.pipeline->value("slowest", "");
  if (seen.slowest_stage == "train") seen.slowest_stage.clear();  // as one wants it
  seen.timed = timed_parts(run);
  seen.learned = learned_in(run, config);
  return seen;
}

perf::Machine machine_of(const report::RunRecord& run) {
  if (run.sessions.empty() || !(run.sessions.back().peak_flops > 0))
    fail_user("{}: its events.jsonl does not say on what it ran; --card NAME says it", run.folder.string());
  const report::SessionStart& s = run.sessions.back();
  perf::Machine m;
  if (const perf::Card* card = s.card ? perf::find_card(s.device) : nullptr) {
    m = perf::machine_of(*card);
  } else {
    m.kind = s.card ? device::Kind::cuda : device::Kind::cpu;
    m.source = "as the run measured it";
    m.peak_flops = s.peak_flops;
    m.tflops.bf16 = m.tflops.fp16 = m.tflops.fp32 = 1e-12 * s.peak_flops;
    if (s.card) m.tflops.tf32 = m.tflops.bf16 / 2;
    if (s.card) m.tflops.fp32 = m.tflops.bf16 / 16;
    m.copy_rate = s.peak_flops * (s.card ? kCardBytesPerFlop : kCpuBytesPerFlop);
  }
  m.name = s.device;
  if (s.device_memory > 0) m.memory = static_cast<std::int64_t>(s.device_memory);
  return m;
}

namespace {

constexpr double kBarColumns = 30;
constexpr double kMuchSlower = 1.3;  // than the plan, which is within a few percent on cards that it knows

std::string ms(double value) {
  return value < 9.95   ? fmt::format("{:.2f}", value)
         : value < 99.5 ? fmt::format("{:.1f}", value)
                        : fmt::format("{:.0f}", value);
}

std::string parts_table(const perf::Diagnosis& d, bool blocks) {
  std::string out = fmt::format("\n{:<14} {:>8} {:>8} {:>8} {:>8} {:>8}  {}\n", "part", "ms", "floor", "loss",
                                "of step", "mfu", blocks ? "█ floor ░ loss" : "# floor - loss");
  double longest = 0;
  for (const perf::PartTime& part : d.parts.of) longest = std::max(longest, part.ms);
  perf::PartTime sum;
  const auto line = [&](std::string_view name, const perf::PartTime& part, const std::string& bar) {
    out += fmt::format("{:<14} {:>8} {:>8} {:>8} {:>8} {:>8}  {}\n", name, ms(part.ms), ms(part.floor_ms),
                       ms(part.loss_ms()), report::percent(part.ms / d.step_ms),
                       fmt::format("{:+.1f}", d.mfu_points(std::min(part.loss_ms(), 0.99 * d.step_ms))), bar);
  };
  for (std::size_t i = 0; i < d.parts.of.size(); ++i) {
    const perf::PartTime& part = d.parts.of[i];
    if (part.ms <= 0) continue;
    sum.ms += part.ms;
    sum.floor_ms += part.floor_ms;
    const double columns = kBarColumns / longest;
    line(perf::kStepParts[i], part, report::bar_of_two(columns * part.floor_ms, columns * part.loss_ms(), blocks));
  }
  out += fmt::format("{:<14} {:>8} {:>8} {:>8}\n", "the step", ms(sum.ms), ms(sum.floor_ms), ms(sum.loss_ms()));
  return out;
}

std::string slower_than_planned(const perf::Diagnosis& d) {
  return fmt::format(
      "the device takes {:.1f} times what the plan expects, which no illness here explains: look for other "
      "programs on the same cores or card (top, nvidia-smi)",
      d.of_plan);
}

std::string price(const Finding& f, double step_ms) {
  if (f.is_of_learning()) return fmt::format("{}; {}", f.costs, f.basis);
  return fmt::format("{} ms a step ({}), {:.1f} points of MFU; {}", ms(f.loss_ms), report::percent(f.loss_ms / step_ms),
                     f.mfu_points, f.basis);
}

std::string gain_of(const Finding& f) {
  std::string text = fmt::format("{:.2f} times the tokens a second expected", f.gain);
  if (f.measured) text += fmt::format(", {:.2f} times measured", *f.measured);
  if (!f.not_measured.empty()) text += fmt::format("; not measured: {}", f.not_measured);
  return text;
}

std::string set_of(const Finding& f) { return fmt::format("{}", fmt::join(f.changes, " ")); }

std::string entry(const std::string& number, const Finding& f, double step_ms) {
  std::string out = "\n" + paragraph(fmt::format("{:<3}", number), fmt::format("{}: {}", f.row().name, f.found));
  out += paragraph("   costs   ", price(f, step_ms));
  out += paragraph("   mend    ", f.mend);
  if (!f.changes.empty()) out += paragraph("   set     ", set_of(f));
  if (!f.is_of_learning()) out += paragraph("   gain    ", gain_of(f));
  if (!f.caution.empty()) out += paragraph("   but     ", f.caution);
  return out + paragraph("   see     ", f.row().section);
}

io::Json to_json(const Finding& f, double step_ms) {
  return {{"illness", f.row().key},
          {"name", f.row().name},
          {"found", f.found},
          {"mend", f.mend},
          {"set", f.changes},
          {"caution", f.caution},
          {"basis", f.basis},
          {"of", f.is_of_learning() ? "learning" : "speed"},
          {"costs", price(f, step_ms)},
          {"loss_ms", f.is_of_learning() ? 0.0 : f.loss_ms},
          {"share", f.loss_ms / step_ms},
          {"mfu_points", f.mfu_points},
          {"gain", f.gain},
          {"gain_measured", f.measured ? io::Json(*f.measured) : io::Json(nullptr)},
          {"not_measured", f.not_measured},
          {"see", f.row().section}};
}

}  // namespace

std::string in_words(const Consultation& c, bool blocks) {
  const perf::Diagnosis& d = c.diagnosis;
  std::string out = paragraph("doctor   ", fmt::format("{} on {}: {} a step with its share of all else, {}, mfu {}",
                                                       c.name, c.device, report::duration(1e-3 * d.step_ms),
                                                       report::token_rate(d.tokens_per_s), report::percent(d.mfu)));
  out += paragraph("from     ", c.basis);
  out += parts_table(d, blocks);
  out += "mfu: points that would come back if the part took no longer than its floor\n";
  if (d.of_plan > kMuchSlower) out += "\n" + paragraph("note     ", slower_than_planned(d));
  if (d.findings.empty()) {
    out += d.refuted.empty()
               ? fmt::format("\nnothing to mend: none of the {} that doctor knows costs {:.0f}% of the step\n",
                             counted(train::kIllnesses.size(), "illness"), 100 * perf::kWorthMending)
               : "\nnothing to mend\n";
  } else {
    out += fmt::format("\n{} to mend{}\n", counted(d.findings.size(), "thing"),
                       d.findings.size() > 1 ? ", the dearest first" : "");
    for (std::size_t i = 0; i < std::min(d.findings.size(), kShownFindings); ++i)
      out += entry(fmt::format("{}.", i + 1), d.findings[i], d.step_ms);
    if (d.findings.size() > kShownFindings)
      out += fmt::format("\n{} more in --json\n", counted(d.findings.size() - kShownFindings, "thing"));
  }
  if (!d.options.empty()) out += "\nfaster, for another result\n";
  for (const Finding& f : d.options) out += entry("-", f, d.step_ms);
  if (!d.refuted.empty()) out += "\ntried, and does not help here: leave it as it is\n";
  for (const Finding& f : d.refuted) out += entry("-", f, d.step_ms);
  return out;
}

io::Json to_json(const Consultation& c) {
  const perf::Diagnosis& d = c.diagnosis;
  io::Json parts = io::Json::array();
  for (std::size_t i = 0; i < d.parts.of.size(); ++i) {
    const perf::PartTime& part = d.parts.of[i];
    parts.push_back({{"part", perf::kStepParts[i]},
                     {"ms", part.ms},
                     {"floor_ms", part.floor_ms},
                     {"loss_ms", part.loss_ms()},
                     {"share", part.ms / d.step_ms},
                     {"mfu_points", d.mfu_points(std::min(part.loss_ms(), 0.99 * d.step_ms))}});
  }
  const auto rows = [&](const std::vector<Finding>& from) {
    io::Json list = io::Json::array();
    for (const Finding& f : from) list.push_back(to_json(f, d.step_ms));
    return list;
  };
  return {{c.run ? "run" : "config", c.name},
          {"device", c.device},
          {"basis", c.basis},
          {"step_ms", d.step_ms},
          {"tokens_per_s", d.tokens_per_s},
          {"mfu", d.mfu},
          {"of_plan", d.of_plan > 0 ? io::Json(d.of_plan) : io::Json(nullptr)},
          {"note", d.of_plan > kMuchSlower ? slower_than_planned(d) : ""},
          {"parts", std::move(parts)},
          {"healthy", d.findings.empty()},
          {"findings", rows(d.findings)},
          {"options", rows(d.options)},
          {"refuted", rows(d.refuted)}};
}

std::string doctor_page(const Consultation& c) {
  return report::page(c.name + " – redline doctor", {{"page", "doctor"}, {"title", c.name}}, to_json(c));
}

namespace {

struct DoctorWords {
  std::string card, device = "auto", html;
  std::int64_t steps = 5;
  double seconds = 3;
  bool tries = false, json = false;
};

// The folder of a run, where that is what the one word names; empty: it is a configuration.
std::string run_named(const ConfigWords& words) {
  std::error_code ignored;
  for (const std::string& word : words.words) {
    const bool file = Path(word).filename() == "metrics.jsonl" && real_files().exists(word);
    if (!file && !std::filesystem::is_directory(word, ignored)) {
      const bool path = word.find('/') != std::string::npos && word.find('=') == std::string::npos;
      if (path && Path(word).extension() != ".toml" && !real_files().exists(word))
        fail_user(
            "{}: no such folder; give that of a run, a TOML file or one of the presets that `redline config "
            "--presets` lists",
            word);
      continue;
    }
    if (words.words.size() > 1 || !words.preset.empty())
      fail_user("{} is a run, which has its settings: leave the other words away", word);
    return file ? Path(word).parent_path().string() : word;
  }
  return "";
}

struct Subject {
  config::Sources sources;  // of its configuration
  config::Config config;
  Consultation consultation;
};

Subject look_at_run(const std::string& folder, const DoctorWords& wanted) {
  report::LiveLine progress(stderr);
  const report::RunRecord run = report::read_run(real_files(), folder, [&](double share) {
    progress.show(fmt::format("reading {}, {:.0f}%", folder, 100 * share));
  });
  progress.clear();
  for (const std::string& sentence : run.problems) log::warn("{}: {}", run.folder.string(), sentence);
  Subject s;
  s.sources.file = (run.folder / train::kRunConfig).string();
  s.sources.of_run = true;
  if (!real_files().exists(s.sources.file))
    fail_user("{} has no {}: doctor needs what the run was set to", run.folder.string(), train::kRunConfig);
  s.config = load_config(s.sources);
  const perf::Machine machine =
      wanted.card.empty() ? machine_of(run) : perf::machine_of(perf::card_called(wanted.card));
  const config::Config as_planned = wanted.card.empty() ? s.config : perf::expect_fp8(s.config, machine).config;
  const perf::Observed seen = observed_in(run, s.config);
  s.consultation = {
      run.name, machine.name,
      fmt::format("what the run recorded in {}; the device's time is divided as {}", counted(run.steps.back(), "step"),
                  seen.timed ? "profile.json has it" : "the plan divides it"),
      true, perf::diagnose(as_planned, machine, seen)};
  return s;
}

// A step as `redline profile` measures it.
perf::Observed measured_step(const config::Config& config, const perf::Machine& machine, device::Device& device,
                             std::int64_t steps) {
  perf::ProfileOptions options;
  options.config = config;
  options.steps = steps;
  options.peak_flops = machine.peak_flops;
  options.copy_rate = machine.copy_rate;
  const perf::Profile p = profile_on(device, options, "timing every node");
  perf::Observed seen = perf::expected_step(config, machine);  // evaluations and saves are not made here
  seen.measured = true;
  seen.step_ms = p.untimed_ms > 0 ? p.untimed_ms : p.step_ms;
  seen.data_wait_ms = p.data_ms;
  seen.idle_ms = p.untimed_ms > 0 ? p.data_ms : p.data_ms + p.outside_ms;
  seen.device_ms = std::max(0.0, seen.step_ms - seen.idle_ms);
  seen.tokens = p.tokens;
  const auto slots = static_cast<double>(config.train.batch_size * config.train.seq_len * config.train.accumulate);
  // A document has one target less than tokens, which is no padding: a few in a hundred slots are left out.
  seen.padding = p.tokens < 0.9 * slots ? 1 - p.tokens / slots : 0;
  seen.mfu = p.model_flops / (1e-3 * seen.step_ms) / machine.peak_flops;
  seen.timed = perf::parts_of(p);
  return seen;
}

config::Config as_it_runs(config::Config config, device::Device& device) {
  if (config.precision.matmul == "fp8") config = perf::settle_fp8(config, device, true).config;
  return config;
}

// The run as it would fit; one that cannot is told.
void place(config::Config& config, const perf::Machine& machine, const perf::Filling& filling) {
  const perf::Plan plan = perf::make_plan(config, machine, {}, filling);
  if (plan.fits) return;
  if (perf::chooses(config)) {
    const perf::Fit fit = perf::find_fit(config, machine, perf::room_on(config, machine), {}, filling);
    if (!fit.ways.empty()) {
      config.memory.placement = fit.ways[0].placement;
      return;
    }
  }
  log::warn(
      "this run does not fit into the memory of {}: what follows is of one that had enough; `redline plan` says what "
      "fits",
      machine.name);
}

Subject look_at_config(const ConfigWords& words, const DoctorWords& wanted) {
  Subject s;
  s.sources = sources_of(words);
  s.config = load_to_measure(s.sources, wanted.tries || wanted.card.empty() || wanted.card == "cpu");
  s.consultation.name = name_of(s.sources);
  if (!wanted.card.empty() && wanted.card != "cpu") {
    const perf::Machine machine = perf::machine_of(perf::card_called(wanted.card));
    s.consultation.device = machine.name;
    s.consultation.basis = "the plan: nothing ran, so that padding, data and clocks are not seen";
    const auto filled = perf::filled(s.config);
    if (filled && filled->known()) {
      s.consultation.basis = fmt::format(
          "the plan, and the lengths of {} of data.train ({}): nothing ran, so that the loader and clocks are not seen",
          counted(filled->documents, "document"), filled->source);
    } else if (filled) {
      s.consultation.basis += fmt::format("; data.packing = \"{}\" pads, and how much is not known: {}",
                                          s.config.data.packing, filled->problem);
    }
    s.config = perf::expect_fp8(s.config, machine).config;
    place(s.config, machine, perf::filling_of(filled));
    s.consultation.diagnosis = perf::diagnose(s.config, machine, perf::expected_step(s.config, machine, filled));
    return s;
  }
  const auto device = device::open_device(wanted.card.empty() ? wanted.device : wanted.card);
  if (const std::string chosen = resolve_batch_size(s.config, *device, false); !chosen.empty()) log::note("{}", chosen);
  s.config = as_it_runs(s.config, *device);
  const perf::Machine machine = perf::machine_of(*device);
  const perf::Observed seen = measured_step(s.config, machine, *device, wanted.steps);
  s.consultation.device = machine.name;
  s.consultation.basis = fmt::format("{} on this machine, every node timed; evaluations and saves are the plan's",
                                     counted(wanted.steps, "step"));
  s.consultation.diagnosis = perf::diagnose(s.config, machine, seen);
  return s;
}

// Why a few steps cannot show the gain; empty: they can.
std::string why_not_tried(const Finding& f) {
  switch (f.illness) {
    case Illness::frequent_evaluation:
    case Illness::frequent_samples:
    case Illness::frequent_saves:
    case Illness::slow_disk: return "what it costs lies between steps";
    case Illness::slow_rank:
    case Illness::communication: return "that takes all ranks";
    case Illness::rate:
    case Illness::all_warm_up:
    case Illness::gradient_spike:
    case Illness::plateau:
    case Illness::overfitting:
    case Illness::few_tokens: return "a few steps do not show what a run learns";
    default: return f.changes.empty() ? "no setting mends it" : "";
  }
}

// Measures the settings as they are, then each change by itself. False: a signal ended it, and what was measured stays.
bool try_changes(Subject& s, const DoctorWords& wanted) {
  perf::Diagnosis& d = s.consultation.diagnosis;
  std::vector<Finding*> tried;
  const auto take = [&](std::vector<Finding>& from) {
    for (std::size_t i = 0; i < std::min(from.size(), kShownFindings); ++i) {
      from[i].not_measured = why_not_tried(from[i]);
      if (from[i].not_measured.empty()) tried.push_back(&from[i]);
    }
  };
  take(d.findings);
  take(d.options);
  if (tried.empty()) return true;
  Measuring measuring("trying", wanted.device, wanted.seconds * static_cast<double>(1 + tried.size()));
  perf::SearchOptions options;
  options.each = wanted.seconds;
  measuring.take(options);
  perf::Search search(options, measuring.bench(), [&](const perf::KeyValues& keys) {
    // A run of several ranks is measured as one of them made its steps.
    const config::Config changed = with_keys(s.sources, s.consultation.run ? 0 : 1)(keys);
    return changed.train.automatic_batch_size ? perf::with_setting(changed, perf::setting_of(s.config)) : changed;
  });
  search.expect(1 + tried.size());
  try {
    perf::Trial before;
    before.name = "the settings as they are";
    search.measure(before, s.config);
    for (Finding* f : tried) {
      if (!before.measured.done()) {
        f->not_measured = "the settings as they are cannot be measured: " + before.measured.problem;
        continue;
      }
      perf::Trial after;
      after.name = set_of(*f);
      search.measure(after, f->changes);
      f->not_measured = after.measured.problem;
      if (!after.measured.done()) continue;
      f->measured = after.measured.tokens_per_s / before.measured.tokens_per_s;
      f->noise = std::max(before.measured.noise, after.measured.noise);
    }
  } catch (const Interrupted&) {
    for (Finding* f : tried)
      if (!f->measured && f->not_measured.empty()) f->not_measured = "stopped before";
    return false;
  }
  return true;
}

}  // namespace

int run_doctor(const Words& words) {
  Arguments arguments("doctor", "what keeps a run or a configuration from being faster, what that costs, what mends it",
                      "[RUN | CONFIG] [key=value ...] [--try] [--card NAME] [--json] [--html FILE]",
                      {"redline doctor runs/a                    from what the run recorded; no card is needed",
                       "redline doctor runs/a --try              and measures here what the changes would bring",
                       "redline doctor my.toml                   times every node of a few steps here",
                       "redline doctor gqa-180m --card h200      by the plan, of a card that is elsewhere",
                       "redline doctor runs/a --json > a.json    for a script"});
  ConfigWords config;
  DoctorWords wanted;
  arguments.words("RUN | CONFIG, key=value", config.words,
                  "the folder of a run; or a TOML file or a preset, then keys to change, e.g. train.batch_size=64");
  arguments.text("--preset", "NAME", config.preset,
                 "start from a shipped configuration; `redline config --presets` lists them");
  arguments.flag("--try", wanted.tries, "run a few steps as they are and with each change, and show the gain measured");
  arguments.number("--seconds", "S", wanted.seconds, 0.1, 3600, "that each of --try is timed for (default: 3)");
  arguments.integer("--steps", "N", wanted.steps, 1, 100'000, "of a configuration to time (default: 5)");
  arguments.text("--card", "NAME", wanted.card,
                 "of a configuration: plan for this card and run nothing; of a run: the card that it was on");
  arguments.device(wanted.device);
  arguments.text("--html", "FILE", wanted.html, "write a page as well");
  arguments.json(wanted.json);
  arguments.exits(kDone, "nothing to mend");
  arguments.exits(kFailed, "something to mend, or the machine failed, which prints nothing");
  arguments.exits(kStopped, "stopped by a signal: with --try, what was measured is shown");
  if (!arguments.parse(words)) return kDone;

  Subject s;
  {
    const StopAtOnce stopping("stopped; nothing was found out");
    const std::string run = run_named(config);
    if (!run.empty() && wanted.card == "cpu") fail_user("--card cpu: of a run, name a card or leave it away");
    if (!wanted.html.empty()) check_output_file("--html", wanted.html, kPageFile);
    s = run.empty() ? look_at_config(config, wanted) : look_at_run(run, wanted);
  }
  if (wanted.tries && run_named(config).empty() && !wanted.card.empty() && wanted.card != "cpu")
    fail_user("--try measures on this machine, and --card {} plans for another: leave one of them away", wanted.card);
  const bool whole = !wanted.tries || try_changes(s, wanted);
  s.consultation.diagnosis.separate_refuted();
  if (!wanted.html.empty()) real_files().replace(wanted.html, doctor_page(s.consultation));
  if (wanted.json)
    print_json(to_json(s.consultation));
  else
    print(in_words(s.consultation, has_blocks()));
  if (!wanted.json && !wanted.html.empty()) print(fmt::format("\npage     {}\n", wanted.html));
  if (!whole) return kStopped;
  return s.consultation.diagnosis.findings.empty() ? kDone : kFailed;
}

}  // namespace redline::cli
