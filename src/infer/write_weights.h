// Writes the weights of one folder into another: converted, in one file or in shards with an index.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>

#include "io/weight_files.h"
#include "model/weights.h"

namespace redline::infer {

inline constexpr std::int64_t kShardBytes = 5'000'000'000;  // transformers' own limit of a file

struct WriteWeights {
  DType dtype = DType::f32;
  std::int64_t shard_bytes = kShardBytes;  // of tensors in a file, at most; a larger tensor has a file of its own
  std::function<void(std::uint64_t done, std::uint64_t of)> progress = {};  // bytes written
  const std::atomic<int>* stop = nullptr;                                   // not 0: give up with Stopped
};

// Thrown where `stop` was set. The caller removes the folder that it made for the weights.
struct Stopped : std::runtime_error {
  Stopped() : std::runtime_error("stopped") {}
};

struct WrittenWeights {
  std::map<std::string, std::uint64_t> hashes;  // name -> XXH3-64 of each file, the index among them
  std::int64_t parameters = 0;
  std::uint64_t bytes = 0;  // of tensors
  std::size_t shards = 1;
};

// Writes the tensors of `matched` in their order. Bytes of the source that do not have its manifest's hash are a
// UserError.
WrittenWeights write_weights(FileSystem& files, const Path& folder, std::span<const model::MatchedFile> matched,
                             const WriteWeights& options);

}  // namespace redline::infer
