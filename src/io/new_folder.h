// A folder that is created atomically: it is filled under another name and renamed into place.
#pragma once

#include <optional>
#include <string_view>

#include "base/files.h"
#include "io/file_lock.h"

namespace redline::io {

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
