// Brings ranges of a file into the page cache, from front to back, a little ahead of the threads that read them. One
// sequential reader gets the most out of a disk, and the threads that copy, hash and convert wait for no more than they
// need.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/files.h"

namespace redline::io {

class ReadAhead {
 public:
  struct Range {
    std::uint64_t begin = 0, bytes = 0;
  };
  ReadAhead(const Path& path, std::vector<Range> ranges);  // in the file's order
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  void allow(std::uint64_t offset);  // lets it go that far: pages that are not read for long may be evicted
  // Waits until the ranges are there up to `offset`, which was allowed. Where the disk fails it returns at once, and
  // the read reports the error.
  void wait_for(std::uint64_t offset);

 private:
  void work();
  void set_there(std::uint64_t offset);

  const InputFile file_;
  const std::vector<Range> ranges_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t allowed_ = 0, there_ = 0;  // offsets in the file
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace redline::io
