// redline doctor.
#include "perf/doctor.h"

#include <algorithm>
#include <filesystem>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/words.h"
#include "cli/auto_batch.h"
#include "cli/commands.h"
#include "cli/config_words.h"
#include "cli/doctor_run.h"
#include "cli/doctor_words.h"
#include "cli/output.h"
#include "cli/stop_at_once.h"
#include "perf/fp8_choice.h"
#include "perf/measure.h"
#include "perf/peak.h"
#include "perf/profile.h"
#include "report/figures.h"
#include "report/live_line.h"
#include "report/run_record.h"
#include "train/run_folder.h"
#include "train/signals.h"

namespace redline::cli {
namespace {

using perf::Finding;
using train::Illness;

struct Asked {
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

Subject look_at_run(const std::string& folder, const Asked& asked) {
  report::LiveLine progress(stderr);
  const report::RunRecord run = report::read_run(real_files(), folder, [&](double share) {
    progress.show(fmt::format("reading {}, {:.0f}%", folder, 100 * share));
  });
  progress.clear();
  for (const std::string& sentence : run.problems) log::warn("{}: {}", run.folder.string(), sentence);
  Subject s;
  s.sources.file = (run.folder / train::kRunConfig).string();
  if (!real_files().exists(s.sources.file))
    fail_user("{} has no {}: doctor needs what the run was set to", run.folder.string(), train::kRunConfig);
  s.config = load_config(s.sources);
  const perf::Machine machine = asked.card.empty() ? machine_of(run) : perf::machine_of(perf::card_called(asked.card));
  const perf::Observed seen = observed_in(run, s.config);
  s.consultation = {
      run.name, machine.name,
      fmt::format("what the run recorded in {}; the device's time is divided as {}", counted(run.steps.back(), "step"),
                  seen.timed ? "profile.json has it" : "the plan divides it"),
      true, perf::diagnose(s.config, machine, seen)};
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
  report::LiveLine progress(stderr);
  const double begin = steady_seconds();
  options.progress = [&](std::int64_t done, std::int64_t of) {
    progress.show(
        fmt::format("timing every node, step {}/{}{}", done, of,
                    report::eta(steady_seconds() - begin, static_cast<double>(done), static_cast<double>(of))));
  };
  const perf::Profile p = perf::profile(options, device);
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

Subject look_at_config(const ConfigWords& words, const Asked& asked) {
  Subject s;
  s.sources = sources_of(words);
  s.config = load_config(s.sources);
  s.consultation.name = name_of(s.sources);
  if (!asked.card.empty() && asked.card != "cpu") {
    const perf::Machine machine = perf::machine_of(perf::card_called(asked.card));
    s.consultation.device = machine.name;
    s.consultation.basis = "the plan: nothing ran, so that padding, data and clocks are not seen";
    s.consultation.diagnosis = perf::diagnose(s.config, machine, perf::expected_step(s.config, machine));
    return s;
  }
  const auto device = device::open_device(asked.card.empty() ? asked.device : asked.card);
  if (const std::string chosen = resolve_batch_size(s.config, *device, false); !chosen.empty()) log::note("{}", chosen);
  s.config = as_it_runs(s.config, *device);
  const perf::Machine machine = perf::machine_of(*device);
  const perf::Observed seen = measured_step(s.config, machine, *device, asked.steps);
  s.consultation.device = machine.name;
  s.consultation.basis = fmt::format("{} on this machine, every node timed; evaluations and saves are the plan's",
                                     counted(asked.steps, "step"));
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
    default: return f.changes.empty() ? "no setting mends it" : "";
  }
}

// Steps as they are, then with each change by itself. False: a signal ended it, and what was measured stays.
bool try_changes(Subject& s, const Asked& asked) {
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
  const train::StopSignals signals;
  const auto device = device::open_device(asked.device);
  report::LiveLine line(stderr);
  const double begin = steady_seconds();
  std::size_t number = 0;
  const auto rate = [&](const std::string& what, const config::Config& config) {
    const double done = static_cast<double>(number), left = static_cast<double>(1 + tried.size()) - done;
    const double each = number == 0 ? asked.seconds : (steady_seconds() - begin) / done;
    line.show(
        fmt::format("trying {} ({}/{}), eta {}", what, number + 1, 1 + tried.size(), report::duration(each * left)));
    ++number;
    perf::MeasureOptions options;
    options.seconds = asked.seconds;
    options.stop = &signals.caught();
    return perf::measure(config, *device, options);
  };
  try {
    const perf::Measured before = rate("the settings as they are", s.config);
    for (Finding* f : tried) {
      if (!before.done()) {
        f->not_measured = "the settings as they are cannot be measured: " + before.problem;
        continue;
      }
      try {
        config::Sources changed = s.sources;
        changed.overrides.insert(changed.overrides.end(), f->changes.begin(), f->changes.end());
        config::Config config = load_config(changed);
        if (config.train.automatic_batch_size) config = perf::with_setting(config, perf::setting_of(s.config));
        const perf::Measured after = rate(fmt::format("{}", fmt::join(f->changes, " ")), config);
        if (after.done()) {
          f->measured = after.tokens_per_s / before.tokens_per_s;
          f->noise = std::max(before.noise, after.noise);
        } else {
          f->not_measured = after.problem;
        }
      } catch (const UserError& e) {  // keys that do not go together
        f->not_measured = e.what();
      }
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
  Arguments arguments(
      "doctor", "what keeps a run or a configuration from being faster, what that costs, what mends it",
      "[RUN | CONFIG] [key=value ...] [--try] [--card NAME] [--json] [--html FILE]",
      {"redline doctor runs/a                    from what the run recorded; no card is needed",
       "redline doctor runs/a --try              and measures here what the changes would bring",
       "redline doctor my.toml                   times every node of a few steps here",
       "redline doctor gqa-180m --card h200      by the plan, of a card that is elsewhere",
       "redline doctor runs/a --json > a.json    exit status 0: nothing to mend, 1: something, 3: stopped"});
  ConfigWords config;
  Asked asked;
  arguments.words("RUN | CONFIG, key=value", config.words,
                  "the folder of a run; or a TOML file or a preset, then keys to change, e.g. train.batch_size=64");
  arguments.text("--preset", "NAME", config.preset,
                 "start from a shipped configuration; `redline config --presets` lists them");
  arguments.flag("--try", asked.tries, "run a few steps as they are and with each change, and show the gain measured");
  arguments.number("--seconds", "S", asked.seconds, 0.1, 3600, "that each of --try is timed for (default: 3)");
  arguments.integer("--steps", "N", asked.steps, 1, 100'000, "of a configuration to time (default: 5)");
  arguments.text("--card", "NAME", asked.card,
                 "of a configuration: plan for this card and run nothing; of a run: the card that it was on");
  arguments.text("--device", "NAME", asked.device, "where to run: cpu, cuda or auto (default: auto)");
  arguments.text("--html", "FILE", asked.html, "write a page as well");
  arguments.flag("--json", asked.json, "print one JSON document");
  if (!arguments.parse(words)) return kDone;

  Subject s;
  {
    const StopAtOnce stopping("stopped; nothing was found out");
    const std::string run = run_named(config);
    if (!run.empty() && asked.card == "cpu") fail_user("--card cpu: of a run, name a card or leave it away");
    if (!asked.html.empty()) check_output_file("--html", asked.html, config.words);
    s = run.empty() ? look_at_config(config, asked) : look_at_run(run, asked);
  }
  if (asked.tries && run_named(config).empty() && !asked.card.empty() && asked.card != "cpu")
    fail_user("--try measures on this machine, and --card {} plans for another: leave one of them away", asked.card);
  const bool whole = !asked.tries || try_changes(s, asked);
  s.consultation.diagnosis.set_refuted_aside();
  if (!asked.html.empty()) real_files().replace(asked.html, doctor_page(s.consultation));
  if (asked.json)
    print_json(to_json(s.consultation));
  else
    print(in_words(s.consultation, has_blocks()));
  if (!asked.json && !asked.html.empty()) print(fmt::format("\npage     {}\n", asked.html));
  if (!whole) return kStopped;
  return s.consultation.diagnosis.findings.empty() ? kDone : kFailed;
}

}  // namespace redline::cli
