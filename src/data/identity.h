// The identity of data, whatever their files are called: hashes that a checkpoint keeps, so that a run goes on with the
// same data and no others. docs/training.md says what is compared when.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "base/files.h"
#include "base/hash.h"
#include "data/corpus.h"

namespace redline::data {

// Hashes the size of a file and a sample of it: every byte up to 1 MiB; of more, both ends and blocks spread over all
// of it. Where it is one of thousands of `files`, fewer blocks are read, so that a cold disk seeks some thousand times
// in all.
void hash_sampled(Hasher& hasher, std::span<const std::byte> bytes, std::size_t files);

// The files of `some` with documents that are also among `others`, whatever they are called: one file of the disk, two
// that hold the same as far as hash_sampled() looks, or a file and the shards that were prepared from it.
std::vector<Path> shared_files(const std::vector<Path>& some, const std::vector<Path>& others);

// Whether more than half of the first documents of `some` are among the first of `others`, by their tokens: text that
// was compressed, prepared, renamed, cut off or written in another format has other files and the same documents. It
// looks at up to 65,536 tokens of `some`, and for them in 2^19 tokens of text that must be tokenized, or 2^24 of other
// data. Data that cannot be read share nothing here: whoever reads them tells.
bool shares_documents(const Corpus& some, const Corpus& others);

struct DataIdentity {
  std::uint64_t contents = 0;          // Corpus::fingerprint()
  std::uint64_t stamp = 0;             // of the files' sizes, times and inodes: the same where they were not written to
  std::optional<std::uint64_t> whole;  // of every byte; nothing until all were read
  bool ends_only = false;  // of a checkpoint from before there were samples: contents of files cannot be compared
  bool operator==(const DataIdentity&) const = default;
};

enum class DataMatch {
  same,         // the files were not written to, or the data are generated, or each block is checked when it is read
  same_bytes,   // the files were moved, copied or touched, and hold the same
  same_blocks,  // they were moved, copied or touched, and the blocks that were read are the same: more is not known
  other,
  unknown,  // they cannot be compared
};

// The files of a corpus since it was opened.
class DataWatch {
 public:
  explicit DataWatch(const Corpus& corpus) : DataWatch(std::vector{&corpus}) {}
  explicit DataWatch(const std::vector<const Corpus*>& corpora);  // of several together
  ~DataWatch();
  DataWatch(const DataWatch&) = delete;
  DataWatch& operator=(const DataWatch&) = delete;

  // Hears how many bytes of all were read. An exception from it ends the reading.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t of)>;
  // Compares these data with those of a checkpoint. Where the files are other ones, every byte is read and compared
  // with the checkpoint's hashes.
  DataMatch compare(const DataIdentity& then, const Progress& progress);

  // Hashes every byte in a thread of its own, unless the hash is known or the data are over 64 GiB.
  void start_reading();
  // The identity of the data as they were opened. Waits for the hash of up to 1 GiB, so that the first checkpoint has
  // it.
  DataIdentity identity(bool wait = true);

  // Files that were written to, replaced or removed since they were opened; each is named once. One stat() a file.
  std::vector<Path> changed();

 private:
  void stop_reading();

  const bool checked_when_read_;
  const std::vector<Path> files_;
  std::vector<std::uint64_t> stamps_;  // of each file, when it was opened
  std::uint64_t bytes_ = 0;
  DataIdentity identity_;
  std::set<std::size_t> named_;
  std::atomic<bool> stop_{false};
  std::optional<std::uint64_t> read_;  // the thread's result; read once it has ended
  std::atomic<bool> ended_{false};
  std::thread reading_;
};

}  // namespace redline::data
