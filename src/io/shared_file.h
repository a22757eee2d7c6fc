// One rank's part of a file that several ranks write: its stretches, hashed on the way, synced and read back.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/hash.h"
#include "io/file_hashes.h"

namespace redline::io {

struct ByteRange {
  std::uint64_t begin = 0, end = 0;
};

// Called on rank 0 before any rank writes: makes an empty file of that size.
void make_shared_file(FileSystem& files, const Path& path, std::uint64_t bytes);

class SharedFileWriter {
 public:
  // `mine`, from front to back: those that touch become one stretch.
  SharedFileWriter(const OpenStretches& open, const Path& path, std::span<const ByteRange> mine);
  void put(std::span<const std::byte> bytes);  // all of them in order, in pieces of any size
  FileHashes finish();                         // a MachineError where the disk gives other bytes back

 private:
  void read_back() const;

  Path path_;
  std::unique_ptr<StretchWriter> writer_;
  FileHashes stretches_;
  std::size_t current_ = 0;
  std::uint64_t at_ = 0;  // in the file
  std::optional<Hasher> hasher_;
};

// The report of a rank to rank 0: the stretches that it wrote of each file, or the reason why it failed. And the
// reports of all ranks as one; a rank that failed is a MachineError that names it.
std::string report_of(const std::map<std::string, FileHashes>& wrote, const std::string& problem);
std::map<std::string, FileHashes> joined_reports(const std::vector<std::string>& reports);

}  // namespace redline::io
