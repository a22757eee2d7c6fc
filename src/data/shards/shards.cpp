// The manifest as JSON, out and in; writing of shards, block by block; reading of mapped ones, each block checked when
// it is first touched.
#include "data/shards/shards.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "data/batch.h"
#include "data/roles.h"
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

std::int64_t sum_of(const std::vector<Shard>& shards, std::int64_t Shard::*count) {
  std::int64_t sum = 0;
  for (const Shard& s : shards) sum += s.*count;
  return sum;
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
    if (const auto begin = json.find("beginning"); begin != json.end()) m.beginning = ids(*begin, m.vocabulary);
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
    if (const auto inputs = source.find("inputs"); inputs != source.end()) m.inputs = hashed_inputs(*inputs);
    return m;
  }

 private:
  const Json& member(const Json& object, std::string_view key) const { return io::member_at(object, key, file_); }
  std::int64_t count(const Json& object, std::string_view key, std::int64_t most = kMost) const {
    const std::int64_t n = io::integer_at(object, key, file_);
    if (n < 0 || n > most) fail_user("{}: {} is {}, not from 0 to {}", file_, io::in_quotes(key), n, most);
    return n;
  }
  std::vector<std::int32_t> ids(const Json& list, std::int64_t vocabulary) const {
    std::vector<std::int32_t> all;
    if (!list.is_array()) fail_user("{}: \"beginning\" is no array of ids", file_);
    for (const Json& id : list) {
      if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= static_cast<std::uint64_t>(vocabulary))
        fail_user("{}: \"beginning\" has an id that is not below the vocabulary of {}", file_, vocabulary);
      all.push_back(id.get<std::int32_t>());
    }
    return all;
  }
  std::vector<HashedInput> hashed_inputs(const Json& list) const {
    std::vector<HashedInput> all;
    if (!list.is_array()) fail_user("{}: \"inputs\" is no array", file_);
    for (const Json& input : list) {
      const std::string name = io::string_at(input, "name", file_);
      const auto split = input.find("split");
      all.push_back({name, count(input, "bytes"), hash(io::string_at(input, "xxh3", file_)),
                     split == input.end() ? role_of(name) == FileRole::held_out : *split == "val"});
    }
    return all;
  }
  std::uint64_t hash(const std::string& text) const {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    if (error != std::errc() || end != text.data() + text.size() || text.size() != 16)
      fail_user("{}: {} is no hash of 16 hexadecimal digits", file_, io::in_quotes(text));
    return value;
  }
  std::string plain_name(std::string name) const {
    io::require_plain_name(name, file_);
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

std::int64_t Split::documents() const { return sum_of(shards, &Shard::documents); }
std::int64_t Split::tokens() const { return sum_of(shards, &Shard::tokens); }
std::int64_t Split::learned() const { return sum_of(shards, &Shard::learned); }

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
  if (m.beginning) json["beginning"] = *m.beginning;
  for (const HashedInput& input : m.inputs)
    json["source"]["inputs"].push_back({{"name", input.name},
                                        {"bytes", input.bytes},
                                        {"xxh3", hex64(input.hash)},
                                        {"split", input.val ? "val" : "train"}});
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

// One block of memory a file; nothing is held longer than a block.
class ShardWriter::BlockWriter {
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

ShardWriter::ShardWriter(FileSystem& files, Path folder, std::string split, TokenType type, std::int64_t shard_tokens,
                         bool masked)
    : files_(files),
      folder_(std::move(folder)),
      split_(std::move(split)),
      type_(type),
      shard_tokens_(shard_tokens),
      masked_(masked) {
  REDLINE_CHECK(type == TokenType::u16 || type == TokenType::u32, "shards are uint16 or uint32");
}
ShardWriter::~ShardWriter() = default;

void ShardWriter::open() {
  const std::string name = fmt::format("{}-{:05}", split_, done_.shards.size());
  tokens_ = std::make_unique<BlockWriter>(files_, folder_ / (name + ".tokens"));
  offsets_ = std::make_unique<BlockWriter>(files_, folder_ / (name + ".offsets"));
  if (masked_) mask_ = std::make_unique<BlockWriter>(files_, folder_ / (name + ".mask"));
  put_offset();
}

void ShardWriter::put_offset() {
  const auto at = static_cast<std::uint64_t>(shard_.tokens);
  offsets_->write(std::as_bytes(std::span(&at, 1)));
}

void ShardWriter::close() {
  if (!tokens_) return;
  shard_.token_file = tokens_->finish();
  shard_.offset_file = offsets_->finish();
  if (masked_) {
    mask_->write(std::as_bytes(std::span(bits_)));
    bits_.clear();
    shard_.mask_file = mask_->finish();
  }
  done_.shards.push_back(std::exchange(shard_, {}));
  tokens_.reset();
  offsets_.reset();
  mask_.reset();
}

// One bit a token, from the lowest of each byte on.
void ShardWriter::put_mask(std::span<const std::int32_t> document) {
  for (std::int64_t at = shard_.tokens; const std::int32_t token : document) {
    if (at % 8 == 0) bits_.push_back(0);
    const bool learned = !is_context(token);
    bits_.back() = static_cast<std::uint8_t>(bits_.back() | learned << at++ % 8);
    shard_.learned += learned;
  }
  const bool part = (shard_.tokens + static_cast<std::int64_t>(document.size())) % 8 != 0;
  const std::size_t whole = bits_.size() - (part ? 1 : 0);
  mask_->write(std::as_bytes(std::span(bits_).first(whole)));
  bits_.erase(bits_.begin(), bits_.begin() + static_cast<std::ptrdiff_t>(whole));
}

void ShardWriter::begin_document(std::int64_t tokens) {
  REDLINE_CHECK(tokens > 0, "an empty document");
  if (tokens_ && shard_.tokens + tokens > shard_tokens_) close();
  if (!tokens_) open();
}
void ShardWriter::end_document(std::int64_t tokens) {
  shard_.tokens += tokens;
  shard_.documents += 1;
  put_offset();
}

// In parts: a long document is not held a second time.
void ShardWriter::append(std::span<const std::int32_t> document) {
  constexpr std::size_t kPart = 1 << 16;
  begin_document(std::ssize(document));
  if (masked_) put_mask(document);
  for (std::size_t at = 0; at < document.size(); at += kPart) {
    const auto part = document.subspan(at, std::min(kPart, document.size() - at));
    ids_.resize(part.size());
    std::ranges::transform(part, ids_.begin(), token_id);
    if (type_ == TokenType::u16) {
      narrow_.assign(ids_.begin(), ids_.end());
      tokens_->write(std::as_bytes(std::span(narrow_)));
    } else {
      tokens_->write(std::as_bytes(std::span(ids_)));  // not negative, so the bits are those of uint32
    }
  }
  end_document(std::ssize(document));
}

void ShardWriter::append(std::span<const std::uint16_t> document) {
  REDLINE_CHECK(type_ == TokenType::u16 && !masked_, "narrow ids for a shard of wide or masked ones");
  begin_document(std::ssize(document));
  tokens_->write(std::as_bytes(document));
  end_document(std::ssize(document));
}

Split ShardWriter::finish() {
  close();
  return std::move(done_);
}

bool is_shard_name(std::string_view name) {
  const std::size_t dash = name.find('-'), dot = name.find('.');
  if (dash == name.npos || dot == name.npos || dot < dash + 6) return false;
  const std::string_view split = name.substr(0, dash), number = name.substr(dash + 1, dot - dash - 1),
                         end = name.substr(dot);
  return (split == "train" || split == "val") && number.find_first_not_of("0123456789") == number.npos &&
         (end == ".tokens" || end == ".offsets" || end == ".mask");
}

namespace {

// A mapped file whose blocks are checked against their hashes, each when it is first touched.
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

CheckedFile::CheckedFile(const Path& folder, BlockedFile described)
    : path_(folder / described.name),
      described_(std::move(described)),
      mapped_(map_tokens(path_, "the file is missing; prepare the data again")),
      checked_(std::make_unique<std::atomic<bool>[]>(described_.blocks.size())) {
  if (const auto size = static_cast<std::int64_t>(mapped_.bytes().size()); size != described_.bytes)
    fail_user("{}: {} bytes, but the manifest says {}; the file is damaged or cut short, prepare the data again",
              path_.string(), size, described_.bytes);
}

void CheckedFile::check(std::int64_t block) const {
  const std::int64_t begin = block * kBlockBytes, end = std::min(begin + kBlockBytes, described_.bytes);
  const auto i = static_cast<std::size_t>(block);
  const auto bytes = mapped_.bytes().subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  if (hash64(bytes) != described_.blocks[i])
    fail_user("{}: block {} (bytes {} to {}) is damaged: it does not match the manifest; prepare the data again",
              path_.string(), block, begin, end);
  checked_[i].store(true, std::memory_order_relaxed);
}

class MappedShard {
 public:
  MappedShard(const Path& folder, const Shard& shard, TokenType type, std::int64_t first)
      : first_(first),
        documents_(shard.documents),
        ids_{nullptr, shard.tokens, type},
        tokens_(folder, shard.token_file),
        offsets_(folder, shard.offset_file) {
    if (!shard.mask_file.name.empty()) mask_.emplace(folder, shard.mask_file);
    ids_.data = tokens_.data();
  }

  std::int64_t first() const { return first_; }
  std::int64_t documents() const { return documents_; }

  struct Place {
    std::int64_t begin, end;  // in tokens
  };
  Place place_of(std::int64_t document) const {
    std::uint64_t place[2];
    std::memcpy(place, offsets_.bytes(document * 8, document * 8 + 16).data(), sizeof(place));
    const auto all = static_cast<std::uint64_t>(ids_.count);
    const bool ends_right = document + 1 < documents_ || place[1] == all;
    if (place[0] >= place[1] || place[1] > all || (document == 0 && place[0] != 0) || !ends_right)
      fail_user("{}: document {}: tokens {} to {} of {} cannot be; prepare the data again", offsets_.path(), document,
                place[0], place[1], all);
    return {static_cast<std::int64_t>(place[0]), static_cast<std::int64_t>(place[1])};
  }

  void append(std::int64_t document, std::int64_t from, std::int64_t count, std::int64_t vocabulary,
              std::vector<std::int32_t>& tokens) const {
    const Place place = place_of(document);
    const std::int64_t begin = place.begin + from, end = begin + count, width = size_of(ids_.type);
    REDLINE_CHECK(from >= 0 && count >= 0 && end <= place.end, "tokens {} to {} of {}", begin, end, place.end);
    tokens_.bytes(begin * width, end * width);  // checks the blocks
    if (!ids_.append(begin, end, vocabulary, tokens))
      fail_user("{}: document {}: an id is not below the vocabulary of {}; prepare the data again", tokens_.path(),
                document, vocabulary);
    if (mask_) mark(begin, std::span(tokens).last(static_cast<std::size_t>(count)));
  }
  std::vector<std::string> files() const {
    std::vector<std::string> all = {tokens_.path(), offsets_.path()};
    if (mask_) all.push_back(mask_->path());
    return all;
  }
  void add_to(Hasher& hasher) const {
    hasher.update(std::as_bytes(std::span(tokens_.hashes())));
    hasher.update(std::as_bytes(std::span(offsets_.hashes())));
    if (mask_) hasher.update(std::as_bytes(std::span(mask_->hashes())));
  }

 private:
  // `tokens` are those of the shard from `begin` on.
  void mark(std::int64_t begin, std::span<std::int32_t> tokens) const {
    const std::int64_t end = begin + static_cast<std::int64_t>(tokens.size()), first = begin / 8;
    const std::span<const std::byte> bits = mask_->bytes(first, (end + 7) / 8);
    for (std::int64_t at = begin; std::int32_t & token : tokens) {
      const std::byte eight = bits[static_cast<std::size_t>(at / 8 - first)];
      if ((eight >> at++ % 8 & std::byte{1}) == std::byte{0}) token = as_context(token);
    }
  }

  std::int64_t first_, documents_;
  TokenArray ids_;
  CheckedFile tokens_, offsets_;
  std::optional<CheckedFile> mask_;
};

class ShardSource final : public TokenDocuments {
 public:
  ShardSource(const std::vector<PreparedFolder>& folders, TokenSettings settings)
      : TokenDocuments(std::move(settings), folders[0].tokenizer(), folders[0].manifest.tokenizer_hash),
        name_(folders.size() == 1 ? folders[0].path.string() : fmt::format("{} prepared folders", folders.size())),
        end_token_(folders[0].manifest.end_token),
        beginning_(folders[0].beginning()) {
    const auto has_mask = [](const PreparedFolder& f) { return !f.manifest.chat.empty(); };
    const auto chat = std::ranges::find_if(folders, has_mask);
    masked_ = chat != folders.end();
    if (masked_) end_token_ = chat->manifest.end_token;  // what closes an answer
    const auto has_val = [](const PreparedFolder& f) { return !f.manifest.val.shards.empty(); };
    const bool split = std::ranges::any_of(folders, has_val);
    const bool val = split && (this->settings().evaluation || this->settings().part == Part::held_out);
    const Manifest& first = folders[0].manifest;
    std::int64_t documents = 0, vocabulary = 0;
    for (const PreparedFolder& prepared : folders) {
      const auto& [folder, m] = prepared;
      if (m.tokenizer_hash != first.tokenizer_hash)
        fail_user("{}: {} was prepared with the tokenizer {} and {} with {}; they cannot be read together",
                  this->settings().key, folders[0].path.string(), first.tokenizer_name, folder.string(),
                  m.tokenizer_name);
      if (const auto own = prepared.beginning(); own && beginning_.value_or(*own) != *own)
        fail_user(
            "{}: the token that begins a text stands before the documents of {} alone, not of {}; prepare both "
            "with the same --bos",
            this->settings().key, (own->empty() ? folders[0].path : folder).string(),
            (own->empty() ? folder : folders[0].path).string());
      vocabulary = std::max(vocabulary, m.vocabulary);
      for (const Shard& shard : (val ? m.val : m.train).shards) {
        shards_.push_back(std::make_unique<MappedShard>(folder, shard, m.dtype, documents));
        documents += shard.documents;
      }
    }
    hash_.update(std::as_bytes(std::span(&first.tokenizer_hash, 1)));
    for (const auto& shard : shards_) {
      shard->add_to(hash_);
      for (const std::string& file : shard->files()) files_.emplace_back(file);
    }
    for (const PreparedFolder& folder : folders) files_.push_back(folder.path / kManifestFile);
    set(documents, vocabulary, split);
  }

  std::string name() const override { return name_; }
  std::vector<Path> files() const override { return files_; }
  bool checked_when_read() const override { return true; }
  // Documents are closed by what they were prepared with, which need not be the tokenizer's own.
  std::optional<std::int32_t> end_token() const override { return end_token_; }
  std::optional<std::vector<std::int32_t>> beginning() const override { return beginning_; }
  bool masked() const override { return masked_; }

 private:
  std::uint64_t contents() const override { return hash_.digest(); }
  const MappedShard& shard_of(std::int64_t index) const {
    return **std::prev(std::ranges::upper_bound(shards_, index, {}, [](const auto& s) { return s->first(); }));
  }
  void append_tokens(std::int64_t index, std::int64_t begin, std::int64_t count,
                     std::vector<std::int32_t>& tokens) const override {
    const MappedShard& shard = shard_of(index);
    shard.append(index - shard.first(), begin, count, vocabulary(), tokens);
  }
  std::int64_t document_length(std::int64_t index) const override {
    const MappedShard& shard = shard_of(index);
    const auto [begin, end] = shard.place_of(index - shard.first());
    return end - begin;
  }

  std::string name_;
  std::optional<std::int32_t> end_token_;
  std::optional<std::vector<std::int32_t>> beginning_;
  bool masked_ = false;
  std::vector<std::unique_ptr<MappedShard>> shards_;
  std::vector<Path> files_;
  Hasher hash_;
};

}  // namespace

bool is_prepared_folder(const Path& folder) { return real_files().exists(folder / kManifestFile); }

std::string PreparedFolder::tokenizer() const {
  return manifest.tokenizer_file.empty() ? manifest.tokenizer_name : (path / manifest.tokenizer_file).string();
}

std::optional<std::vector<std::int32_t>> PreparedFolder::beginning() const {
  if (manifest.beginning || !manifest.chat.empty()) return manifest.beginning;
  return std::vector<std::int32_t>();
}

PreparedFolder read_prepared_folder(const Path& folder, const std::string& key) {
  const Path path = folder / kManifestFile;
  if (!is_prepared_folder(folder))
    fail_user("{}: {}: not a whole folder of shards: there is no {}; run redline data prepare again", key,
              folder.string(), kManifestFile);
  try {
    return {folder, parse_manifest(read_at_most(real_files(), path, std::uint64_t{256} << 20), path.string())};
  } catch (const UserError& e) {
    fail_user("{}: {}", key, e.what());
  }
}

std::unique_ptr<DocumentSource> open_shards(const std::vector<PreparedFolder>& folders, TokenSettings settings) {
  return std::make_unique<ShardSource>(folders, std::move(settings));
}

}  // namespace redline::data
