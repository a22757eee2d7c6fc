// redline train.
#include <ctime>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "cli/auto_batch.h"
#include "cli/commands.h"
#include "cli/config_words.h"
#include "model/family.h"
#include "model/init_from.h"
#include "perf/auto_batch.h"
#include "perf/fp8_choice.h"
#include "perf/peak.h"
#include "report/sinks.h"
#include "train/run_folder.h"
#include "train/signals.h"
#include "train/trainer.h"

namespace redline::cli {
namespace {

// runs/NAME-YYYYmmdd-HHMMSS; a second run within the same second gets a number.
Path new_folder(FileSystem& files, const std::string& name) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &local);
  const std::string folder = fmt::format("runs/{}-{}", name, stamp);
  Path path = folder;
  for (int n = 2; files.exists(path); ++n) path = fmt::format("{}-{}", folder, n);
  return path;
}

struct Choice {
  config::Config config;
  Path folder;
  bool own_config = false;  // the run's config.toml, and what the command line changes of it
};

Choice choose(FileSystem& files, const ConfigWords& words, const std::string& out, bool resume) {
  config::Sources sources = sources_of(words);
  if (resume && out.empty()) fail_user("--resume needs the run to continue: --out DIR");
  if (files.exists(out) && !std::filesystem::is_directory(out)) fail_user("--out {}: not a folder", out);
  const Path run_config = Path(out) / train::kRunConfig;
  // A run that goes on without being told its configuration keeps its own. Where there is none, the built-in one is not
  // what anybody meant: the folder may be misspelt.
  const bool own = resume && sources.file.empty() && sources.preset.empty();
  if (own) {
    if (!files.exists(run_config) && !train::holds_run(files, out))
      fail_user(
          "--resume: there is no run in {}; name the folder of one, give the configuration to begin with, or leave "
          "--resume out",
          out);
    train::read_run_config(files, out);  // says what to do where it cannot be used
    sources.file = run_config.string();
  }
  // A run that goes on has its model already: the folder that it began with may be gone.
  config::Complete complete = model::complete_model(files);
  if (resume && files.exists(run_config))
    complete = [&](config::Config& config) {
      if (!config.model.init_from.empty())
        model::take_model(config, train::read_run_config(files, out).model, run_config.string());
      model::settle_family(config);
    };
  Choice choice{config::load(sources, complete), out.empty() ? new_folder(files, name_of(sources)) : Path(out), own};
  std::string& tokenizer = choice.config.data.tokenizer;
  if (const Path kept = choice.folder / "tokenizer";
      resume && !choice.config.origins.on_command_line("data.tokenizer") && tokenizer.starts_with('/') &&
      !files.exists(tokenizer) && files.exists(kept)) {
    log::note("data.tokenizer: there is no {} any more; the run goes on with its own copy, {}", tokenizer,
              kept.string());
    tokenizer = kept.string();
  }
  return choice;
}

// Numbers in place of train.batch_size = "auto". A run that goes on keeps what it was given when it began; a folder
// that may not be used is refused before anything is searched.
std::string put_batch_size(train::TrainOptions& options, device::Device& device, FileSystem& files) {
  options.batch_was_chosen = true;
  if (options.resume && files.exists(options.folder / train::kRunConfig)) {
    options.config = perf::adopt_batch_size(options.config, train::read_run_config(files, options.folder));
    return fmt::format("train.batch_size = auto: {}, as the run began", in_words(perf::setting_of(options.config)));
  }
  train::check_folder(options, files);
  return resolve_batch_size(options.config, device, !options.dry_run, options.stop);
}

// The list of products that take fp8, likewise.
void put_fp8_products(train::TrainOptions& options, device::Device& device, FileSystem& files) {
  if (options.resume && files.exists(options.folder / train::kRunConfig))
    options.config = perf::adopt_fp8_products(options.config, train::read_run_config(files, options.folder));
  else
    train::check_folder(options, files);
  perf::Fp8Choice choice = perf::settle_fp8(options.config, device, !options.dry_run);
  options.config = std::move(choice.config);
  options.fp8_reasons = std::move(choice.reasons);
}

}  // namespace

int run_train(const Words& words) {
  Arguments arguments("train", "train a model; with no configuration, the built-in quick one",
                      "[CONFIG] [key=value ...] [--out DIR] [--resume]",
                      {"redline train", "redline train my.toml optim.lr=1e-3 train.max_steps=500 --out runs/a",
                       "redline train --resume --out runs/a        continue a run that was stopped",
                       "redline train --preset ping-95m --dry-run  memory and settings, without a step"});
  ConfigWords config;
  std::string out, device_name = "auto";
  std::int64_t from_step = -1;
  bool resume = false, allow_change = false, dry_run = false;
  config.declare(arguments);
  arguments.text("--out", "DIR", out, "the run's folder (default: runs/NAME-TIME)");
  arguments.flag("--resume", resume,
                 "continue the run in --out from its newest whole checkpoint; nothing else need be given again");
  arguments.integer("--from-step", "N", from_step, 1, std::numeric_limits<std::int64_t>::max(),
                    "with --resume: continue from the checkpoint of step N instead; newer ones are set aside");
  arguments.flag("--allow-change", allow_change,
                 "resume with another batch, other data or another precision than the run had; says what that changes");
  arguments.text("--device", "NAME", device_name, "where to run: cpu, cuda or auto (default: auto)");
  arguments.flag("--dry-run", dry_run, "do everything but the first step; writes nothing");
  if (!arguments.parse(words)) return kDone;
  if (allow_change && !resume) fail_user("--allow-change is for a run that goes on: it needs --resume");
  if (from_step >= 0 && !resume) fail_user("--from-step is for a run that goes on: it needs --resume");

  FileSystem& files = real_files();
  const Choice choice = choose(files, config, out, resume);
  const auto device = device::open_device(device_name);
  const train::StopSignals signals(train::StopSignals::Asked::to_stop_then_to_drop);
  const perf::Peak peak = perf::find_peak(*device);

  report::Sinks sinks(files, choice.config, choice.folder, "redline " REDLINE_VERSION, dry_run);
  train::TrainOptions options;
  options.config = choice.config;
  options.folder = choice.folder;
  options.resume = resume;
  if (from_step >= 0) options.from_step = from_step;
  options.allow_change = allow_change;
  options.own_config = choice.own_config;
  options.dry_run = dry_run;
  options.peak_flops = peak.flops;
  options.peak_source = peak.source;
  options.peak_was_measured = peak.measured;
  options.observers = {&sinks.observer()};
  options.stop = &signals.caught();
  options.drop = &signals.drop();
  const auto monitor =
      device->kind() == device::Kind::cpu || dry_run ? nullptr : device::GpuMonitor::open(device->bus_id());
  options.gpu = monitor.get();
  options.began = train::process_began();
  try {
    if (options.config.train.automatic_batch_size)
      sinks.observer().on(train::Note{put_batch_size(options, *device, files)});
    if (options.config.precision.matmul == "fp8") put_fp8_products(options, *device, files);
    const train::TrainResult result = train::train(options, *device, files);
    if (result.outcome == train::Outcome::dry_run)
      sinks.observer().on(train::Finished{"dry run: nothing was trained and nothing was written"});
    return result.outcome == train::Outcome::stopped ? kStopped : kDone;
  } catch (const std::exception& e) {
    sinks.record_failure(e.what());
    throw;
  }
}

}  // namespace redline::cli
