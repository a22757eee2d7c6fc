// FOLDER.partial holds a marker of who writes, and what will be the folder once all of it is on the disk.
#include "io/new_folder.h"

#include <sys/stat.h>

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "io/work_marker.h"

namespace redline::io {
namespace {

constexpr std::string_view kMarker = "writing.json", kMarkerBegun = "writing.json.partial", kInner = "folder";
constexpr std::string_view kFormat = "redline-writing";

// "a/b/" names the same folder as "a/b", and has no last name to add to. A link is followed: what it names is replaced.
Path place_of(const Path& folder) {
  const Path normal = folder.lexically_normal();
  const Path named = normal.has_filename() ? normal : normal.parent_path();
  std::error_code ignored, nowhere;
  if (!std::filesystem::is_symlink(named, ignored)) return named;
  const Path there = std::filesystem::canonical(named, nowhere);
  return nowhere ? named : there;
}

bool is_mount_point(const Path& folder) {
  struct stat inner {
  }, outer{};
  return ::stat(folder.c_str(), &inner) == 0 && ::stat(parent_of(folder).c_str(), &outer) == 0 &&
         inner.st_dev != outer.st_dev;
}

}  // namespace

NewFolder::NewFolder(FileSystem& files, Path folder, std::string_view flag)
    : files_(files), folder_(place_of(folder)), partial_(folder_) {
  partial_ += ".partial";
  inner_ = partial_ / kInner;
  const std::string where = fmt::format("{} {}", flag, folder.string());
  check(where);
  files_.create_folders(parent_of(folder_));
  const ClaimLock lock(folder_);
  check(where);  // another may have completed it
  remove_leftovers(where);
  try {
    files_.create_folders(partial_);
    files_.replace(partial_ / kMarker, work_marker(kFormat));
    files_.create_folders(inner_);
  } catch (...) {
    remove_partial();
    throw;
  }
}

// What can be known before gigabytes are written.
void NewFolder::check(std::string_view where) const {
  namespace fs = std::filesystem;
  std::error_code ignored;
  for (Path at = folder_; !at.empty(); at = at.has_relative_path() ? at.parent_path() : Path())
    if (fs::exists(at, ignored)) {
      if (!fs::is_directory(at, ignored)) fail_user("{}: {} is not a folder", where, at.string());
      break;
    }
  if (const auto names = files_.list(folder_); !names.empty())
    fail_user("{}: the folder is not empty (it holds {}); name a new or an empty one", where, names.front());
  if (!files_.exists(folder_)) return;
  if (fs::equivalent(folder_, fs::current_path(ignored), ignored))
    fail_user("{}: that is the folder you are in, and it would be replaced; name another one", where);
  if (is_mount_point(folder_))
    fail_user("{}: that is a mount point, which cannot be replaced; name a folder in it", where);
}

void NewFolder::remove_leftovers(std::string_view where) {
  std::error_code ignored;
  const bool is_link = std::filesystem::is_symlink(partial_, ignored);  // to what is not ours, wherever it leads
  if (!is_link && !files_.exists(partial_)) return;
  const bool is_folder = !is_link && std::filesystem::is_directory(partial_, ignored);
  const std::vector<std::string> names = is_folder ? files_.list(partial_) : std::vector<std::string>();
  const bool marked = files_.exists(partial_ / kMarker);
  const bool ours = is_folder && std::ranges::all_of(names, [&](const std::string& name) {
                      return name == kMarker || name == kMarkerBegun || (marked && name == kInner);
                    });
  if (!ours)
    fail_user("{}: {} is in the way, and no interrupted attempt left it; move it away or name another folder", where,
              partial_.string());
  if (marked) refuse_running(files_, partial_ / kMarker, kFormat, where, "writing");
  files_.remove_all(inner_);  // the marker goes last, so that what is interrupted here is still known to be ours
  files_.remove_all(partial_);
}

void NewFolder::remove_partial() {
  try {
    files_.remove_all(inner_);
    files_.remove_all(partial_);
  } catch (const std::exception&) {  // the next attempt removes it
  }
}

NewFolder::~NewFolder() {
  if (whole_) return;
  const ClaimLock lock(folder_);
  remove_partial();
}

std::uint64_t NewFolder::write(std::string_view name, std::string_view text) {
  const auto file = files_.create(inner_ / name);
  file->write(text);
  file->sync();
  file->close();
  return hash64(text);
}

std::uint64_t NewFolder::copy(const Path& from, std::string_view name) {
  Hasher hasher;
  const auto file = files_.create(inner_ / name);
  files_.read_pieces(from, [&](std::span<const std::byte> piece) {
    hasher.update(piece);
    file->write(piece);
  });
  file->sync();
  file->close();
  return hasher.digest();
}

void NewFolder::complete() {
  files_.sync_folder(inner_);
  const ClaimLock lock(folder_);
  files_.rename(inner_, folder_);  // over an empty folder, if there is one
  whole_ = true;
  files_.sync_folder(parent_of(folder_));
  remove_partial();
}

}  // namespace redline::io
