// Places that one process writes: a lock of the operating system on a file, and a folder that is created atomically.
#pragma once

#include <optional>
#include <string_view>

#include "base/files.h"

namespace redline::io {

// A lock of the operating system on a file. It ends with its holder, however that ends, and no trace of it stays.
class FileLock {
 public:
  enum class IfBusy { wait, leave };
  // Makes the file where it is missing; its folder must exist.
  FileLock(const Path& file, IfBusy if_busy);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  bool held() const { return descriptor_ >= 0; }
  bool busy() const;                      // another process has it
  bool in_place() const;                  // false: its file was deleted, and the lock keeps no process out any more
  int why_not() const { return error_; }  // errno, where it is not held

 private:
  Path file_;
  int descriptor_ = -1, error_ = 0;
};

// A folder that is created atomically: it is filled under another name and renamed into place.
class NewFolder {
 public:
  // `folder` must be missing, or empty; anything else is a UserError led by `flag` ("--out"). The remains of an
  // interrupted attempt beside it are removed; nothing else there is touched.
  NewFolder(FileSystem& files, Path folder, std::string_view flag);
  // Without complete(), all files are removed.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const Path& path() const { return inner_; }                         // where to write meanwhile
  bool started_over() const { return started_over_; }                 // an interrupted attempt's files were removed
  std::uint64_t write(std::string_view name, std::string_view text);  // XXH3-64 of what was written
  std::uint64_t copy(const Path& from, std::string_view name);
  void complete();  // the files must have been synced

 private:
  void check(std::string_view where) const;
  void claim(std::string_view where);
  void give_up() noexcept;

  FileSystem& files_;
  Path folder_, partial_, inner_;
  std::optional<FileLock> lock_;
  bool started_over_ = false, whole_ = false;
};

}  // namespace redline::io
