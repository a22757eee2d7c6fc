// Holds a run folder's configuration against the one asked for, and keeps what the run leaves in it.
#include "train/run_folder.h"

#include "base/clock.h"
#include "base/counted.h"
#include "config/load.h"
#include "io/checkpoint_folder.h"
#include "model/family.h"

namespace redline::train {
namespace {

void tell_observers(const TrainOptions& options, const Event& event) {
  for (Observer* o : options.observers) o->on(event);
}

Path checkpoints_of(const Path& folder) { return folder / "checkpoints"; }

config::Config read_config(FileSystem& files, const Path& path) {
  return config::parse(files.read(path), path.string(), model::settle_family);
}

// The newest checkpoint of which all but the tensors is whole: its copy of the configuration is as it was written.
std::optional<Path> newest_checkpoint(FileSystem& files, const Path& run) {
  const auto found = io::newest_whole_checkpoint(
      files, checkpoints_of(run), [](const io::PassedOver&) {}, [](const io::FoundCheckpoint&) { return ""; });
  return found ? std::optional(found->folder) : std::nullopt;
}

// Whether what the run's config.toml says need not be what the run wrote.
bool doubted(const TrainOptions& options, FileSystem& files) {
  const Path path = options.folder / kRunConfig;
  return options.own_config && files.exists(path) && !is_sealed(files.read(path));
}

// The checkpoint's copy says what the run was made with. Checkpoints of other programs have none.
SettingChanges compare_with(const Path& where, const TrainOptions& options, FileSystem& files) {
  if (!files.exists(where / kRunConfig)) return {};
  return compare_settings(read_config(files, where / kRunConfig), where, options, doubted(options, files));
}

}  // namespace

bool holds_run(FileSystem& files, const Path& folder) {
  return files.exists(folder / kRunConfig) || files.exists(folder / "metrics.jsonl") ||
         !files.list(checkpoints_of(folder)).empty();
}

config::Config read_run_config(FileSystem& files, const Path& folder) {
  const Path path = folder / kRunConfig;
  if (!files.exists(path))
    fail_user("{} holds no run (no {}); give the configuration, or another --out", folder.string(), kRunConfig);
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
  if (!holds_run(files, options.folder)) return;
  if (!options.resume)
    fail_user("{} already holds a run; continue it with --resume, or choose another --out", options.folder.string());
  require_data_there(options.config.data);
  if (const std::optional<Path> checkpoint = newest_checkpoint(files, options.folder)) {
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
  std::string newest_problem;
  const auto damaged = [&](const io::PassedOver& passed) {
    if (newest_problem.empty()) newest_problem = passed.problem;
    tell(Warning{io::in_words(passed)});
  };
  const auto use = [&](const io::FoundCheckpoint& c) { return take_up(c.folder, loop); };
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
  restore(checkpoint, loop);
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

// What is asked for may be another batch or other data than the checkpoint's, where that is allowed. All of it is told:
// what changes, and what becomes of the state.
void RunFolder::restore(const Path& checkpoint, StepLoop& loop) {
  const SettingChanges changes = compare_with(checkpoint, options_, files_);
  RunState state = read_run_state(files_, checkpoint);
  bool anew = loop.data_are_others(state, checkpoint) || changes.new_order;
  for (const std::string& told : changes.told) tell(Note{told});
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
    loop.restore(state);
  }
  if (anew || changes.allowed)
    tell(Note{fmt::format("kept: parameters, moments, step {} and its {}{}", state.step, counted(state.tokens, "token"),
                          anew ? "; begun anew: the order of the data" : ", and the place in the data")});
  if (files_.exists(checkpoint / kRunConfig)) {
    const config::Config before = read_config(files_, checkpoint / kRunConfig);
    if (std::string told = schedule_change(before, options_.config, state.step); !told.empty()) tell(Note{told});
  }
}

void RunFolder::begin() {
  files_.create_folders(options_.folder);
  if (!lock_) lock_.emplace(options_.folder);
  if (!options_.resume) check_folder(options_, files_);  // another may have begun while this one loaded
  const std::string text = sealed_text(as_kept(options_.config));
  const Path path = options_.folder / kRunConfig;
  if (!files_.exists(path) || files_.read(path) != text) files_.replace(path, text);
  io::prepare_checkpoints(files_, checkpoints_);
}

void RunFolder::save(model::Engine& engine, const RunState& state, double began) {
  tell(BeforeCheckpoint{});
  const config::Config config = as_kept(options_.config);
  save_checkpoint(files_, checkpoints_, engine, config, state);
  io::prune_checkpoints(files_, checkpoints_, config.checkpoint.keep, config.checkpoint.keep_every, state.step);
  tell(Saved{state.step, checkpoints_ / io::checkpoint_name(state.step), steady_seconds() - began});
}

}  // namespace redline::train
