// Megatron's pairs: NAME.bin holds ids back to back, NAME.idx says where sequences stand in it and which sequences make
// a document.
#include "data/shards/megatron.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "base/words.h"
#include "data/identity.h"
#include "data/shards/find_documents.h"
#include "data/shards/map_tokens.h"

namespace redline::data {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::int64_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;

// Numbers at no alignment in particular: the header has 34 bytes.
template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

TokenType type_of(std::uint8_t code, const std::string& name) {
  switch (code) {
    case 1: return TokenType::u8;
    case 2: return TokenType::i8;
    case 3: return TokenType::i16;
    case 4: return TokenType::i32;
    case 5: return TokenType::i64;
    case 8: return TokenType::u16;
    default: fail_user("{}: its type code {} is no integer type of token ids", name, code);
  }
}

class MegatronFile {
 public:
  MegatronFile(const Path& bin, std::int64_t first, ThreadPool& pool)
      : first_(first), name_(index_path(bin).string()), index_(map_tokens(index_path(bin))), tokens_(map_tokens(bin)) {
    const auto bytes = index_.bytes();
    const auto size = static_cast<std::int64_t>(bytes.size());
    if (size < kHeaderBytes || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
      fail_user("{}: not an index of Megatron", name_);
    if (const auto version = load<std::uint64_t>(bytes.data() + 9); version != 1)
      fail_user("{}: version {} of Megatron's index; version 1 is known", name_, version);
    ids_.type = type_of(load<std::uint8_t>(bytes.data() + 17), name_);
    const auto sequences = load<std::uint64_t>(bytes.data() + 18), bounds = load<std::uint64_t>(bytes.data() + 26);
    const auto room = static_cast<std::uint64_t>(size - kHeaderBytes);
    // A multimodal index has one more byte a sequence at its end.
    const bool fits = sequences <= room / 12 && bounds <= room / 8 && bounds >= 1 &&
                      (sequences * 12 + bounds * 8 == room || sequences * 13 + bounds * 8 == room);
    if (!fits)
      fail_user(
          "{}: {} bytes do not hold the {} sequences and {} document bounds that its header promises; the file is "
          "damaged or cut short",
          name_, size, sequences, bounds);
    sequences_ = static_cast<std::int64_t>(sequences);
    all_documents_ = static_cast<std::int64_t>(bounds) - 1;
    lengths_ = bytes.data() + kHeaderBytes;
    pointers_ = lengths_ + 4 * sequences_;
    bounds_ = pointers_ + 8 * sequences_;
    const auto token_bytes = static_cast<std::int64_t>(tokens_.bytes().size());
    ids_.data = tokens_.bytes().data();
    ids_.count = token_bytes / size_of(ids_.type);
    check_sequences(pool, token_bytes);
    check_bounds(pool);
  }

  static Path index_path(Path bin) { return bin.replace_extension(".idx"); }

  std::int64_t first() const { return first_; }
  std::int64_t documents() const { return kept_.empty() ? all_documents_ : static_cast<std::int64_t>(kept_.size()); }
  const TokenArray& ids() const { return ids_; }
  const std::string& name() const { return name_; }

  std::int64_t document_length(std::int64_t document) const {
    document = original(document);
    std::int64_t tokens = 0;
    for (std::int64_t s = bound(document); s < bound(document + 1); ++s) tokens += length(s);
    return tokens;
  }
  void append(std::int64_t document, std::int64_t from, std::int64_t count, std::int64_t vocabulary,
              std::vector<std::int32_t>& tokens) const {
    document = original(document);
    for (std::int64_t s = bound(document); s < bound(document + 1) && count > 0; ++s) {
      const std::int64_t skipped = std::min(from, length(s)), taken = std::min(count, length(s) - skipped);
      const std::int64_t begin = pointer(s) / size_of(ids_.type) + skipped;
      if (!ids_.append(begin, begin + taken, vocabulary, tokens))
        fail_user("{}: document {}: an id is not below the vocabulary of {}", name_, document, vocabulary);
      from -= skipped;
      count -= taken;
    }
  }
  void add_to(Hasher& hasher, std::size_t files) const {
    hash_sampled(hasher, index_.bytes(), files);
    hash_sampled(hasher, tokens_.bytes(), files);
  }

 private:
  static constexpr std::int64_t kGrain = 1 << 16;

  std::int64_t original(std::int64_t document) const {
    return kept_.empty() ? document : static_cast<std::int64_t>(kept_[static_cast<std::size_t>(document)]);
  }
  std::int64_t length(std::int64_t s) const { return load<std::int32_t>(lengths_ + 4 * s); }
  std::int64_t pointer(std::int64_t s) const { return load<std::int64_t>(pointers_ + 8 * s); }
  std::int64_t bound(std::int64_t d) const { return load<std::int64_t>(bounds_ + 8 * d); }

  // Every sequence lies within the file and after the one before: so no document can be longer than the file.
  void check_sequences(ThreadPool& pool, std::int64_t token_bytes) const {
    const std::int64_t width = size_of(ids_.type);
    pool.for_ranges(sequences_, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t s = begin; s < end; ++s) {
        const std::int64_t n = length(s), at = pointer(s);
        if (n < 0 || at < 0 || at % width != 0 || at > token_bytes || n > (token_bytes - at) / width)
          fail_user(
              "{}: sequence {} ({} tokens at byte {}) does not fit in the {} bytes of the .bin file; the files are "
              "damaged, cut short or no pair",
              name_, s, n, at, token_bytes);
        const std::int64_t before = s == 0 ? 0 : pointer(s - 1), its = s == 0 ? 0 : length(s - 1);
        // One that is itself wrong is somebody else's to report.
        if (before >= 0 && before <= token_bytes && its >= 0 && at < before + its * width)
          fail_user("{}: sequence {} begins inside the one before it", name_, s);
      }
    });
  }

  void check_bounds(ThreadPool& pool) {
    if (bound(0) != 0 || bound(all_documents_) != sequences_)
      fail_user("{}: its documents do not run from sequence 0 to {}", name_, sequences_);
    std::atomic<bool> any_empty{false};
    pool.for_ranges(all_documents_, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t d = begin; d < end; ++d) {
        const std::int64_t from = bound(d), to = bound(d + 1);
        if (from < 0 || from > to || to > sequences_)
          fail_user("{}: document {}: sequences {} to {} of {} cannot be", name_, d, from, to, sequences_);
        if (is_empty(from, to)) any_empty = true;
      }
    });
    if (!any_empty) return;
    for (std::int64_t d = 0; d < all_documents_; ++d)
      if (!is_empty(bound(d), bound(d + 1))) kept_.push_back(static_cast<std::uint64_t>(d));
    if (kept_.empty()) all_documents_ = 0;
  }
  bool is_empty(std::int64_t from, std::int64_t to) const {
    while (from < to && length(from) == 0) ++from;
    return from == to;
  }

  std::int64_t first_;
  std::string name_;
  MappedFile index_, tokens_;
  TokenArray ids_;
  std::int64_t sequences_ = 0, all_documents_ = 0;
  const std::byte *lengths_ = nullptr, *pointers_ = nullptr, *bounds_ = nullptr;
  std::vector<std::uint64_t> kept_;  // the documents that are not empty; itself empty when none is
};

class MegatronSource final : public TokenDocuments {
 public:
  MegatronSource(const std::vector<Path>& bin_files, TokenSettings s)
      : TokenDocuments(s, s.tokenizer, std::nullopt),
        name_(counted(bin_files.size(), "Megatron file")),
        bins_(bin_files) {
    ThreadPool pool;
    std::int64_t documents = 0, vocabulary = 0;
    if (!s.tokenizer.empty()) vocabulary = open_tokenizer(s.tokenizer, s.key)->vocabulary();
    const bool known = vocabulary > 0;
    for (const Path& bin : bin_files) {
      files_.push_back(std::make_unique<MegatronFile>(bin, documents, pool));
      documents += files_.back()->documents();
      if (!known) vocabulary = std::max(vocabulary, vocabulary_of(*files_.back(), pool));
    }
    set(documents, vocabulary, false);
  }

  std::string name() const override { return name_; }
  std::vector<Path> files() const override {
    std::vector<Path> paths = bins_;
    for (const Path& bin : bins_) paths.push_back(MegatronFile::index_path(bin));
    return paths;
  }

 private:
  // The index does not say it, and a model must: all ids are looked at once.
  static std::int64_t vocabulary_of(const MegatronFile& file, ThreadPool& pool) {
    const std::int64_t largest = largest_id(file.ids(), file.name(), pool);
    if (largest >= std::int64_t{1} << 31)
      fail_user("{}: its .bin file holds an id that is negative or above 2^31", file.name());
    return largest + 1;
  }
  std::uint64_t contents() const override {
    Hasher hasher;
    for (const auto& f : files_) f->add_to(hasher, files_.size());
    return hasher.digest();
  }
  const MegatronFile& file_of(std::int64_t index) const {
    return **std::prev(std::ranges::upper_bound(files_, index, {}, [](const auto& f) { return f->first(); }));
  }
  void append_tokens(std::int64_t index, std::int64_t begin, std::int64_t count,
                     std::vector<std::int32_t>& tokens) const override {
    const MegatronFile& file = file_of(index);
    file.append(index - file.first(), begin, count, vocabulary(), tokens);
  }
  std::int64_t document_length(std::int64_t index) const override {
    const MegatronFile& file = file_of(index);
    return file.document_length(index - file.first());
  }

  std::string name_;
  std::vector<Path> bins_;
  std::vector<std::unique_ptr<MegatronFile>> files_;
};

}  // namespace

std::unique_ptr<DocumentSource> open_megatron(const std::vector<Path>& bin_files, TokenSettings settings) {
  return std::make_unique<MegatronSource>(bin_files, std::move(settings));
}

}  // namespace redline::data
