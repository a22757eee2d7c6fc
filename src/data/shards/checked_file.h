// A mapped file whose blocks are checked against their hashes, each when it is first touched.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>

#include "base/files.h"
#include "data/shards/manifest.h"

namespace redline::data {

class CheckedFile {
 public:
  // A file that is missing or not as long as `described` is a UserError that names it.
  CheckedFile(const Path& folder, BlockedFile described);

  // Bytes [begin, end), checked; a damaged block is a UserError that names file, block and bytes. Any thread may ask.
  // The check costs one load a block once it is done.
  std::span<const std::byte> bytes(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t b = begin / kBlockBytes; b * kBlockBytes < end; ++b)
      if (!checked_[static_cast<std::size_t>(b)].load(std::memory_order_relaxed)) check(b);
    return mapped_.bytes().subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  }
  const std::byte* data() const { return mapped_.bytes().data(); }
  const std::vector<std::uint64_t>& hashes() const { return described_.blocks; }
  std::string path() const { return path_.string(); }

 private:
  void check(std::int64_t block) const;

  Path path_;
  BlockedFile described_;
  MappedFile mapped_;
  std::unique_ptr<std::atomic<bool>[]> checked_;  // several threads may check one block; each comes to the same
};

}  // namespace redline::data
