// Telling formats of tokens apart: folders by what is in them, files by name and first bytes. Formats without an index,
// llm.c's and nanoGPT's, are one long row of ids; Megatron has an index.
#include "data/shards/token_files.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "base/words.h"
#include "data/identity.h"
#include "data/input/byte_stream.h"
#include "data/input/text_input.h"
#include "data/shards/shards.h"
#include "data/shards/token_documents.h"
#include "data/shards/token_type.h"

namespace redline::data {
namespace {

// Searches of documents: chunks of a fixed size are scanned by whoever is free, 64 ids at a time; only where such a
// stretch holds an end token
// are they looked at one by one.
constexpr std::int64_t kChunk = std::int64_t{1} << 22, kStretch = 64;
constexpr double kQuiet = 2, kBetweenNotes = 5;  // seconds

struct ScannedChunk {
  std::vector<std::uint64_t> starts;
  std::uint64_t largest = 0;
};

template <class T>
void scan_chunk(const T* ids, std::int64_t begin, std::int64_t end, std::int64_t count, const EndTokens* ends,
                ScannedChunk& out) {
  using Unsigned = std::make_unsigned_t<T>;
  const auto is_end = [&](T id) {
    const auto wide = static_cast<std::int64_t>(id);
    return wide == (*ends)[0] || wide == (*ends)[1];
  };
  // An end token that the type cannot hold is found nowhere.
  const auto fits = [](std::int64_t id) { return id >= 0 && static_cast<std::int64_t>(static_cast<T>(id)) == id; };
  const bool any = ends && (fits((*ends)[0]) || fits((*ends)[1]));
  const T first = any ? static_cast<T>(fits((*ends)[0]) ? (*ends)[0] : (*ends)[1]) : T{};
  const T second = any ? static_cast<T>(fits((*ends)[1]) ? (*ends)[1] : (*ends)[0]) : T{};
  if (ends && begin == 0 && count > 0 && !(any && is_end(ids[0]))) out.starts.push_back(0);
  Unsigned largest = 0;
  for (std::int64_t at = begin; at < end; at += kStretch) {
    const std::int64_t stop = std::min(at + kStretch, end);
    unsigned hit = 0;
    for (std::int64_t i = at; i < stop; ++i) {
      const auto id = static_cast<Unsigned>(ids[i]);
      largest = id > largest ? id : largest;
      hit |= static_cast<unsigned>(ids[i] == first) | static_cast<unsigned>(ids[i] == second);
    }
    if (!any || !hit) continue;
    for (std::int64_t i = at; i < stop; ++i)
      if (is_end(ids[i]) && i + 1 < count && !is_end(ids[i + 1]))
        out.starts.push_back(static_cast<std::uint64_t>(i) + 1);
  }
  out.largest = largest_or_huge<T>(largest);
}

std::vector<ScannedChunk> scan(const TokenArray& ids, const EndTokens* ends, const std::string& name,
                               ThreadPool& pool) {
  const std::int64_t chunks = (ids.count + kChunk - 1) / kChunk;
  std::vector<ScannedChunk> found(static_cast<std::size_t>(chunks));
  const double start = steady_seconds();
  std::atomic<std::int64_t> done{0};
  std::atomic<double> next_note{start + kQuiet};
  pool.run(chunks, [&](std::int64_t c) {
    const std::int64_t begin = c * kChunk, end = std::min(begin + kChunk, ids.count);
    ids.visit(
        [&](const auto* typed) { scan_chunk(typed, begin, end, ids.count, ends, found[static_cast<std::size_t>(c)]); });
    const std::int64_t so_far = ++done;
    double due = next_note;
    const double now = steady_seconds();
    if (now >= due && so_far < chunks && next_note.compare_exchange_strong(due, now + kBetweenNotes))
      log::note("{}: looking through {} million tokens, {}%", name, ids.count / 1'000'000, 100 * so_far / chunks);
  });
  return found;
}

std::int64_t largest_of(const std::vector<ScannedChunk>& chunks) {
  std::uint64_t largest = 0;
  for (const ScannedChunk& c : chunks) largest = std::max(largest, c.largest);
  constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return chunks.empty() ? -1 : static_cast<std::int64_t>(std::min(largest, kLargest));
}

std::int64_t largest_id(const TokenArray& ids, const std::string& name, ThreadPool& pool) {
  return largest_of(scan(ids, nullptr, name, pool));
}

constexpr std::int64_t kLlmcHeader = 256 * 4;

// The properties of a file from its header, or the usual ones of its format.
struct Kind {
  TokenType type = TokenType::u16;
  std::int64_t header_bytes = 0;
  std::int64_t vocabulary = 0;  // 0: the largest id tells
  EndTokens ends{50256, 50256};
};

constexpr std::int32_t kGpt2Magic = 20240520, kLlama3Magic = 20240801, kEvalMagic = 20240522;
constexpr Kind kNanoGpt{};
constexpr Kind kGpt2{TokenType::u16, kLlmcHeader, 50257, {50256, 50256}};
// llm.c writes <|begin_of_text|> between documents; <|end_of_text|> is what others of this family write.
constexpr Kind kLlama3{TokenType::u32, kLlmcHeader, 128256, {128000, 128001}};

std::int32_t header_at(std::span<const std::byte> bytes, std::size_t i) {
  std::int32_t value = 0;
  std::memcpy(&value, bytes.data() + 4 * i, 4);
  return value;
}

Kind llmc_kind(std::span<const std::byte> bytes, const std::string& name) {
  if (static_cast<std::int64_t>(bytes.size()) < kLlmcHeader)
    fail_user("{}: {} bytes are shorter than the header of an llm.c file", name, bytes.size());
  const std::int32_t magic = header_at(bytes, 0), version = header_at(bytes, 1), count = header_at(bytes, 2);
  if (magic != kGpt2Magic && magic != kLlama3Magic) fail_user("{}: not an llm.c file: its magic is {}", name, magic);
  const Kind kind = magic == kGpt2Magic ? kGpt2 : kLlama3;
  const std::int32_t known = magic == kGpt2Magic ? 1 : 7;
  if (version != known) fail_user("{}: version {} of llm.c's format; version {} is known", name, version, known);
  const std::int64_t there = static_cast<std::int64_t>(bytes.size()) - kLlmcHeader;
  if (count < 0 || there != count * size_of(kind.type))
    fail_user("{}: its header promises {} tokens of {} bytes, but {} bytes follow it; the file is damaged or cut short",
              name, count, size_of(kind.type), there);
  return kind;
}

// GPT-2's <|endoftext|>, which nanoGPT writes. Ids of a wide type are of any tokenizer: there it is an end only where
// the vocabulary is GPT-2's, rounded up perhaps.
constexpr std::int64_t kGpt2Vocabulary = 50257, kGpt2VocabularyRounded = 51200;
constexpr EndTokens kNoEnd{-1, -1};

EndTokens usual_ends(TokenType type, std::int64_t vocabulary) {
  const bool gpt2 = vocabulary == 0 || (vocabulary >= kGpt2Vocabulary && vocabulary <= kGpt2VocabularyRounded);
  return type == TokenType::u16 || gpt2 ? kNanoGpt.ends : kNoEnd;
}

constexpr std::string_view kTypeKey = "data.token_type";

// The type of all files: what was asked for, or what their words show. A file that is too short to tell has the type of
// the others.
TokenType type_of_files(const std::vector<Path>& paths, const TokenSettings& s, std::int64_t vocabulary) {
  const auto refuse = [&](const std::string& file, const TokenTypeGuess& guess) {
    fail_user(
        "{}: {}: the type of its ids is not clear: {}; set {} to uint16, uint32 or int64, as the program that wrote it "
        "has it",
        s.key, file, guess.why, kTypeKey);
  };
  std::optional<TokenType> found;
  std::string of;  // whose it is
  std::optional<TokenTypeGuess> silent;
  for (const Path& path : paths) {
    const MappedFile file = map_tokens(path);
    const std::string name = path.string();
    const TokenTypeGuess guess = guess_token_type(file.bytes(), vocabulary);
    if (s.type) {
      if (guess.type && *guess.type != *s.type && !s.evaluation)
        log::warn("{}: {} is read as {}, as {} says, but its words look like {}", s.key, name, name_of(*s.type),
                  kTypeKey, name_of(*guess.type));
    } else if (!guess.type) {
      if (!guess.few) refuse(name, guess);
      silent = guess;
    } else if (found && *found != *guess.type) {
      fail_user("{}: {} holds {} ids and {} {} ids; files that are read together have one type", s.key, of,
                name_of(*found), name, name_of(*guess.type));
    } else {
      found = guess.type;
      of = name;
    }
  }
  if (s.type) return *s.type;
  if (!found) refuse(paths[0].string(), *silent);
  return *found;
}

struct BinFile {
  Path path;
  MappedFile mapped;
  TokenArray ids;
  std::vector<std::uint64_t> starts;
  std::int64_t first = 0;  // document
};

class BinSource final : public TokenDocuments {
 public:
  BinSource(const std::vector<Path>& paths, bool llmc, TokenSettings s) : TokenDocuments(s, s.tokenizer, std::nullopt) {
    ThreadPool pool;
    Kind kind = kNanoGpt;
    std::int64_t documents = 0, largest = -1;
    std::optional<std::int32_t> end = s.end_token;
    std::int64_t vocabulary = 0;
    if (!s.tokenizer.empty()) {
      const auto tokenizer = open_tokenizer(s.tokenizer, s.key);
      vocabulary = tokenizer->vocabulary();
      if (!end && !llmc) end = tokenizer->end_token();
    }
    if (!llmc) {
      for (const Path& path : paths)
        if (const std::uint64_t bytes = real_files().size(path); bytes % 2 != 0)
          fail_user("{}: {} bytes are no whole number of uint16 tokens; the file is damaged or cut short",
                    path.string(), bytes);
      const std::int64_t known = vocabulary > 0 ? vocabulary : s.vocabulary;
      kind.type = type_of_files(paths, s, known);
      kind.ends = usual_ends(kind.type, known);
      if (kind.type != TokenType::u16) wide_ = kind.type;
    }
    name_ = llmc ? counted(paths.size(), "llm.c file")
                 : fmt::format("{} of {} ids", counted(paths.size(), "nanoGPT file"), name_of(kind.type));
    for (const Path& path : paths) {
      const std::string name = path.string();
      BinFile file{path, map_tokens(path), {}, {}, documents};
      const auto bytes = file.mapped.bytes();
      if (llmc) {
        const Kind this_kind = llmc_kind(bytes, name);
        if (path != paths[0] && this_kind.type != kind.type)
          fail_user("{}: {} and {} are of different kinds and cannot be read together", s.key, paths[0].string(), name);
        kind = this_kind;
      } else if (bytes.size() % static_cast<std::size_t>(size_of(kind.type)) != 0) {
        fail_user(
            "{}: {} bytes are no whole number of {} tokens; the file is damaged or cut short, or {} says what its "
            "ids are",
            name, bytes.size(), name_of(kind.type), kTypeKey);
      }
      file.ids = {bytes.data() + kind.header_bytes,
                  (static_cast<std::int64_t>(bytes.size()) - kind.header_bytes) / size_of(kind.type), kind.type};
      const EndTokens ends = end ? EndTokens{*end, *end} : kind.ends;
      FoundDocuments found = find_documents(file.ids, ends, name, pool);
      const std::int64_t known = vocabulary > 0 ? vocabulary : kind.vocabulary;
      if (found.largest_id >= std::int64_t{1} << 31)
        fail_user("{}: holds an id that is negative or above 2^31, read as {}; check the file, and {}", name,
                  name_of(kind.type), kTypeKey);
      if (known > 0 && found.largest_id >= known)
        fail_user("{}: holds the id {}, which is not below the vocabulary of {}; name its tokenizer or check the file",
                  name, found.largest_id, known);
      largest = std::max(largest, found.largest_id);
      file.starts = std::move(found.starts);
      documents += static_cast<std::int64_t>(file.starts.size());
      ends_ = ends;
      files_.push_back(std::move(file));
    }
    if (s.part != Part::all && documents > 0 && documents < kHeldOutOf) documents += part_last_document();
    set(documents, vocabulary > 0 ? vocabulary : kind.vocabulary > 0 ? kind.vocabulary : largest + 1, false);
  }

  std::string name() const override { return name_; }
  std::vector<Path> files() const override {
    std::vector<Path> paths;
    for (const BinFile& f : files_) paths.push_back(f.path);
    return paths;
  }

 private:
  // The last 64th of one long row of ids becomes a document of its own, to be held out. Returns how many were made.
  std::int64_t part_last_document() {
    std::int64_t tokens = 0;
    for (const BinFile& f : files_) tokens += f.ids.count;
    const auto last =
        std::ranges::find_if(files_.rbegin(), files_.rend(), [](const auto& f) { return !f.starts.empty(); });
    const auto begin = static_cast<std::int64_t>(last->starts.back());
    const std::int64_t cut = last->ids.count - std::max<std::int64_t>(2, tokens / kHeldOutOf);
    if (cut - begin < 2) return 0;
    last->starts.push_back(static_cast<std::uint64_t>(cut));
    for (auto file = files_.rbegin(); file != last; ++file) ++file->first;
    return 1;
  }

  struct Place {
    const BinFile& file;
    std::int64_t begin, end;  // tokens; end tokens beyond the first are left out
  };
  Place locate(std::int64_t index) const {
    const BinFile& file = *std::prev(std::ranges::upper_bound(files_, index, {}, &BinFile::first));
    const auto i = static_cast<std::size_t>(index - file.first);
    const auto begin = static_cast<std::int64_t>(file.starts[i]);
    std::int64_t end = i + 1 < file.starts.size() ? static_cast<std::int64_t>(file.starts[i + 1]) : file.ids.count;
    while (end - begin >= 2 && is_end(file.ids.at(end - 1)) && is_end(file.ids.at(end - 2))) --end;
    return {file, begin, end};
  }
  bool is_end(std::int64_t id) const { return id == ends_[0] || id == ends_[1]; }

  void append_tokens(std::int64_t index, std::int64_t begin, std::int64_t count,
                     std::vector<std::int32_t>& tokens) const override {
    const Place p = locate(index);
    if (!p.file.ids.append(p.begin + begin, p.begin + begin + count, vocabulary(), tokens))
      fail_user("{}: an id of document {} is not below the vocabulary of {}; has the file changed?", name_, index,
                vocabulary());
  }
  std::int64_t document_length(std::int64_t index) const override {
    const Place p = locate(index);
    return p.end - p.begin;
  }
  std::uint64_t contents() const override {
    Hasher hasher;
    for (const BinFile& f : files_) hash_sampled(hasher, f.mapped.bytes(), files_.size());
    hasher.update(std::as_bytes(std::span(ends_)));
    if (wide_) hasher.update(std::as_bytes(std::span(&*wide_, 1)));  // the same bytes as uint16 are other documents
    return hasher.digest();
  }

  std::string name_;
  std::optional<TokenType> wide_;  // of files without a header
  std::vector<BinFile> files_;
  EndTokens ends_{};
};

// Megatron's pairs: NAME.bin holds ids back to back, NAME.idx says where sequences stand in it and which sequences make
// a document.
constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr std::int64_t kIndexHeader = 9 + 8 + 1 + 8 + 8;

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
    if (size < kIndexHeader || std::memcmp(bytes.data(), kIndexMagic.data(), kIndexMagic.size()) != 0)
      fail_user("{}: not an index of Megatron", name_);
    if (const auto version = load<std::uint64_t>(bytes.data() + 9); version != 1)
      fail_user("{}: version {} of Megatron's index; version 1 is known", name_, version);
    ids_.type = type_of(load<std::uint8_t>(bytes.data() + 17), name_);
    const auto sequences = load<std::uint64_t>(bytes.data() + 18), bounds = load<std::uint64_t>(bytes.data() + 26);
    const auto room = static_cast<std::uint64_t>(size - kIndexHeader);
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
    lengths_ = bytes.data() + kIndexHeader;
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

Path with_end(const Path& prefix, const char* end) {
  Path path = prefix;
  path += end;
  return path;
}

// Megatron's users name a pair by what its two names share.
bool is_megatron_prefix(const Path& path) {
  FileSystem& files = real_files();
  return !files.exists(path) && files.exists(with_end(path, ".idx")) && files.exists(with_end(path, ".bin"));
}

bool has_index(Path bin) { return real_files().exists(bin.replace_extension(".idx")); }

[[noreturn]] void fail_mixed(const std::string& key, const std::string& what, const std::string& where) {
  fail_user("{}: {} cannot be read together with {}; all must be of one kind", key, where, what);
}

}  // namespace

FoundDocuments find_documents(const TokenArray& ids, EndTokens ends, const std::string& name, ThreadPool& pool) {
  const std::vector<ScannedChunk> chunks = scan(ids, &ends, name, pool);
  FoundDocuments found;
  found.largest_id = largest_of(chunks);
  for (const ScannedChunk& c : chunks) found.starts.insert(found.starts.end(), c.starts.begin(), c.starts.end());
  return found;
}

bool is_llmc(const Path& file) {
  const MappedFile mapped = map_tokens(file);
  if (mapped.bytes().size() < 4) return false;
  const std::int32_t magic = header_at(mapped.bytes(), 0);
  if (magic == kEvalMagic) fail_user("{}: an evaluation set of llm.c, which holds no training tokens", file.string());
  return magic == kGpt2Magic || magic == kLlama3Magic;
}

std::unique_ptr<DocumentSource> open_llmc(const std::vector<Path>& files, TokenSettings settings) {
  return std::make_unique<BinSource>(files, true, std::move(settings));
}

std::unique_ptr<DocumentSource> open_nanogpt(const std::vector<Path>& files, TokenSettings settings) {
  // Any bytes may be tokens, but what a known format begins with is none.
  for (const Path& file : files) {
    const MappedFile mapped = map_tokens(file);
    const auto start = mapped.bytes().first(std::min<std::size_t>(mapped.bytes().size(), 512));
    const std::string_view format = known_format({reinterpret_cast<const char*>(start.data()), start.size()});
    if (!format.empty())
      fail_user("{}: {}: this is {}, and no file of tokens; give its text, tokenized with redline data prepare",
                settings.key, file.string(), format);
  }
  return std::make_unique<BinSource>(files, false, std::move(settings));
}

std::unique_ptr<DocumentSource> open_megatron(const std::vector<Path>& bin_files, TokenSettings settings) {
  return std::make_unique<MegatronSource>(bin_files, std::move(settings));
}

bool are_token_files(const std::vector<std::string>& paths, const std::string& key) {
  return std::ranges::any_of(paths, [&](const std::string& path) {
    return is_prepared_folder(path) || is_megatron_prefix(path) ||
           std::ranges::any_of(expand_paths({path}, key), [](const Path& file) {
             return file.extension() == ".bin" || file.extension() == ".idx";
           });
  });
}

std::optional<std::int64_t> vocabulary_of_headers(const std::string& path, const std::string& key) {
  if (is_megatron_prefix(path)) return {};
  std::optional<std::int64_t> largest;
  for (const Path& file : expand_paths({path}, key)) {
    if (file.extension() != ".bin" || has_index(file) || !is_llmc(file)) return {};
    largest = std::max(largest.value_or(0), llmc_kind(map_tokens(file).bytes(), file.string()).vocabulary);
  }
  return largest;
}

std::vector<DataPath> data_paths(const std::vector<std::string>& paths, const std::string& key) {
  std::vector<DataPath> all;
  for (const std::string& path : paths) {
    DataPath& one = all.emplace_back(DataPath{path});
    if (path != "ping" && is_prepared_folder(path)) one.prepared = read_prepared_folder(path, key);
  }
  return all;
}

std::unique_ptr<DocumentSource> open_token_files(std::vector<DataPath> paths, TokenSettings settings) {
  const std::string key = settings.key;
  std::vector<PreparedFolder> folders;
  std::vector<std::string> rest;
  for (DataPath& one : paths) {
    if (one.prepared)
      folders.push_back(std::move(*one.prepared));
    else
      rest.push_back(is_megatron_prefix(one.path) ? one.path + ".bin" : one.path);
  }
  if (!folders.empty()) {
    if (!rest.empty()) fail_mixed(key, "the prepared folder " + folders[0].path.string(), rest[0]);
    return open_shards(folders, std::move(settings));
  }
  if (rest.empty()) return nullptr;

  std::vector<Path> bins;
  std::string other;
  for (const Path& file : expand_paths(rest, key)) {
    if (is_shard_name(file.filename().string()))  // a pattern or a folder above: its bytes must not pass for text
      fail_user("{}: {} belongs to a prepared folder; name that folder itself", key, file.string());
    if (file.extension() == ".bin") {
      bins.push_back(file);
    } else if (file.extension() == ".idx") {
      bins.push_back(Path(file).replace_extension(".bin"));
    } else {
      other = file.string();
    }
  }
  if (bins.empty()) return nullptr;
  if (!other.empty()) fail_mixed(key, "the tokens in " + bins[0].string(), other);
  // A pair that was named by both its names is one; the order is that of the first naming.
  std::vector<Path> unique;
  std::set<Path> pairs;
  for (const Path& bin : bins)
    if (!has_index(bin) || pairs.insert(bin).second) unique.push_back(bin);
  const auto kind = [](const Path& bin) { return has_index(bin) ? 2 : is_llmc(bin) ? 1 : 0; };
  const int first = kind(unique[0]);
  for (const Path& bin : unique)
    if (kind(bin) != first) fail_mixed(key, unique[0].string(), bin.string());
  if (first == 2) return open_megatron(unique, std::move(settings));
  return first == 1 ? open_llmc(unique, std::move(settings)) : open_nanogpt(unique, std::move(settings));
}

}  // namespace redline::data
