// Holds a run folder's configuration against the one asked for, and keeps what the run leaves in it.
#include "train/run_folder.h"

#include <cmath>

#include "base/clock.h"
#include "config/keys.h"
#include "config/load.h"
#include "io/checkpoint_folder.h"
#include "model/family.h"

namespace redline::train {
namespace {

constexpr double kBetweenLooks = 1, kJump = 10;  // seconds

void tell_observers(const TrainOptions& options, const Event& event) {
  for (Observer* o : options.observers) o->on(event);
}

bool decides_the_run(std::string_view key) {
  for (std::string_view how : {"data.workers", "data.prefetch", "data.ram_mib", "data.debug", "data.on_error"})
    if (key == how) return false;  // batches are the same for any, as long as nothing is malformed
  for (std::string_view prefix : {"model.", "data.", "precision."})
    if (key.starts_with(prefix)) return true;
  return key == "train.batch_size" || key == "train.seq_len" || key == "train.accumulate" || key == "train.seed";
}

std::string_view another(std::string_view key) {
  return key.starts_with("model.") ? " is of another model: it" : " is of another run: it";
}

// `where`, the run or one of its checkpoints, was started as `before` says: a difference in a key that decides the run
// refuses it, others are told.
void check_settings(const config::Config& before, const TrainOptions& options, const Path& where) {
  for (const std::string& key : config::differing_keys(before, options.config)) {
    if (key == "preset") continue;  // where the values came from does not matter, the values do
    const auto text = [&](const config::Config& c) { return config::literal(config::read(*config::find_key(key), c)); };
    const std::string was = text(before), is = text(options.config);
    if (decides_the_run(key))
      fail_user(
          "{}{} was started with {} = {}, not {}; resume it with its own value, or start another run with another "
          "--out",
          where.string(), where == options.folder ? "" : another(key), key, was, is);
    tell_observers(options, Note{fmt::format("resuming with {} = {} (it was {})", key, is, was)});
  }
}

}  // namespace

bool holds_run(FileSystem& files, const Path& folder) {
  return files.exists(folder / kRunConfig) || files.exists(folder / "metrics.jsonl") ||
         !files.list(folder / "checkpoints").empty();
}

config::Config read_run_config(FileSystem& files, const Path& folder) {
  const Path path = folder / kRunConfig;
  if (!files.exists(path))
    fail_user("{} holds no run (no {}); give the configuration, or another --out", folder.string(), kRunConfig);
  try {
    return config::parse(files.read(path), path.string(), model::settle_family);
  } catch (const NoPermission&) {
    throw;
  } catch (const UserError& e) {
    fail_user("{} cannot be used ({}); each checkpoint of the run holds a copy of it", path.string(), e.what());
  }
}

void check_folder(const TrainOptions& options, FileSystem& files) {
  if (!holds_run(files, options.folder)) return;
  if (!options.resume)
    fail_user("{} already holds a run; continue it with --resume, or choose another --out", options.folder.string());
  if (!files.exists(options.folder / kRunConfig)) return;  // stopped before it had begun, or its checkpoints tell
  check_settings(read_run_config(files, options.folder), options, options.folder);
}

RunFolder::RunFolder(const TrainOptions& options, FileSystem& files)
    : options_(options), files_(files), checkpoints_(options.folder / "checkpoints") {
  check_folder(options, files);
}

void RunFolder::tell(const Event& event) { tell_observers(options_, event); }

std::optional<Path> RunFolder::resume(StepLoop& loop) {
  if (!options_.resume) return std::nullopt;
  std::string newest_problem;
  const auto damaged = [&](const io::PassedOver& passed) {
    if (newest_problem.empty()) newest_problem = passed.problem;
    tell(Warning{io::in_words(passed)});
  };
  // A run that has lost its configuration is still what its checkpoints say.
  const bool lost = !files_.exists(options_.folder / kRunConfig);
  const auto use = [&](const io::FoundCheckpoint& c) {
    if (lost && files_.exists(c.folder / kRunConfig))
      check_settings(read_run_config(files_, c.folder), options_, c.folder);
    return take_up(c.folder, loop);
  };
  const std::optional<io::FoundCheckpoint> found = io::newest_whole_checkpoint(files_, checkpoints_, damaged, use);
  if (found) return found->folder;
  if (!newest_problem.empty())
    fail_user("none of the checkpoints in {} can be used ({}); move that folder away to start from the beginning",
              checkpoints_.string(), newest_problem);
  return std::nullopt;
}

// The run stands where the checkpoint left it, unless what is returned says what is wrong with it. Then the next one takes
// the place of all that was loaded.
std::string RunFolder::take_up(const Path& checkpoint, StepLoop& loop) {
  if (std::string problem = missing_from_checkpoint(files_, checkpoint, loop.lowered().state); !problem.empty())
    return problem;
  loop.restore(read_run_state(files_, checkpoint), checkpoint);
  if (!loop.trains()) return io::checkpoint_problem(files_, checkpoint, loop.tell_loading());
  if (!lock_) lock_.emplace(options_.folder);
  loop.make_engine();
  try {
    loop.load_checkpoint(checkpoint);
    return {};
  } catch (const std::exception&) {
    // Changed bytes can look wrong in many ways before the hash is known: what the manifest says is what to tell. Where it
    // has nothing to say the checkpoint is whole and does not fit this run, or the device failed.
    std::string problem = io::checkpoint_problem(files_, checkpoint, loop.tell_loading());
    if (problem.empty()) throw;
    return problem;
  }
}

void RunFolder::begin() {
  files_.create_folders(options_.folder);
  if (!lock_) lock_.emplace(options_.folder);
  if (!options_.resume && !begun_) check_folder(options_, files_);  // another may have begun while this one loaded
  const std::string text = config::dump(options_.config);
  const Path path = options_.folder / kRunConfig;
  if (!files_.exists(path) || files_.read(path) != text) files_.replace(path, text);
  io::prepare_checkpoints(files_, checkpoints_);
  if (std::exchange(begun_, true)) return;
  looked_at_ = steady_seconds();
  clock_offset_ = options_.wall_clock() - looked_at_;
}

bool RunFolder::lost() {
  const double now = steady_seconds();
  if (now - looked_at_ < kBetweenLooks) return false;
  looked_at_ = now;
  tell_of_jumps(now);
  const bool gone = !files_.exists(options_.folder / kRunConfig) || !files_.exists(checkpoints_);
  return (gone || !lock_ || !lock_->in_place()) && make_anew(gone);
}

void RunFolder::tell_of_jumps(double now) {
  const double offset = options_.wall_clock() - now, jump = offset - std::exchange(clock_offset_, offset);
  if (std::abs(jump) < kJump) return;
  tell(Warning{
      fmt::format("the machine's clock jumped by {:+.0f} s, or the machine slept: times of day in the run's files "
                  "jump with it, the times of steps do not",
                  jump)});
}

// Where nothing can be made the run goes on: perhaps it can be later.
bool RunFolder::make_anew(bool gone) {
  const std::string folder = options_.folder.string();
  const auto tell_once = [&](const std::exception& e) {
    if (!std::exchange(told_of_loss_, true))
      tell(Warning{
          fmt::format("{} is gone and cannot be made anew ({}): nothing can be saved until it can", folder, e.what())});
    return false;
  };
  lock_.reset();
  try {
    begin();
  } catch (const NoPermission& e) {
    return tell_once(e);
  } catch (const MachineError& e) {
    return tell_once(e);
  } catch (const UserError& e) {
    fail_user("the .lock of {} was deleted under the run, which cannot go on there: {}", folder, e.what());
  }
  told_of_loss_ = false;
  tell(Warning{
      gone ? fmt::format("{} was deleted or moved under the run: it is made anew and the run is saved there now; "
                         "its metrics and events go on with the next --resume",
                         folder)
           : fmt::format("the .lock of {} was deleted under the run: it is locked again", folder)});
  return gone;
}

void RunFolder::save(model::Engine& engine, const RunState& state, double began) {
  tell(BeforeCheckpoint{});
  const config::Config& config = options_.config;
  save_checkpoint(files_, checkpoints_, engine, config, state);
  io::prune_checkpoints(files_, checkpoints_, config.checkpoint.keep, config.checkpoint.keep_every, state.step);
  tell(Saved{state.step, checkpoints_ / io::checkpoint_name(state.step), steady_seconds() - began});
}

}  // namespace redline::train
