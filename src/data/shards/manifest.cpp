// The manifest as JSON, out and in.
#include "data/shards/manifest.h"

#include <charconv>
#include <limits>

#include "base/error.h"
#include "base/hash.h"
#include "io/json.h"

namespace redline::data {
namespace {

using io::Json;

constexpr std::string_view kFormat = "redline-shards";
constexpr std::int64_t kVersion = 1, kWithMasks = 2;   // a program that knows no masks must not learn everything
constexpr std::int64_t kMost = std::int64_t{1} << 56;  // of anything counted: sums and bytes of them stay below 2^63

Json json_of(const BlockedFile& file) {
  Json blocks = Json::array();
  for (const std::uint64_t hash : file.blocks) blocks.push_back(hex64(hash));
  return {{"name", file.name}, {"bytes", file.bytes}, {"xxh3", std::move(blocks)}};
}

Json json_of(const Split& split) {
  Json shards = Json::array();
  for (const Shard& s : split.shards) {
    Json json = {{"documents", s.documents},
                 {"tokens", s.tokens},
                 {"token_file", json_of(s.token_file)},
                 {"offset_file", json_of(s.offset_file)}};
    if (!s.mask_file.name.empty()) {
      json["mask_file"] = json_of(s.mask_file);
      json["learned"] = s.learned;
    }
    shards.push_back(std::move(json));
  }
  return {{"documents", split.documents()}, {"tokens", split.tokens()}, {"shards", std::move(shards)}};
}

// Reads one manifest; every error starts with its name.
class Reader {
 public:
  explicit Reader(const std::string& file) : file_(file) {}

  Manifest manifest(const Json& json) const {
    if (io::string_at(json, "format", file_) != kFormat) fail_user("{}: \"format\" is not \"{}\"", file_, kFormat);
    const std::int64_t version = io::integer_at(json, "version", file_);
    if (version != kVersion && version != kWithMasks)
      fail_user("{}: version {} of the format; this program reads versions {} and {}", file_, version, kVersion,
                kWithMasks);
    if (const auto block = io::integer_at(json, "block_bytes", file_); block != kBlockBytes)
      fail_user("{}: \"block_bytes\" is {}, not {}", file_, block, kBlockBytes);
    Manifest m;
    const std::string dtype = io::string_at(json, "dtype", file_);
    if (dtype != "uint16" && dtype != "uint32") fail_user("{}: \"dtype\" is {}", file_, io::in_quotes(dtype));
    m.dtype = dtype == "uint16" ? TokenType::u16 : TokenType::u32;
    m.vocabulary = count(json, "vocabulary", std::int64_t{1} << (dtype == "uint16" ? 16 : 31));
    if (m.vocabulary == 0) fail_user("{}: \"vocabulary\" is 0", file_);
    const Json& tokenizer = member(json, "tokenizer");
    m.tokenizer_name = io::string_at(tokenizer, "name", file_);
    m.tokenizer_hash = hash(io::string_at(tokenizer, "hash", file_));
    if (!member(tokenizer, "file").is_null()) m.tokenizer_file = plain_name(io::string_at(tokenizer, "file", file_));
    if (!member(json, "end_token").is_null())
      m.end_token = static_cast<std::int32_t>(count(json, "end_token", m.vocabulary - 1));
    m.val_fraction = io::number_at(json, "val_fraction", file_);
    const bool masked = version == kWithMasks;
    if (masked) m.chat = io::string_at(json, "chat", file_);
    if (masked && m.chat.empty()) fail_user("{}: \"chat\" is empty", file_);
    const Json& splits = member(json, "splits");
    m.train = split(member(splits, "train"), m.dtype, masked);
    m.val = split(member(splits, "val"), m.dtype, masked);
    const Json& source = member(json, "source");
    m.source_files = count(source, "files");
    m.source_bytes = count(source, "bytes");
    const Json& skipped = member(source, "skipped");
    m.skipped_empty = count(skipped, "empty");
    m.skipped_malformed = count(skipped, "malformed");
    m.skipped_file_ends = count(skipped, "file_ends");
    return m;
  }

 private:
  const Json& member(const Json& object, std::string_view key) const {
    const auto found = object.is_object() ? object.find(std::string(key)) : object.end();
    if (!object.is_object() || found == object.end()) fail_user("{}: the key {} is missing", file_, io::in_quotes(key));
    return *found;
  }
  std::int64_t count(const Json& object, std::string_view key, std::int64_t most = kMost) const {
    const std::int64_t n = io::integer_at(object, key, file_);
    if (n < 0 || n > most) fail_user("{}: {} is {}, not from 0 to {}", file_, io::in_quotes(key), n, most);
    return n;
  }
  std::uint64_t hash(const std::string& text) const {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    if (error != std::errc() || end != text.data() + text.size() || text.size() != 16)
      fail_user("{}: {} is no hash of 16 hexadecimal digits", file_, io::in_quotes(text));
    return value;
  }
  // A manifest is somebody else's bytes: it must not lead out of its folder.
  std::string plain_name(std::string name) const {
    if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string_view("/\\\0", 3)) != name.npos)
      fail_user("{}: {} is no name of a file in the folder", file_, io::in_quotes(name));
    return name;
  }
  BlockedFile blocked_file(const Json& json, std::int64_t bytes) const {
    BlockedFile f{plain_name(io::string_at(json, "name", file_)), count(json, "bytes"), {}};
    if (f.bytes != bytes)
      fail_user("{}: {} has {} bytes where its counts ask for {}", file_, io::in_quotes(f.name), f.bytes, bytes);
    const Json& blocks = member(json, "xxh3");
    const std::int64_t wanted = bytes / kBlockBytes + (bytes % kBlockBytes != 0);
    if (!blocks.is_array() || static_cast<std::int64_t>(blocks.size()) != wanted)
      fail_user("{}: {} needs {} block hashes", file_, io::in_quotes(f.name), wanted);
    for (const Json& block : blocks) {
      if (!block.is_string()) fail_user("{}: a block hash of {} is no string", file_, io::in_quotes(f.name));
      f.blocks.push_back(hash(block.get_ref<const std::string&>()));
    }
    return f;
  }
  Split split(const Json& json, TokenType dtype, bool masked) const {
    Split split;
    const Json& shards = member(json, "shards");
    if (!shards.is_array()) fail_user("{}: \"shards\" is no array", file_);
    std::int64_t documents = 0, tokens = 0;
    for (const Json& s : shards) {
      Shard shard;
      shard.documents = count(s, "documents");
      shard.tokens = count(s, "tokens");
      if (shard.documents == 0 || shard.tokens < shard.documents)
        fail_user("{}: a shard of {} documents and {} tokens", file_, shard.documents, shard.tokens);
      shard.token_file = blocked_file(member(s, "token_file"), shard.tokens * size_of(dtype));
      shard.offset_file = blocked_file(member(s, "offset_file"), (shard.documents + 1) * 8);
      if (masked) {
        shard.mask_file = blocked_file(member(s, "mask_file"), (shard.tokens + 7) / 8);
        shard.learned = count(s, "learned", shard.tokens);
      }
      documents += shard.documents;
      tokens += shard.tokens;
      if (documents > kMost || tokens > kMost) fail_user("{}: more tokens than can be", file_);
      split.shards.push_back(std::move(shard));
    }
    if (documents != count(json, "documents") || tokens != count(json, "tokens"))
      fail_user("{}: the shards hold {} documents and {} tokens, which is not what their split says", file_, documents,
                tokens);
    return split;
  }

  const std::string& file_;
};

}  // namespace

std::int64_t Split::documents() const {
  std::int64_t sum = 0;
  for (const Shard& s : shards) sum += s.documents;
  return sum;
}

std::int64_t Split::tokens() const {
  std::int64_t sum = 0;
  for (const Shard& s : shards) sum += s.tokens;
  return sum;
}

std::int64_t Split::learned() const {
  std::int64_t sum = 0;
  for (const Shard& s : shards) sum += s.learned;
  return sum;
}

std::string manifest_text(const Manifest& m) {
  const Json file = m.tokenizer_file.empty() ? Json(nullptr) : Json(m.tokenizer_file);
  Json json = {
      {"format", kFormat},
      {"version", kVersion},
      {"dtype", name_of(m.dtype)},
      {"vocabulary", m.vocabulary},
      {"tokenizer", {{"name", m.tokenizer_name}, {"hash", hex64(m.tokenizer_hash)}, {"file", file}}},
      {"end_token", m.end_token ? Json(*m.end_token) : Json(nullptr)},
      {"documents", m.train.documents() + m.val.documents()},
      {"tokens", m.train.tokens() + m.val.tokens()},
      {"val_fraction", m.val_fraction},
      {"source",
       {{"files", m.source_files},
        {"bytes", m.source_bytes},
        {"skipped",
         {{"empty", m.skipped_empty}, {"malformed", m.skipped_malformed}, {"file_ends", m.skipped_file_ends}}}}},
      {"block_bytes", kBlockBytes},
      {"splits", {{"train", json_of(m.train)}, {"val", json_of(m.val)}}}};
  if (!m.chat.empty()) {
    json["version"] = kWithMasks;
    json["chat"] = m.chat;
    json["learned"] = m.train.learned() + m.val.learned();
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Manifest parse_manifest(std::string_view text, const std::string& file_name) {
  return Reader(file_name).manifest(io::parse_json(text, file_name));
}

}  // namespace redline::data
