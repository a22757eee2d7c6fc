// Prepared folders: the manifest with the hash of every block, the writer of shards, and the source of their documents.
// docs/formats.md has the format.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "data/shards/token_documents.h"

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

// A file that documents were read from, so that a second reading can be held against the first.
struct HashedInput {
  std::string name;  // without its folder
  std::int64_t bytes = 0;
  std::uint64_t hash = 0;  // XXH3-64 of all of them
  bool val = false;        // its documents are those of the val split, by its name (data/roles.h)
  bool operator==(const HashedInput&) const = default;
};

struct Manifest {
  TokenType dtype = TokenType::u16;  // u16 or u32
  std::int64_t vocabulary = 0;
  std::string tokenizer_name;
  std::uint64_t tokenizer_hash = 0;
  std::string tokenizer_file;  // in the folder; empty: tokenizer_name is a built-in one
  std::optional<std::int32_t> end_token;
  std::optional<std::vector<std::int32_t>> beginning = {};  // of every document; nothing: older programs wrote none
  std::string chat;  // how conversations were written, for people; not empty: shards have masks
  double val_fraction = 0;
  Split train, val;
  // The input that it was made from, for people to read.
  std::int64_t source_files = 0, source_bytes = 0;  // bytes of text, as the tokenizer saw them
  std::int64_t skipped_empty = 0, skipped_malformed = 0, skipped_file_ends = 0;
  std::vector<HashedInput> inputs = {};  // files, in the order in which they were read; none: an older program made it
  bool operator==(const Manifest&) const = default;
};

std::string manifest_text(const Manifest& manifest);

// Strict: a UserError names the file and the problem (unknown version, counts that do not add up, a name that leaves
// the folder). Sizes are checked against the real files by open_shards().
Manifest parse_manifest(std::string_view text, const std::string& file_name);

// Writes the shards of one split: token ids and document offsets, block by block, each block hashed as it goes.
class ShardWriter {
 public:
  // Files are named SPLIT-00000.tokens and SPLIT-00000.offsets. A shard is closed before the document that would take
  // it over `shard_tokens`; documents stay whole. `masked`: SPLIT-00000.mask says which tokens are learned.
  ShardWriter(FileSystem& files, Path folder, std::string split, TokenType type, std::int64_t shard_tokens,
              bool masked = false);
  ~ShardWriter();

  void append(std::span<const std::int32_t> document);   // not empty, its ids fit the type; context only where masked
  void append(std::span<const std::uint16_t> document);  // not empty; where the type is u16 and nothing is masked
  Split finish();                                        // synced to the disk; once, at the end

 private:
  class BlockWriter;
  void open();
  void close();
  void put_offset();
  void put_mask(std::span<const std::int32_t> document);
  void begin_document(std::int64_t tokens);
  void end_document(std::int64_t tokens);

  FileSystem& files_;
  Path folder_;
  std::string split_;
  TokenType type_;
  std::int64_t shard_tokens_;
  bool masked_;
  Split done_;
  Shard shard_;  // the open one
  std::unique_ptr<BlockWriter> tokens_, offsets_, mask_;
  std::vector<std::uint16_t> narrow_;
  std::vector<std::int32_t> ids_;
  std::vector<std::uint8_t> bits_;  // of the open shard's mask: not written yet, the last byte perhaps in part
};

// The names that a ShardWriter gives its files.
bool is_shard_name(std::string_view name);

// Whether `redline data prepare` made this folder, or began to make it.
bool is_prepared_folder(const Path& folder);

// A whole prepared folder, with its manifest parsed for everyone who asks it.
struct PreparedFolder {
  Path path;
  Manifest manifest;

  std::string tokenizer() const;  // as open_tokenizer() takes it
  // How its documents begin. Conversations of an older program may begin as their template has it: nothing is known.
  std::optional<std::vector<std::int32_t>> beginning() const;
};

// A folder that is not whole, or not ours, is a UserError that starts with `key`.
PreparedFolder read_prepared_folder(const Path& folder, const std::string& key);

// The documents of one or more folders of the same tokenizer. Training takes their train splits and evaluation their
// val splits. Where no folder has a val split, the last 64th of the documents is held out. Files are mapped, and
// offsets and ids are read in place; every block is checked against its hash when it is first touched.
std::unique_ptr<DocumentSource> open_shards(const std::vector<PreparedFolder>& folders, TokenSettings settings);

}  // namespace redline::data
