// Holds a run folder's configuration against the one asked for, and keeps what the run leaves in it.
#include "train/run_folder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/words.h"
#include "config/load.h"
#include "config/toml.h"
#include "io/checkpoint_folder.h"
#include "model/family.h"
#include "train/rank_folder.h"

namespace redline::train {
namespace {

constexpr double kBetweenLooks = 1, kJump = 10;  // seconds

struct FolderTaken : UserError {
  using UserError::UserError;
};

void tell_observers(const TrainOptions& options, const Event& event) {
  for (Observer* o : options.observers) o->on(event);
}

Path checkpoints_of(const Path& folder) { return folder / kCheckpoints; }

config::Config read_config(FileSystem& files, const Path& path) {
  return config::parse(read_at_most(files, path, config::kMostTomlBytes), path.string(), model::settle_family);
}

// The newest checkpoint, or the one of that step, of which all but the tensors is whole: its copy of the configuration
// is as it was written.
std::optional<Path> newest_checkpoint(FileSystem& files, const Path& run, std::optional<std::int64_t> only = {}) {
  const auto found = io::newest_whole_checkpoint(
      files, checkpoints_of(run), [](const io::SkippedCheckpoint&) {}, [](const io::FoundCheckpoint&) { return ""; },
      only);
  return found ? std::optional(found->folder) : std::nullopt;
}

// Whether what the run's config.toml says need not be what the run wrote.
bool doubted(const TrainOptions& options, FileSystem& files) {
  const Path path = options.folder / kRunConfig;
  return options.own_config && files.exists(path) && !is_sealed(files.read(path));
}

// Of --from-step: a run keeps few of its checkpoints.
void require_step_kept(const TrainOptions& options, FileSystem& files) {
  if (!options.from_step) return;
  std::vector<std::int64_t> steps;
  for (const io::FoundCheckpoint& c : io::list_checkpoints(files, checkpoints_of(options.folder)))
    steps.insert(steps.begin(), c.step);
  if (std::ranges::find(steps, *options.from_step) != steps.end()) return;
  fail_user(
      "--from-step {}: {} keeps no checkpoint of that step; {}", *options.from_step, options.folder.string(),
      steps.empty() ? std::string("it has none") : fmt::format("it has those of steps {}", fmt::join(steps, ", ")));
}

// The checkpoint's copy says what the run was made with. Checkpoints of other programs have none.
SettingChanges compare_with(const Path& where, const TrainOptions& options, FileSystem& files) {
  if (!files.exists(where / kRunConfig)) return {};
  return compare_settings(read_config(files, where / kRunConfig), where, options, doubted(options, files));
}

}  // namespace

std::optional<config::Config> config_of_checkpoint(FileSystem& files, const Path& checkpoint) {
  if (!files.exists(checkpoint / kRunConfig)) return {};
  return read_config(files, checkpoint / kRunConfig);
}

GuardState counted_anew(const RunState& state) {
  return {.drawn = state.step, .skipped = state.guard.skipped, .rollbacks = state.guard.rollbacks};
}

bool holds_run(FileSystem& files, const Path& folder) {
  return files.exists(folder / kRunConfig) || files.exists(folder / "metrics.jsonl") ||
         !files.list(checkpoints_of(folder)).empty();
}

config::Config read_run_config(FileSystem& files, const Path& folder) {
  const Path path = folder / kRunConfig;
  if (!files.exists(path)) {
    if (const std::optional<Path> checkpoint = newest_checkpoint(files, folder))
      fail_user("{} holds a run without its {}; put the copy of its newest checkpoint in its place: {}",
                folder.string(), kRunConfig, (*checkpoint / kRunConfig).string());
    fail_user("{} holds no run (no {}); give the configuration, or another --out", folder.string(), kRunConfig);
  }
  try {
    return read_config(files, path);
  } catch (const NoPermission&) {
    throw;
  } catch (const UserError& e) {
    const std::optional<Path> checkpoint = newest_checkpoint(files, folder);
    fail_user("{} cannot be used ({}); {}", path.string(), e.what(),
              checkpoint ? fmt::format("put its copy in its place: {}", (*checkpoint / kRunConfig).string())
                         : "no checkpoint holds a copy of it: give the configuration that the run was started with");
  }
}

void check_folder(const TrainOptions& options, FileSystem& files) {
  require_step_kept(options, files);
  if (!holds_run(files, options.folder)) return;
  if (!options.resume)
    fail_user("{} already holds a run; continue it with --resume, or choose another --out", options.folder.string());
  require_data_there(options.config.data);
  if (const std::optional<Path> checkpoint = newest_checkpoint(files, options.folder, options.from_step)) {
    compare_with(*checkpoint, options, files);
  } else if (files.exists(options.folder / kRunConfig)) {  // else it was stopped before it had begun
    const config::Config before = read_run_config(files, options.folder);
    for (const std::string& told : compare_settings(before, options.folder, options, false).told)
      tell_observers(options, Note{told});
    if (doubted(options, files))
      tell_observers(options,
                     Warning{fmt::format("{} is not as the run wrote it, and there is no checkpoint to hold it "
                                         "against: the run begins with what it says",
                                         (options.folder / kRunConfig).string())});
  }
}

RunFolder::RunFolder(const TrainOptions& options, FileSystem& files)
    : options_(options), files_(files), checkpoints_(checkpoints_of(options.folder)) {
  check_folder(options, files);
}

void RunFolder::tell(const Event& event) { tell_observers(options_, event); }

std::optional<Path> RunFolder::resume(StepLoop& loop) {
  if (!options_.resume) return std::nullopt;
  // Before the newest is chosen: the process that made the run may still be saving it.
  if (!options_.dry_run && holds_run(files_, options_.folder)) lock();
  std::string newest_problem;
  const auto damaged = [&](const io::SkippedCheckpoint& passed) {
    if (newest_problem.empty()) newest_problem = passed.problem;
    tell(Warning{io::in_words(passed)});
  };
  const auto use = [&](const io::FoundCheckpoint& c) { return take_up(c.folder, loop); };
  const std::optional<io::FoundCheckpoint> found =
      io::newest_whole_checkpoint(files_, checkpoints_, damaged, use, options_.from_step);
  if (found) return found->folder;
  if (others()) others()->broadcast(TakenUp{}.words());
  if (options_.from_step)
    fail_user("--from-step {}: that checkpoint cannot be used ({}); take another, or none for the newest whole one",
              *options_.from_step, newest_problem);
  if (!newest_problem.empty())
    fail_user("none of the checkpoints in {} can be used ({}); move that folder away to start from the beginning",
              checkpoints_.string(), newest_problem);
  return std::nullopt;
}

// The run stands where the checkpoint left it, unless what is returned says what is wrong with it. Then the next one
// takes the place of all that was loaded.
std::string RunFolder::take_up(const Path& checkpoint, StepLoop& loop) {
  if (std::string problem = missing_from_checkpoint(files_, checkpoint, loop.lowered().state); !problem.empty())
    return problem;
  const Restored as = restore(checkpoint, loop);
  if (!others()) return load(checkpoint, loop);
  others()->broadcast(TakenUp{checkpoint.string(), as.new_order, as.other_batches}.words());
  return agree_on(*others(), load(checkpoint, loop));
}

std::string RunFolder::load(const Path& checkpoint, StepLoop& loop) {
  if (!loop.trains()) return io::checkpoint_problem(files_, checkpoint, loop.tell_loading());
  lock();
  loop.make_engine();
  try {
    const std::optional<config::Config> before = config_of_checkpoint(files_, checkpoint);
    loop.load_checkpoint(checkpoint, before ? &*before : nullptr);
    return {};
  } catch (const std::exception&) {
    // Changed bytes can look wrong in many ways before the hash is known: what the manifest says is what to tell. Where
    // it has nothing to say the checkpoint is whole and does not fit this run, or the device failed.
    std::string problem = io::checkpoint_problem(files_, checkpoint, loop.tell_loading());
    if (problem.empty()) throw;
    return problem;
  }
}

// The configuration may have another batch or other data than the checkpoint, where that is allowed. Every change is
// told, with its effect on the state.
RunFolder::Restored RunFolder::restore(const Path& checkpoint, StepLoop& loop) {
  const SettingChanges changes = compare_with(checkpoint, options_, files_);
  RunState state = read_run_state(files_, checkpoint);
  if (state.guard.good && !files_.exists(checkpoints_ / io::checkpoint_name(*state.guard.good)))
    state.guard.good.reset();
  bool anew = loop.data_are_others(state, checkpoint) || changes.new_order;
  for (const std::string& told : changes.told) tell(Note{told});
  if (changes.allowed) state.guard = counted_anew(state);
  if (!anew) try {
      state.loader = read_loader_state(files_, checkpoint);
      loop.restore(state);
    } catch (const UserError& e) {
      if (!options_.allow_change)
        fail_user("{}; --allow-change goes on with the order of the data begun anew", e.what());
      tell(Note{e.what()});
      anew = true;
    }
  if (anew) {
    state.loader = {};
    state.guard = counted_anew(state);
    loop.restore(state);
  }
  if (anew || changes.allowed)
    tell(Note{fmt::format("kept: parameters, moments, step {} and its {}{}", state.step, counted(state.tokens, "token"),
                          anew ? "; begun anew: the order of the data" : ", and the place in the data")});
  if (files_.exists(checkpoint / kRunConfig)) {
    const config::Config before = read_config(files_, checkpoint / kRunConfig);
    const std::string told = schedule_change(before, options_.config, state.step, loop.batches_of_epoch());
    if (!told.empty()) tell(Note{told});
  }
  return {anew, changes.allowed};
}

void RunFolder::begin(const data::Corpus& documents) {
  tokens_ = run_tokens(files_, options_.config, documents);
  make();
  if (others()) require_shared_folder(options_, files_);
  if (options_.from_step) leave_after(*options_.from_step);
}

void RunFolder::leave_tidy() {
  try {
    io::clean_leftovers(files_, checkpoints_);
  } catch (const std::exception& e) {
    tell(Warning{fmt::format("what a kill left in {} stays: {}", checkpoints_.string(), e.what())});
  }
}

void RunFolder::leave_after(std::int64_t step) {
  const std::vector<std::int64_t> left = io::leave_checkpoints_after(files_, checkpoints_, step);
  if (left.empty()) return;
  tell(
      Note{fmt::format("the run goes on from step {}: newer checkpoints ({} {}) are called step_N.left from here on, "
                       "and each goes once the run has saved that step or a later one again",
                       step, left.size() == 1 ? "step" : "steps", fmt::join(left, ", "))});
}

std::optional<RunState> RunFolder::go_back(StepLoop& loop, std::int64_t step) {
  if (saving_.valid()) collect(false);
  // A save that failed was told; the one before it is as good.
  while (step > 0 && !files_.exists(checkpoints_ / io::checkpoint_name(step))) {
    const std::vector<io::FoundCheckpoint> found = io::list_checkpoints(files_, checkpoints_);
    const auto older = std::ranges::find_if(found, [&](const io::FoundCheckpoint& c) { return c.step < step; });
    step = older == found.end() ? 0 : older->step;
  }
  const Path checkpoint = checkpoints_ / io::checkpoint_name(step);
  if (others()) others()->broadcast(TakenUp{step == 0 ? "" : checkpoint.string()}.words());
  if (step == 0) return {};
  RunState state = read_run_state(files_, checkpoint);
  state.loader = read_loader_state(files_, checkpoint);
  const config::Config before = read_config(files_, checkpoint / kRunConfig);
  loop.load_checkpoint(checkpoint, &before);
  leave_after(step);
  return state;
}

// A second process that trained into the folder would mix its rows and checkpoints with this one's.
void RunFolder::lock() {
  if (lock_) return;
  const Path file = options_.folder / ".lock";
  lock_.emplace(file, io::FileLock::IfBusy::leave);
  if (lock_->held()) return;
  if (lock_->busy()) {
    lock_.reset();
    throw FolderTaken(
        fmt::format("{}: another process is training into this folder; wait for it, stop it, or choose another --out",
                    options_.folder.string()));
  }
  log::warn("{} cannot be locked ({}): nothing keeps a second run out of this folder", file.string(),
            std::strerror(lock_->why_not()));
}

void RunFolder::make() {
  files_.create_folders(options_.folder);
  lock();
  if (!options_.resume && !begun_) check_folder(options_, files_);  // another may have begun while this one loaded
  const std::string text = sealed_text(as_kept(options_.config));
  const Path path = options_.folder / kRunConfig;
  if (!files_.exists(path) || files_.read(path) != text) files_.replace(path, text);
  keep_tokenizer(files_, options_.folder, tokens_.files);
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
  return made_anew();
}

bool RunFolder::made_anew() {
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
  if (saving_.valid()) saving_.wait();  // what is made anew is cleaned of leftovers first
  lock_.reset();
  try {
    make();
  } catch (const FolderTaken& e) {
    fail_user("the .lock of {} was deleted under the run, which cannot go on there: {}", folder, e.what());
  } catch (const std::exception& e) {
    return tell_once(e);
  }
  told_of_loss_ = false;
  tell(Warning{
      gone ? fmt::format("{} was deleted or moved under the run: it is made anew and the run is saved there now; "
                         "its metrics and events go on with the next --resume",
                         folder)
           : fmt::format("the .lock of {} was deleted under the run: it is locked again", folder)});
  return gone;
}

}  // namespace redline::train
