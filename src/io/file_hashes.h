// The hashes that the bytes of a file must have: one hash of all of them, or one for each stretch where several ranks
// wrote it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace redline::io {

struct HashedStretch {
  std::uint64_t begin = 0, end = 0;  // bytes of the file
  std::string xxh3;                  // hex64
  bool operator==(const HashedStretch&) const = default;
};

// From front to back. The stretches of a whole file leave no gap.
using FileHashes = std::vector<HashedStretch>;

}  // namespace redline::io
