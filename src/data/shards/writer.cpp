// One block of memory a file; nothing is held longer than a block.
#include "data/shards/writer.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "data/batch.h"

namespace redline::data {
namespace {

class BlockWriter {
 public:
  BlockWriter(FileSystem& files, const Path& path) : writer_(files.create(path)) {
    file_.name = path.filename().string();
    block_.reserve(kBlockBytes);
  }

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const std::size_t n = std::min(bytes.size(), kBlockBytes - block_.size());
      block_.insert(block_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
      bytes = bytes.subspan(n);
      if (block_.size() == kBlockBytes) flush();
    }
  }
  BlockedFile finish() {
    if (!block_.empty()) flush();
    writer_->sync();
    writer_->close();
    return std::move(file_);
  }

 private:
  void flush() {
    file_.blocks.push_back(hash64(block_));
    file_.bytes += static_cast<std::int64_t>(block_.size());
    writer_->write(block_);
    block_.clear();
  }

  std::unique_ptr<FileWriter> writer_;
  std::vector<std::byte> block_;
  BlockedFile file_;
};

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace

struct ShardWriter::Impl {
  FileSystem& files;
  Path folder;
  std::string split;
  TokenType type;
  std::int64_t shard_tokens;
  Split done;
  Shard shard;  // the open one
  std::unique_ptr<BlockWriter> tokens, offsets, mask;
  std::vector<std::uint16_t> narrow;
  std::vector<std::int32_t> ids;
  bool masked;
  std::vector<std::uint8_t> bits;  // of the open shard's mask: what is not written yet, the last byte perhaps in part

  Impl(FileSystem& f, Path to, std::string name, TokenType t, std::int64_t most, bool m)
      : files(f), folder(std::move(to)), split(std::move(name)), type(t), shard_tokens(most), masked(m) {}

  void open() {
    const std::string name = fmt::format("{}-{:05}", split, done.shards.size());
    tokens = std::make_unique<BlockWriter>(files, folder / (name + ".tokens"));
    offsets = std::make_unique<BlockWriter>(files, folder / (name + ".offsets"));
    if (masked) mask = std::make_unique<BlockWriter>(files, folder / (name + ".mask"));
    put_offset();
  }
  void put_offset() {
    const auto at = static_cast<std::uint64_t>(shard.tokens);
    offsets->write(std::as_bytes(std::span(&at, 1)));
  }
  void close() {
    if (!tokens) return;
    shard.token_file = tokens->finish();
    shard.offset_file = offsets->finish();
    if (masked) {
      mask->write(bytes_of(bits));
      bits.clear();
      shard.mask_file = mask->finish();
    }
    done.shards.push_back(std::exchange(shard, {}));
    tokens.reset();
    offsets.reset();
    mask.reset();
  }
  // One bit a token, from the lowest of each byte on.
  void put_mask(std::span<const std::int32_t> document) {
    for (std::int64_t at = shard.tokens; const std::int32_t token : document) {
      if (at % 8 == 0) bits.push_back(0);
      const bool learned = !is_context(token);
      bits.back() = static_cast<std::uint8_t>(bits.back() | learned << at++ % 8);
      shard.learned += learned;
    }
    const bool part = (shard.tokens + static_cast<std::int64_t>(document.size())) % 8 != 0;
    const std::size_t whole = bits.size() - (part ? 1 : 0);
    mask->write(std::as_bytes(std::span(bits).first(whole)));
    bits.erase(bits.begin(), bits.begin() + static_cast<std::ptrdiff_t>(whole));
  }
  void append(std::span<const std::int32_t> document) {
    const auto size = static_cast<std::int64_t>(document.size());
    REDLINE_CHECK(size > 0, "an empty document");
    if (tokens && shard.tokens + size > shard_tokens) close();
    if (!tokens) open();
    if (masked) {
      put_mask(document);
      ids.resize(document.size());
      std::ranges::transform(document, ids.begin(), token_id);
      document = ids;
    }
    if (type == TokenType::u16) {
      narrow.assign(document.begin(), document.end());
      tokens->write(bytes_of(narrow));
    } else {
      tokens->write(std::as_bytes(document));  // not negative, so the bits are those of uint32
    }
    shard.tokens += size;
    shard.documents += 1;
    put_offset();
  }
};

ShardWriter::ShardWriter(FileSystem& files, Path folder, std::string split, TokenType type, std::int64_t shard_tokens,
                         bool masked)
    : impl_(std::make_unique<Impl>(files, std::move(folder), std::move(split), type, shard_tokens, masked)) {
  REDLINE_CHECK(type == TokenType::u16 || type == TokenType::u32, "shards are uint16 or uint32");
}
ShardWriter::~ShardWriter() = default;

void ShardWriter::append(std::span<const std::int32_t> document) { impl_->append(document); }
Split ShardWriter::finish() {
  impl_->close();
  return std::move(impl_->done);
}

bool is_shard_name(std::string_view name) {
  const std::size_t dash = name.find('-'), dot = name.find('.');
  if (dash == name.npos || dot == name.npos || dot < dash + 6) return false;
  const std::string_view split = name.substr(0, dash), number = name.substr(dash + 1, dot - dash - 1),
                         end = name.substr(dot);
  return (split == "train" || split == "val") && number.find_first_not_of("0123456789") == number.npos &&
         (end == ".tokens" || end == ".offsets" || end == ".mask");
}

}  // namespace redline::data
