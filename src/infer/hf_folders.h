// Exports models to Hugging Face folders and imports them, without holding a model in memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "infer/load.h"

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

struct Transferred {
  WrittenWeights weights;
  std::vector<std::string> tokenizer_files;  // names of those that were copied or made
  std::vector<std::string> copied;           // names of all files that are byte for byte the source's
  std::string note;                          // about the tokenizer; empty when there is nothing to say
};

// Writes a folder that transformers loads: config.json, generation_config.json, weights, the tokenizer's files. `out`
// must be new or empty, and appears whole or not at all: where options.stop is set, Stopped is thrown and nothing is
// left. `tokenizer` is the value of --tokenizer (infer/load.h).
Transferred export_model(FileSystem& files, const Checkpoint& checkpoint, const Path& out, const WriteWeights& options,
                         const std::string& tokenizer = {});

// Writes a checkpoint of step 0 with the folder's weights in fp32 and a manifest of hashes. model.init_from, eval,
// sample and export take it. `out` is as above.
Transferred import_model(FileSystem& files, const Checkpoint& source, const Path& out, const WriteWeights& options);

}  // namespace redline::infer
