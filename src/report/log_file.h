// A file that a run adds to, a piece at a time: a row, a record. A piece that could not be written leaves nothing
// behind, and may be written again.
#pragma once

#include <memory>
#include <string_view>

#include "base/files.h"

namespace redline::report {

class LogFile {
 public:
  explicit LogFile(FileSystem& files) : files_(files) {}

  void open(const Path& path);  // behind what is there
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
  std::uint64_t size_ = 0;            // of what was written whole
};

}  // namespace redline::report
