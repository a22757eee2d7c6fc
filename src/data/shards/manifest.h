// manifest.json of a folder of token shards: its contents, and the hash of every block. docs/formats.md has the
// format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "data/shards/token_array.h"

namespace redline::data {

inline constexpr std::string_view kManifestFile = "manifest.json";
inline constexpr std::int64_t kBlockBytes = 1 << 20;

// A file of a shard. Its blocks have kBlockBytes each, and the last one the rest.
struct BlockedFile {
  std::string name;
  std::int64_t bytes = 0;
  std::vector<std::uint64_t> blocks;  // XXH3-64 of each
  bool operator==(const BlockedFile&) const = default;
};

struct Shard {
  std::int64_t documents = 0, tokens = 0;
  BlockedFile token_file;   // tokens ids
  BlockedFile offset_file;  // documents + 1 numbers of 64 bits: where in token_file each document begins, and the end
  // One bit a token, from the lowest of each byte on: 1 where it is learned, 0 where it is context. Without a name
  // there is no file, and every token is learned.
  BlockedFile mask_file = {};
  std::int64_t learned = 0;  // tokens, where there is a mask
  bool operator==(const Shard&) const = default;
};

struct Split {
  std::vector<Shard> shards;
  std::int64_t documents() const;
  std::int64_t tokens() const;
  std::int64_t learned() const;  // where there are masks
  bool operator==(const Split&) const = default;
};

struct Manifest {
  TokenType dtype = TokenType::u16;  // u16 or u32
  std::int64_t vocabulary = 0;
  std::string tokenizer_name;
  std::uint64_t tokenizer_hash = 0;
  std::string tokenizer_file;  // in the folder; empty: tokenizer_name is a built-in one
  std::optional<std::int32_t> end_token;
  std::string chat;  // how conversations were written, for people; not empty: shards have masks
  double val_fraction = 0;
  Split train, val;
  // The input that it was made from, for people to read.
  std::int64_t source_files = 0, source_bytes = 0;  // bytes of text, as the tokenizer saw them
  std::int64_t skipped_empty = 0, skipped_malformed = 0, skipped_file_ends = 0;
  bool operator==(const Manifest&) const = default;
};

std::string manifest_text(const Manifest& manifest);

// Strict: a UserError names the file and the problem (unknown version, counts that do not add up, a name that leaves
// the folder). Sizes are checked against the real files by open_shards().
Manifest parse_manifest(std::string_view text, const std::string& file_name);

}  // namespace redline::data
