// FOLDER.partial until all of it is on the disk.
#include "io/new_folder.h"

#include "base/error.h"
#include "base/hash.h"

namespace redline::io {
namespace {

// "a/b/" names the same folder as "a/b", and has no last name to add to.
Path without_slash(const Path& folder) {
  const Path normal = folder.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

}  // namespace

NewFolder::NewFolder(FileSystem& files, Path folder, std::string_view flag)
    : files_(files), folder_(without_slash(folder)), partial_(folder_) {
  partial_ += ".partial";
  std::error_code ignored;
  if (files_.exists(folder_) && !std::filesystem::is_directory(folder_, ignored))
    fail_user("{} {}: not a folder", flag, folder.string());
  if (const auto names = files_.list(folder_); !names.empty())
    fail_user("{} {}: the folder is not empty (it holds {}); name a new or an empty one", flag, folder.string(),
              names.front());
  files_.remove_all(partial_);
  files_.create_folders(partial_);
}

NewFolder::~NewFolder() {
  if (whole_) return;
  try {
    files_.remove_all(partial_);
  } catch (const std::exception&) {  // the next attempt removes it
  }
}

std::uint64_t NewFolder::write(std::string_view name, std::string_view text) {
  const auto file = files_.create(partial_ / name);
  file->write(text);
  file->sync();
  file->close();
  return hash64(text);
}

std::uint64_t NewFolder::copy(const Path& from, std::string_view name) {
  Hasher hasher;
  const auto file = files_.create(partial_ / name);
  files_.read_pieces(from, [&](std::span<const std::byte> piece) {
    hasher.update(piece);
    file->write(piece);
  });
  file->sync();
  file->close();
  return hasher.digest();
}

void NewFolder::complete() {
  files_.sync_folder(partial_);
  files_.rename(partial_, folder_);  // over an empty folder, if there is one
  whole_ = true;
  files_.sync_folder(folder_.has_parent_path() ? folder_.parent_path() : Path("."));
}

}  // namespace redline::io
