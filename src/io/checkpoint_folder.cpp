// Checkpoints on the disk: the order of writes, syncs and renames that never leaves a run without a whole one.
#include "io/checkpoint_folder.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/words.h"
#include "io/json.h"
#include "io/manifest.h"
#include "io/safetensors.h"

namespace redline::io {
namespace {

constexpr std::string_view kPrefix = "step_", kPartial = ".partial", kReplaced = ".replaced", kLeft = ".left";

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

// Somebody gave a checkpoint the name of another step: it would pass for what it is not.
bool is_renamed(const Path& folder, const Manifest& manifest) {
  return checkpoint_step(folder.filename().string()).value_or(manifest.step) != manifest.step;
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
        std::vector<std::size_t> missing;
        for (std::size_t s = 0; s < file.hashes.size(); ++s)
          if (file.hashes[s].end > size) missing.push_back(s);
        return fmt::format("{} is {}: {}, the manifest says {}{}", path.string(),
                           size < file.bytes ? "truncated" : "longer than it was written", counted(size, "byte"),
                           file.bytes, written_by(file.hashes, missing));
      }
      const bool hashed = reading == Reading::every_byte ||
                          (reading == Reading::all_but_tensors && !file.name.ends_with(".safetensors"));
      if (!hashed) continue;
      const auto took = [&](std::uint64_t bytes) {
        read += bytes;
        if (progress) progress(read, all);
      };
      if (const std::string problem = hash_problem(files, path, file.hashes, took); !problem.empty())
        return fmt::format("{} {}", path.string(), problem);
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

// A checkpoint that is being written: made under another name, and given its own once it has been read back.
class NewCheckpoint {
 public:
  NewCheckpoint(FileSystem& files, const Path& parent, std::int64_t step)
      : files_(files),
        parent_(parent),
        step_(step),
        final_(parent / checkpoint_name(step)),
        partial_(beside(final_, kPartial)) {}

  const Path& folder() const { return partial_; }

  void begin() {
    files_.create_folders(parent_);
    clean_leftovers(files_, parent_);
    files_.create_folders(partial_);
  }
  // The older folder of that name steps aside first, and is still found if we end here.
  template <class Hashes>
  void finish(const Hashes& hashes, Reading read_back) {
    write_manifest(files_, partial_, step_, hashes);
    if (const std::string problem = problem_of(files_, partial_, read_back); !problem.empty())
      fail_machine("the checkpoint of step {} does not read back as it was written: {}", step_, problem);
    const Path replaced = beside(final_, kReplaced);
    const bool replaces = files_.exists(final_);
    if (replaces) files_.rename(final_, replaced);
    files_.rename(partial_, final_);
    files_.sync_folder(parent_);
    if (replaces) attempt([&] { discard(files_, replaced); });
  }
  void give_up() {
    attempt([&] { files_.remove_all(partial_); });  // gives its room back on a full disk
  }

 private:
  FileSystem& files_;
  const Path& parent_;
  std::int64_t step_;
  Path final_, partial_;
};

std::string sentence_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

// The exception of a step, not thrown yet: the other ranks must hear of it first.
template <class Step>
std::exception_ptr error_of(const Step& step) {
  try {
    step();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

// The report of a rank to rank 0: the stretches that it wrote of each file, or the reason why it failed.
std::string report_of(const std::map<std::string, FileHashes>& wrote, const std::string& problem,
                      const std::string& host) {
  const auto text = [](const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); };
  if (!problem.empty()) return text({{"problem", problem}, {"host", host}});
  Json files = Json::object();
  for (const auto& [name, stretches] : wrote) {
    Json& list = files[name] = Json::array();
    for (const HashedStretch& s : stretches) list.push_back({s.begin, s.end, s.xxh3});
  }
  return text({{"files", std::move(files)}, {"host", host}});
}

// The reports of all ranks as one; a rank that failed is a MachineError that names it.
std::map<std::string, FileHashes> joined_reports(const std::vector<std::string>& reports) {
  std::map<std::string, FileHashes> all;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const Json report = parse_json(reports[rank], fmt::format("the report of rank {}", rank));
    const std::string host = report.at("host").get<std::string>();
    const std::string by = host.empty() ? "" : fmt::format("rank {} on {}", rank, host);
    if (report.contains("problem"))
      fail_machine("{}: {}", by.empty() ? fmt::format("rank {}", rank) : by, report.at("problem").get<std::string>());
    for (const auto& [name, list] : report.at("files").items())
      for (const Json& s : list)
        all[name].push_back(
            {s.at(0).get<std::uint64_t>(), s.at(1).get<std::uint64_t>(), s.at(2).get<std::string>(), by});
  }
  for (auto& [name, stretches] : all) std::ranges::sort(stretches, {}, &HashedStretch::begin);
  return all;
}

// All ranks hear what rank 0 says went wrong, if anything. One that failed itself ends with its own error.
void agree(Communicator& ranks, const std::string& problem, const std::exception_ptr& own) {
  const std::string told = ranks.broadcast(problem);
  if (own) std::rethrow_exception(own);
  if (!told.empty()) fail_machine("{}", told);
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
  NewCheckpoint checkpoint(files, parent, step);
  try {
    checkpoint.begin();
    checkpoint.finish(fill(checkpoint.folder()), Reading::every_byte);
  } catch (...) {
    checkpoint.give_up();
    throw;
  }
}

// Tensors were read back by the ranks that wrote them.
void write_checkpoint(FileSystem& files, const Path& parent, std::int64_t step, Communicator& ranks,
                      const SharedFill& fill) {
  NewCheckpoint checkpoint(files, parent, step);
  const bool first = ranks.rank() == 0;
  try {
    std::exception_ptr error;
    if (first)
      error = error_of([&] {
        checkpoint.begin();
        fill.prepare(checkpoint.folder());
      });
    agree(ranks, error ? "rank 0: " + sentence_of(error) : "", error);
    std::map<std::string, FileHashes> wrote;
    error = error_of([&] { wrote = fill.write(checkpoint.folder()); });
    const std::vector<std::string> reports =
        ranks.gather(report_of(wrote, error ? sentence_of(error) : "", ranks.host()));
    std::exception_ptr end;
    if (first) end = error_of([&] { checkpoint.finish(joined_reports(reports), Reading::all_but_tensors); });
    agree(ranks, end ? sentence_of(end) : "", error ? error : end);
  } catch (...) {
    if (first) checkpoint.give_up();
    throw;
  }
}

std::string checkpoint_problem(FileSystem& files, const Path& folder, const ReadingProgress& progress) {
  return problem_of(files, folder, Reading::every_byte, progress);
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

std::string in_words(const SkippedCheckpoint& p) {
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

// Made beside, and renamed over the old one.
std::string link_best(FileSystem& files, const Path& parent, std::int64_t step) {
  const Path link = parent / kBest, beside = parent / "best.new";
  const std::string target = checkpoint_name(step);
  const auto problem = [&](std::string_view why) {
    return fmt::format("{} cannot be made a link to the best checkpoint, which is {}: {}", link.string(), target, why);
  };
  std::error_code error;
  std::filesystem::remove(beside, error);  // what a kill left
  try {
    std::filesystem::create_symlink(target, beside, error);
    if (error) return problem(error.message());
    files.rename(beside, link);
    files.sync_folder(parent);
  } catch (const std::runtime_error& e) {
    std::filesystem::remove(beside, error);
    return problem(e.what());
  }
  return {};
}

std::optional<std::int64_t> best_checkpoint(const Path& parent) {
  std::error_code error;
  const Path target = std::filesystem::read_symlink(parent / kBest, error);
  if (error) return {};
  return checkpoint_step(target.string());
}

Path resolve_best(const Path& folder) {
  const Path parent = parent_of(folder);
  const bool named = (folder.has_filename() ? folder : folder.parent_path()).filename() == kBest;
  const std::optional<std::int64_t> step = named ? best_checkpoint(parent) : std::nullopt;
  return step ? parent / checkpoint_name(*step) : folder;
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

namespace {

// Weights as torch.save() writes them: code that runs when it is read, so that it is not.
void refuse_pickle(FileSystem& files, const Path& folder) {
  for (const std::string& name : files.list(folder)) {
    if (!name.starts_with("pytorch_model") || !(name.ends_with(".bin") || name.ends_with(".bin.index.json"))) continue;
    const std::string from = (folder.has_filename() ? folder : folder.parent_path()).string();
    fail_user(
        "{}: the weights are a pickle ({}), and redline reads safetensors; convert them once: python3 -c \"from "
        "transformers import AutoModelForCausalLM as M, AutoTokenizer as T; "
        "M.from_pretrained('{}', torch_dtype='auto').save_pretrained('{}-safetensors'); "
        "T.from_pretrained('{}').save_pretrained('{}-safetensors')\"",
        from, name, from, from, from, from);
  }
}

}  // namespace

Path find_weights_folder(FileSystem& files, const Path& given, const UseWeights& use) {
  const Path argument = resolve_best(given);
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
    const auto warn = [&](const SkippedCheckpoint& passed) {
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
    refuse_pickle(files, argument);
    for (const std::string& name : files.list(argument))
      if (name.starts_with("model-") && name.ends_with(".safetensors"))
        fail_user("{}: there are shards of weights ({}, …), but no {}, which says what each holds; get it as well",
                  shown, name, kWeightsIndex);
    fail_user(
        "{}: no weights here: neither a run (checkpoints/), nor a checkpoint ({}), nor a Hugging Face folder "
        "(config.json, and {} or {})",
        shown, kManifest, kWeightsFile, kWeightsIndex);
  }
  if (const std::string problem = problem_in_use(argument); !problem.empty()) fail_user("{}{}", problem, advice);
  return argument;
}

}  // namespace redline::io
