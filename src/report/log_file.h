// A file that a run appends to, one row or record at a time. A failed append leaves nothing behind, and may be tried
// again.
#pragma once

#include <memory>
#include <string_view>

#include "base/files.h"

namespace redline::report {

class LogFile {
 public:
  explicit LogFile(FileSystem& files) : files_(files) {}

  void open(const Path& path);  // appends to an existing file
  bool opened() const { return !path_.empty(); }

  void write(std::string_view piece);
  void sync();

 private:
  void cut_back();
  template <class Do>
  void attempt(Do work);

  FileSystem& files_;
  Path path_;
  std::unique_ptr<FileWriter> file_;  // none: not opened yet, or it failed
  std::uint64_t size_ = 0;            // of all complete appends
};

}  // namespace redline::report
