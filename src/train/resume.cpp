// Holds a run folder's configuration against the one asked for.
#include "train/resume.h"

#include "config/keys.h"
#include "config/load.h"
#include "io/checkpoint_folder.h"
#include "model/family.h"

namespace redline::train {
namespace {

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
    for (Observer* o : options.observers) o->note(fmt::format("resuming with {} = {} (it was {})", key, is, was));
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

std::optional<Path> resume_newest(const TrainOptions& options, FileSystem& files,
                                  const std::function<std::string(const Path& folder)>& take_up) {
  if (!options.resume) return std::nullopt;
  const Path parent = options.folder / "checkpoints";
  std::string newest_problem;
  const auto damaged = [&](const io::PassedOver& passed) {
    if (newest_problem.empty()) newest_problem = passed.problem;
    for (Observer* o : options.observers) o->warning(io::in_words(passed));
  };
  // A run that has lost its configuration is still what its checkpoints say.
  const bool lost = !files.exists(options.folder / kRunConfig);
  const auto use = [&](const io::FoundCheckpoint& c) {
    if (lost && files.exists(c.folder / kRunConfig))
      check_settings(read_run_config(files, c.folder), options, c.folder);
    return take_up(c.folder);
  };
  const std::optional<io::FoundCheckpoint> found = io::newest_whole_checkpoint(files, parent, damaged, use);
  if (found) return found->folder;
  if (!newest_problem.empty())
    fail_user("none of the checkpoints in {} can be used ({}); move that folder away to start from the beginning",
              parent.string(), newest_problem);
  return std::nullopt;
}

void write_run_config(const TrainOptions& options, FileSystem& files) {
  const std::string text = config::dump(options.config);
  const Path path = options.folder / kRunConfig;
  if (files.exists(path) && files.read(path) == text) return;
  files.create_folders(options.folder);
  files.replace(path, text);
}

}  // namespace redline::train
