// Checkpoints on the disk: the order of writes, syncs and renames that never leaves a run without a whole one.
#include "io/checkpoint_folder.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "io/best_checkpoint.h"
#include "io/json.h"
#include "io/weight_files.h"

namespace redline::io {
namespace {

constexpr std::string_view kPrefix = "step_", kPartial = ".partial", kReplaced = ".replaced", kLeft = ".left";
constexpr std::int64_t kFormat = 1;

Path beside(const Path& folder, std::string_view suffix) {
  Path result = folder;
  result += suffix;
  return result;
}

// For steps whose failure loses nothing: what they leave is cleaned up by the next write.
template <class Step>
void attempt(const Step& step) {
  try {
    step();
  } catch (const std::exception&) {
  }
}

// Removes in a way that a crash leaves no half-empty folder under a checkpoint's name.
void discard(FileSystem& files, const Path& folder) {
  const Path doomed = beside(folder, kPartial);
  files.remove_all(doomed);
  files.rename(folder, doomed);
  files.remove_all(doomed);
}

struct ManifestFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::string hash;
};

struct Manifest {
  std::int64_t step = 0;
  std::vector<ManifestFile> files;
};

// UserError when the manifest is not one of ours.
Manifest read_manifest(FileSystem& files, const Path& folder) {
  const Path path = folder / kManifest;
  const std::string where = path.string();
  const Json manifest = read_json(files, path);
  if (const std::int64_t format = integer_at(manifest, "format", where); format != kFormat) {
    fail_user("{}: its format is {}, this redline knows {}", where, format, kFormat);
  }
  const auto entries = manifest.find("files");
  if (entries == manifest.end() || !entries->is_object()) fail_user("{}: \"files\" is missing or not an object", where);
  Manifest result{integer_at(manifest, "step", where), {}};
  for (const auto& [name, entry] : entries->items()) {
    // A name must stay inside the folder, whoever wrote the manifest.
    if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string("/\0", 2)) != name.npos) {
      fail_user("{}: {} is not the name of a file in this folder", where, in_quotes(name));
    }
    const std::int64_t bytes = integer_at(entry, "bytes", where);
    if (bytes < 0) fail_user("{}: {} has a negative size", where, in_quotes(name));
    result.files.push_back({name, static_cast<std::uint64_t>(bytes), string_at(entry, "xxh3", where)});
  }
  return result;
}

// Somebody gave a checkpoint the name of another step: it would pass for what it is not.
bool is_renamed(const Path& folder, const Manifest& manifest) {
  return checkpoint_step(folder.filename().string()).value_or(manifest.step) != manifest.step;
}

// `read`: bytes of all files so far.
std::uint64_t hash_of_file(FileSystem& files, const Path& path, std::uint64_t& read, std::uint64_t all,
                           const ReadingProgress& progress) {
  Hasher hasher;
  files.read_pieces(path, [&](std::span<const std::byte> piece) {
    hasher.update(piece);
    read += piece.size();
    if (progress) progress(read, all);
  });
  return hasher.digest();
}

enum class Reading { sizes, all_but_tensors, every_byte };

std::string problem_of(FileSystem& files, const Path& folder, Reading reading, const ReadingProgress& progress = {}) {
  try {
    if (!files.exists(folder)) return fmt::format("{}: there is no such folder", folder.string());
    if (!files.exists(folder / kManifest)) return fmt::format("{} is missing", (folder / kManifest).string());
    const Manifest manifest = read_manifest(files, folder);
    if (is_renamed(folder, manifest))
      return fmt::format("{} is the checkpoint of step {} under another name; name it {} again, or move it away",
                         folder.string(), manifest.step, checkpoint_name(manifest.step));
    const std::vector<ManifestFile>& promised = manifest.files;
    if (promised.empty()) return fmt::format("{} names no file", (folder / kManifest).string());
    std::uint64_t read = 0, all = 0;
    for (const ManifestFile& file : promised) all += file.bytes;
    if (progress) progress(0, all);
    for (const ManifestFile& file : promised) {
      const Path path = folder / file.name;
      if (!files.exists(path)) return fmt::format("{} is missing", path.string());
      if (const std::uint64_t size = files.size(path); size != file.bytes) {
        return fmt::format("{} is {}: {}, the manifest says {}", path.string(),
                           size < file.bytes ? "truncated" : "longer than it was written", counted(size, "byte"),
                           file.bytes);
      }
      const bool hashed = reading == Reading::every_byte ||
                          (reading == Reading::all_but_tensors && !file.name.ends_with(".safetensors"));
      if (hashed && hex64(hash_of_file(files, path, read, all, progress)) != file.hash) {
        return fmt::format("{} has changed: its hash is not the one in the manifest", path.string());
      }
    }
    return {};
  } catch (const NoPermission&) {  // passed over as damaged, it would be written anew by a run that goes on
    throw;
  } catch (const UserError& e) {  // the manifest is broken
    return e.what();
  } catch (const MachineError& e) {  // a file cannot be read: as bad as a changed one
    return e.what();
  }
}

// Gives `partial` its final name; an older folder of that name steps aside first, and is still found if we end here.
void put_in_place(FileSystem& files, const Path& parent, const Path& partial, const Path& final_folder) {
  const Path replaced = beside(final_folder, kReplaced);
  const bool replaces = files.exists(final_folder);
  if (replaces) files.rename(final_folder, replaced);
  files.rename(partial, final_folder);
  files.sync_folder(parent);
  if (replaces) attempt([&] { discard(files, replaced); });
}

std::optional<FoundCheckpoint> newest_but(FileSystem& files, const Path& parent, const std::set<Path>& tried,
                                          std::optional<std::int64_t> only) {
  for (const FoundCheckpoint& checkpoint : list_checkpoints(files, parent))
    if (!tried.contains(checkpoint.folder) && checkpoint.step == only.value_or(checkpoint.step)) return checkpoint;
  return {};
}

std::optional<FoundCheckpoint> newest_without_problem(FileSystem& files, const Path& parent, Reading reading,
                                                      const Damaged& damaged, const UseCheckpoint& use = {},
                                                      std::optional<std::int64_t> only = {}) {
  std::set<Path> tried;
  for (;;) {
    // Anew each time: a run that goes on meanwhile writes newer ones, and drops what was just looked at.
    const std::optional<FoundCheckpoint> next = newest_but(files, parent, tried, only);
    if (!next) return {};
    const FoundCheckpoint& checkpoint = *next;
    tried.insert(checkpoint.folder);
    const auto dropped = [&] {
      return std::ranges::none_of(list_checkpoints(files, parent),
                                  [&](const auto& c) { return c.folder == checkpoint.folder; });
    };
    std::string problem = problem_of(files, checkpoint.folder, reading);
    try {
      if (problem.empty() && use) problem = use(checkpoint);
    } catch (const UserError& e) {
      if (!dropped()) throw;
      problem = e.what();
    } catch (const MachineError& e) {
      if (!dropped()) throw;
      problem = e.what();
    }
    if (problem.empty()) return checkpoint;
    if (!dropped()) damaged({checkpoint, problem, newest_but(files, parent, tried, only)});
  }
}

}  // namespace

std::string checkpoint_name(std::int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

std::optional<std::int64_t> checkpoint_step(std::string_view name) {
  if (!name.starts_with(kPrefix)) return {};
  const std::string_view digits = name.substr(kPrefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size()) return {};
  if (step < 0 || checkpoint_name(step) != name) return {};  // "step_7" and "step_-0000007" are not ours
  return step;
}

void write_manifest(FileSystem& files, const Path& folder, std::int64_t step,
                    const std::map<std::string, std::uint64_t>& hashes) {
  Json entries = Json::object();
  for (const auto& [name, hash] : hashes) {
    REDLINE_CHECK(name != kManifest && files.exists(folder / name),
                  "a checkpoint names the file {}, which is not in {}", name, folder.string());
    // Synced here once more, whatever `fill` did: a sync of clean pages costs nothing.
    const std::unique_ptr<FileWriter> written = files.append(folder / name);
    written->sync();
    written->close();
    entries[name] = {{"bytes", files.size(folder / name)}, {"xxh3", hex64(hash)}};
  }
  const Json manifest = {{"format", kFormat}, {"step", step}, {"files", std::move(entries)}};
  const std::unique_ptr<FileWriter> writer = files.create(folder / kManifest);
  writer->write(manifest.dump(2) + "\n");
  writer->sync();
  writer->close();
  files.sync_folder(folder);
}

void clean_leftovers(FileSystem& files, const Path& parent) {
  for (const std::string& name : files.list(parent)) {
    if (!name.starts_with(kPrefix)) continue;
    if (name.ends_with(kPartial)) {
      files.remove_all(parent / name);
    } else if (name.ends_with(kReplaced)) {
      const Path final_folder = parent / name.substr(0, name.size() - kReplaced.size());
      if (files.exists(final_folder)) {
        discard(files, parent / name);
      } else {
        files.rename(parent / name, final_folder);
        files.sync_folder(parent);
      }
    }
  }
}

void prepare_checkpoints(FileSystem& files, const Path& parent) {
  const Path probe = beside(parent / checkpoint_name(0), kPartial);
  files.create_folders(parent);
  clean_leftovers(files, parent);
  files.create_folders(probe);
  files.remove_all(probe);
}

void write_checkpoint(FileSystem& files, const Path& parent, std::int64_t step,
                      const std::function<std::map<std::string, std::uint64_t>(const Path& folder)>& fill) {
  const Path final_folder = parent / checkpoint_name(step);
  const Path partial = beside(final_folder, kPartial);
  files.create_folders(parent);
  clean_leftovers(files, parent);
  try {
    files.create_folders(partial);
    write_manifest(files, partial, step, fill(partial));
    if (const std::string problem = checkpoint_problem(files, partial); !problem.empty()) {
      fail_machine("the checkpoint of step {} does not read back as it was written: {}", step, problem);
    }
    put_in_place(files, parent, partial, final_folder);
  } catch (...) {
    attempt([&] { files.remove_all(partial); });  // gives its room back on a full disk
    throw;
  }
}

std::string checkpoint_problem(FileSystem& files, const Path& folder, const ReadingProgress& progress) {
  return problem_of(files, folder, Reading::every_byte, progress);
}

std::map<std::string, std::string> checkpoint_hashes(FileSystem& files, const Path& folder) {
  std::map<std::string, std::string> hashes;
  if (!files.exists(folder / kManifest)) return hashes;
  for (const ManifestFile& file : read_manifest(files, folder).files) hashes.emplace(file.name, file.hash);
  return hashes;
}

std::vector<FoundCheckpoint> list_checkpoints(FileSystem& files, const Path& parent) {
  std::map<std::int64_t, Path, std::greater<>> found;
  for (const std::string& name : files.list(parent)) {  // sorted: step_N comes before step_N.replaced
    std::string_view plain = name;
    if (plain.ends_with(kReplaced)) plain.remove_suffix(kReplaced.size());
    if (const std::optional<std::int64_t> step = checkpoint_step(plain)) found.emplace(*step, parent / name);
  }
  std::vector<FoundCheckpoint> result;
  for (const auto& [step, folder] : found) result.push_back({step, folder});
  return result;
}

std::string in_words(const PassedOver& p) {
  return fmt::format("the checkpoint of step {} is damaged: {}{}", p.checkpoint.step, p.problem,
                     p.instead ? fmt::format("; that of step {} is taken instead", p.instead->step) : "");
}

std::optional<FoundCheckpoint> newest_whole_checkpoint(FileSystem& files, const Path& parent, const Damaged& damaged,
                                                       const UseCheckpoint& use, std::optional<std::int64_t> only) {
  return newest_without_problem(files, parent, use ? Reading::all_but_tensors : Reading::every_byte, damaged, use,
                                only);
}

std::vector<std::int64_t> leave_checkpoints_after(FileSystem& files, const Path& parent, std::int64_t step) {
  clean_leftovers(files, parent);
  std::vector<std::int64_t> left;
  for (const FoundCheckpoint& checkpoint : list_checkpoints(files, parent)) {
    if (checkpoint.step <= step) continue;
    const Path name = beside(checkpoint.folder, kLeft);
    if (files.exists(name)) discard(files, name);
    files.rename(checkpoint.folder, name);
    left.insert(left.begin(), checkpoint.step);
  }
  if (!left.empty()) files.sync_folder(parent);
  return left;
}

void prune_checkpoints(FileSystem& files, const Path& parent, std::int64_t keep, std::int64_t keep_every,
                       std::int64_t written, std::set<std::int64_t> stay) {
  clean_leftovers(files, parent);
  for (const std::string& name : files.list(parent))
    if (name.ends_with(kLeft))
      if (const auto step = checkpoint_step(std::string_view(name).substr(0, name.size() - kLeft.size()));
          step && *step <= written)
        discard(files, parent / name);
  // After a resume from an older checkpoint, the newest by number may be damaged ones: they must not
  // push out the whole.
  const std::vector<FoundCheckpoint> found = list_checkpoints(files, parent);
  std::int64_t kept = 0;
  bool whole_one_kept = false;
  if (const std::optional<std::int64_t> best = best_checkpoint(parent)) stay.insert(*best);
  for (const FoundCheckpoint& checkpoint : found) {
    bool renamed = false;
    attempt([&] { renamed = is_renamed(checkpoint.folder, read_manifest(files, checkpoint.folder)); });
    if (renamed) stay.insert(checkpoint.step);  // whoever did that wants it
    const bool counts = problem_of(files, checkpoint.folder, Reading::sizes).empty();
    const bool for_good = keep_every > 0 && checkpoint.step % keep_every == 0;
    const bool is_written = checkpoint.step == written;
    if (counts && (kept < std::max<std::int64_t>(keep, 1) || !whole_one_kept)) {
      whole_one_kept =
          whole_one_kept || is_written || (written < 0 && checkpoint_problem(files, checkpoint.folder).empty());
      ++kept;
      stay.insert(checkpoint.step);
    } else if (for_good || is_written) {
      stay.insert(checkpoint.step);
    }
  }
  for (const FoundCheckpoint& checkpoint : found) {
    if (!stay.contains(checkpoint.step)) discard(files, checkpoint.folder);
  }
}

Path find_weights_folder(FileSystem& files, const Path& given, const UseWeights& use) {
  const Path argument = without_best(given);
  const std::string shown = argument.string();
  if (!files.exists(argument)) fail_user("{}: there is no such folder", shown);
  const auto problem_in_use = [&](const Path& folder) -> std::string {
    if (!has_weights(files, folder))
      return fmt::format("{}: this checkpoint holds no {}", folder.string(), kWeightsFile);
    try {
      if (use) use(folder);
      return {};
    } catch (const DamagedWeights& e) {
      return e.what();
    }
  };
  if (files.exists(argument / "checkpoints")) {
    const auto warn = [&](const PassedOver& passed) {
      if (use) log::warn("{}", in_words(passed));
    };
    const Path parent = argument / "checkpoints";
    const std::optional<FoundCheckpoint> newest =
        newest_without_problem(files, parent, Reading::all_but_tensors, warn,
                               [&](const FoundCheckpoint& checkpoint) { return problem_in_use(checkpoint.folder); });
    if (!newest) fail_user("{}: this run holds no whole checkpoint in {}", shown, parent.string());
    return newest->folder;
  }
  const bool ours = files.exists(argument / kManifest);
  const std::string_view advice = ours ? "; take another checkpoint, or this one from a copy" : "";
  if (ours) {
    if (const std::string problem = problem_of(files, argument, Reading::all_but_tensors); !problem.empty()) {
      fail_user("{}: this checkpoint is damaged: {}{}", shown, problem, advice);
    }
  } else if (!files.exists(argument / "config.json") || !has_weights(files, argument)) {
    fail_user(
        "{}: no weights here: neither a run (checkpoints/), nor a checkpoint ({}), nor a Hugging Face folder "
        "(config.json, and {} or {})",
        shown, kManifest, kWeightsFile, kWeightsIndex);
  }
  if (const std::string problem = problem_in_use(argument); !problem.empty()) fail_user("{}{}", problem, advice);
  return argument;
}

}  // namespace redline::io
