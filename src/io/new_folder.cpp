// FOLDER.partial holds a lock of whoever writes, and what will be the folder once all of it is on the disk.
#include "io/new_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"

namespace redline::io {
namespace {

constexpr std::string_view kLock = ".lock", kInner = "folder";

// Whether a name still means the file that is locked: its holder may have removed it.
bool is_still(const Path& file, int descriptor) {
  struct stat named {
  }, held{};
  return ::stat(file.c_str(), &named) == 0 && ::fstat(descriptor, &held) == 0 && named.st_ino == held.st_ino &&
         named.st_dev == held.st_dev;
}

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

// flock(2). A process that waited for a file which its holder removed has a lock on nothing, and asks again.
FileLock::FileLock(const Path& file, IfBusy if_busy) : file_(file) {
  for (;;) {
    descriptor_ = ::open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (descriptor_ < 0) descriptor_ = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);  // another user's
    const int how = LOCK_EX | (if_busy == IfBusy::leave ? LOCK_NB : 0);
    const bool locked = descriptor_ >= 0 && ::flock(descriptor_, how) == 0;
    error_ = locked ? 0 : errno;
    if (locked && is_still(file, descriptor_)) return;
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
    if (!locked && error_ != EINTR) return;
  }
}

FileLock::~FileLock() {
  if (held()) ::close(descriptor_);
}

bool FileLock::in_place() const { return !held() || is_still(file_, descriptor_); }

bool FileLock::busy() const { return error_ == EWOULDBLOCK; }

NewFolder::NewFolder(FileSystem& files, Path folder, std::string_view flag)
    : files_(files), folder_(place_of(folder)), partial_(folder_) {
  partial_ += ".partial";
  inner_ = partial_ / kInner;
  const std::string where = fmt::format("{} {}", flag, folder.string());
  check(where);
  files_.create_folders(parent_of(folder_));
  claim(where);
  try {
    check(where);  // another may have completed it
    started_over_ = files_.exists(inner_);
    files_.remove_all(inner_);
    files_.create_folders(inner_);
  } catch (...) {
    give_up();
    throw;
  }
}

// Checks everything that can be known before gigabytes are written.
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

// The remains of an interrupted attempt have a lock that no process holds, and only files that we make.
void NewFolder::claim(std::string_view where) {
  std::error_code ignored;
  const bool is_link = std::filesystem::is_symlink(partial_, ignored);  // to what is not ours, wherever it leads
  const std::vector<std::string> names = files_.list(partial_);
  const bool locked = std::ranges::count(names, kLock) == 1;
  const bool ours =
      std::ranges::all_of(names, [&](std::string_view n) { return n == kLock || (locked && n == kInner); });
  if (is_link || !ours || (files_.exists(partial_) && !std::filesystem::is_directory(partial_, ignored)))
    fail_user("{}: {} is in the way, and no interrupted attempt left it; move it away or name another folder", where,
              partial_.string());
  do {  // again where whoever held it removes the folder at this moment
    files_.create_folders(partial_);
    lock_.emplace(partial_ / kLock, FileLock::IfBusy::leave);
  } while (lock_->why_not() == ENOENT);
  if (lock_->busy()) fail_user("{}: another process is writing there; wait for it, or name another folder", where);
  if (!lock_->held())
    log::warn("{} cannot be locked ({}): nothing keeps another process out of it", (partial_ / kLock).string(),
              std::strerror(lock_->why_not()));
}

// The lock's file goes before the folder, which stays where another process has claimed it meanwhile.
void NewFolder::give_up() noexcept {
  try {
    files_.remove_all(inner_);
    files_.remove_all(partial_ / kLock);
    std::error_code claimed;
    std::filesystem::remove(partial_, claimed);
  } catch (const std::exception&) {  // the next attempt removes it
  }
  lock_.reset();
}

NewFolder::~NewFolder() {
  if (!whole_) give_up();
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
  files_.rename(inner_, folder_);  // over an empty folder, if there is one
  whole_ = true;
  files_.sync_folder(parent_of(folder_));
  give_up();
}

}  // namespace redline::io
