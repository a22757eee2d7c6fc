// Writes the shards of one split: token ids and document offsets, block by block, each block hashed as it goes.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "data/shards/manifest.h"

namespace redline::data {

class ShardWriter {
 public:
  // Files are named SPLIT-00000.tokens and SPLIT-00000.offsets. A shard is closed before the document that would take
  // it over `shard_tokens`; documents stay whole. `masked`: SPLIT-00000.mask says which tokens are learned.
  ShardWriter(FileSystem& files, Path folder, std::string split, TokenType type, std::int64_t shard_tokens,
              bool masked = false);
  ~ShardWriter();

  void append(std::span<const std::int32_t> document);  // not empty, its ids fit the type; context only where masked
  Split finish();                                       // synced to the disk; once, at the end

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The names that a ShardWriter gives its files.
bool is_shard_name(std::string_view name);

}  // namespace redline::data
