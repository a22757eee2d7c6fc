// A marker file stands in the folder from before the first shard until after the manifest.
#include "data/shards/output_folder.h"

#include <filesystem>

#include "base/error.h"
#include "data/shards/manifest.h"
#include "data/shards/writer.h"
#include "io/work_marker.h"

namespace redline::data {
namespace {

constexpr std::string_view kFormat = "redline-preparing";

// The files that a run makes; a name that is none of them was made by somebody else.
bool is_ours(std::string_view name) {
  if (name.ends_with(".partial")) name.remove_suffix(8);
  constexpr std::string_view kOwn[] = {kPreparingFile, kManifestFile, "tokenizer.json", "tokenizer.model",
                                       "tokenizer_config.json"};
  for (const std::string_view own : kOwn)
    if (name == own) return true;
  return is_shard_name(name);
}

}  // namespace

OutputFolder::OutputFolder(FileSystem& files, Path folder) : files_(files), folder_(std::move(folder)) {
  std::error_code ignored;
  if (files_.exists(folder_) && !std::filesystem::is_directory(folder_, ignored))
    fail_user("--out {}: not a folder", folder_.string());
  files_.create_folders(parent_of(folder_));
  const io::ClaimLock lock(folder_);
  if (files_.exists(folder_ / kManifestFile))
    fail_user("--out {}: already holds prepared data; name another folder, or remove this one", folder_.string());
  const std::vector<std::string> names = files_.list(folder_);
  const bool marked = files_.exists(folder_ / kPreparingFile);
  const bool just_begun = names.size() == 1 && names[0] == std::string(kPreparingFile) + ".partial";
  for (const std::string& name : names)
    if (!(marked || just_begun) || !is_ours(name))
      fail_user("--out {}: holds {}, which is not of an interrupted run; name an empty or new folder", folder_.string(),
                name);
  if (marked)
    io::refuse_running(files_, folder_ / kPreparingFile, kFormat, "--out " + folder_.string(), "preparing data");
  created_ = !files_.exists(folder_);
  try {
    if (!names.empty()) {
      started_over_ = true;
      remove_ours();
    }
    files_.create_folders(folder_);
    files_.replace(folder_ / kPreparingFile, io::work_marker(kFormat));
  } catch (...) {
    clean_up();
    throw;
  }
}

// The marker goes last, so that what is interrupted here is still known to be ours.
void OutputFolder::remove_ours() {
  for (const std::string& name : files_.list(folder_))
    if (is_ours(name) && name != kPreparingFile) files_.remove_all(folder_ / name);
  if (files_.exists(folder_ / kPreparingFile)) files_.remove_all(folder_ / kPreparingFile);
}

void OutputFolder::complete(std::string_view manifest) {
  files_.sync_folder(folder_);  // the shards' names before the manifest's
  const io::ClaimLock lock(folder_);
  files_.replace(folder_ / kManifestFile, manifest);
  whole_ = true;
  files_.remove_all(folder_ / kPreparingFile);
  files_.sync_folder(folder_);
}

void OutputFolder::clean_up() noexcept {
  try {
    remove_ours();
    std::error_code not_empty;
    if (created_) std::filesystem::remove(folder_, not_empty);
  } catch (const std::exception&) {  // the marker stays, and the next run removes the rest
  }
}

OutputFolder::~OutputFolder() {
  if (whole_) return;
  const io::ClaimLock lock(folder_);
  clean_up();
}

}  // namespace redline::data
