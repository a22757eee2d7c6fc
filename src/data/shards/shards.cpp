// Reading of prepared folders.
#include "data/shards/shards.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "data/batch.h"
#include "data/shards/checked_file.h"
#include "io/json.h"

namespace redline::data {
namespace {

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
        end_token_(folders[0].manifest.end_token) {
    const auto has_mask = [](const PreparedFolder& f) { return !f.manifest.chat.empty(); };
    const auto chat = std::ranges::find_if(folders, has_mask);
    masked_ = chat != folders.end();
    if (masked_) end_token_ = chat->manifest.end_token;  // what closes an answer
    const auto has_val = [](const PreparedFolder& f) { return !f.manifest.val.shards.empty(); };
    const bool split = std::ranges::any_of(folders, has_val);
    const bool val = split && (this->settings().evaluation || this->settings().part == Part::held_out);
    const Manifest& first = folders[0].manifest;
    std::int64_t documents = 0, vocabulary = 0;
    for (const auto& [folder, m] : folders) {
      if (m.tokenizer_hash != first.tokenizer_hash)
        fail_user("{}: {} was prepared with the tokenizer {} and {} with {}; they cannot be read together",
                  this->settings().key, folders[0].path.string(), first.tokenizer_name, folder.string(),
                  m.tokenizer_name);
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
