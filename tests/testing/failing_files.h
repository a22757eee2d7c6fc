// A file system over another one that fails at a chosen change: a full disk or a dead machine, wherever a test wants
// it. Changes are counted: create, append, write, sync, close, rename, remove, truncate, create_folders, sync_folder.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"

namespace redline::testing {

enum class Failure {
  once,       // the chosen change fails, all others work
  full_disk,  // from then on whatever takes room fails; renames and removals work
  death,      // from then on nothing changes any more: what a kill or a power cut leaves
};

class FailingFiles final : public FileSystem {
 public:
  explicit FailingFiles(FileSystem& real = real_files()) : real_(real) {}

  // The change number `nth` (from 0, counted from this call) fails with a MachineError "no space left on device". A
  // write that fails has written half of its bytes, a removal has removed half of the folder.
  void fail_at(std::int64_t nth, Failure failure);
  // Called before every change, by whichever thread makes it: a slow disk, or a moment to look at.
  std::function<void(const Path& path)> before_change = [](const Path&) {};
  std::int64_t changes() const { return changes_; }  // since the last fail_at, or the beginning
  bool failed() const { return failed_; }

  std::unique_ptr<FileWriter> create(const Path& path) override;
  std::unique_ptr<FileWriter> append(const Path& path) override;
  std::unique_ptr<StretchWriter> open_stretches(const Path& path);  // of the real file system; each write is a change
  std::string read(const Path& path) override { return real_.read(path); }
  void read_pieces(const Path& path, const std::function<void(std::span<const std::byte>)>& take) override {
    real_.read_pieces(path, take);
  }
  bool exists(const Path& path) override { return real_.exists(path); }
  std::uint64_t size(const Path& path) override { return real_.size(path); }
  void create_folders(const Path& path) override;
  void rename(const Path& from, const Path& to) override;
  void remove_all(const Path& path) override;
  void truncate(const Path& path, std::uint64_t size) override;
  void sync_folder(const Path& path) override;
  std::vector<std::string> list(const Path& folder) override { return real_.list(folder); }

 private:
  friend class FailingWriter;
  friend class FailingStretchWriter;
  enum class Needs { room, nothing };
  // Counts one change and says whether it must fail.
  bool fails(Needs needs, const Path& path);
  void change(Needs needs, const Path& path, const char* doing);  // throws when it must fail

  FileSystem& real_;
  std::atomic<std::int64_t> changes_ = 0, nth_ = -1;
  std::atomic<bool> failed_ = false;
  Failure failure_ = Failure::once;
};

// Calls body(files, nth) with a file system that fails at its change number `nth`, for every nth up to a call in which
// none failed. Returns how many calls there were.
template <class Body>
std::int64_t at_every_change(Failure failure, const Body& body) {
  for (std::int64_t nth = 0;; ++nth) {
    FailingFiles files;
    files.fail_at(nth, failure);
    body(files, nth);
    if (!files.failed() || ::testing::Test::HasFatalFailure()) return nth + 1;
  }
}

// Names the instances of a test over kinds of failures.
inline std::string failure_name(const ::testing::TestParamInfo<Failure>& kind) {
  return kind.param == Failure::once ? "Once" : kind.param == Failure::full_disk ? "FullDisk" : "Death";
}

}  // namespace redline::testing
