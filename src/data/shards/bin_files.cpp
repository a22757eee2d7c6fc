// Formats without an index: llm.c and nanoGPT. Both are one long row of ids.
#include "data/shards/bin_files.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/hash.h"
#include "base/words.h"
#include "data/identity.h"
#include "data/input/file_kind.h"
#include "data/shards/find_documents.h"
#include "data/shards/map_tokens.h"

namespace redline::data {
namespace {

constexpr std::int64_t kHeaderBytes = 256 * 4;

// The properties of a file from its header, or the usual ones of its format.
struct Kind {
  TokenType type = TokenType::u16;
  std::int64_t header_bytes = 0;
  std::int64_t vocabulary = 0;  // 0: the largest id tells
  EndTokens ends{50256, 50256};
};

constexpr std::int32_t kGpt2Magic = 20240520, kLlama3Magic = 20240801, kEvalMagic = 20240522;
constexpr Kind kNanoGpt{};
constexpr Kind kGpt2{TokenType::u16, kHeaderBytes, 50257, {50256, 50256}};
// llm.c writes <|begin_of_text|> between documents; <|end_of_text|> is what others of this family write.
constexpr Kind kLlama3{TokenType::u32, kHeaderBytes, 128256, {128000, 128001}};

std::int32_t header_at(std::span<const std::byte> bytes, std::size_t i) {
  std::int32_t value = 0;
  std::memcpy(&value, bytes.data() + 4 * i, 4);
  return value;
}

Kind llmc_kind(std::span<const std::byte> bytes, const std::string& name) {
  if (static_cast<std::int64_t>(bytes.size()) < kHeaderBytes)
    fail_user("{}: {} bytes are shorter than the header of an llm.c file", name, bytes.size());
  const std::int32_t magic = header_at(bytes, 0), version = header_at(bytes, 1), count = header_at(bytes, 2);
  if (magic != kGpt2Magic && magic != kLlama3Magic) fail_user("{}: not an llm.c file: its magic is {}", name, magic);
  const Kind kind = magic == kGpt2Magic ? kGpt2 : kLlama3;
  const std::int32_t known = magic == kGpt2Magic ? 1 : 7;
  if (version != known) fail_user("{}: version {} of llm.c's format; version {} is known", name, version, known);
  const std::int64_t there = static_cast<std::int64_t>(bytes.size()) - kHeaderBytes;
  if (count < 0 || there != count * size_of(kind.type))
    fail_user("{}: its header promises {} tokens of {} bytes, but {} bytes follow it; the file is damaged or cut short",
              name, count, size_of(kind.type), there);
  return kind;
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
  BinSource(const std::vector<Path>& paths, bool llmc, TokenSettings s)
      : TokenDocuments(s, s.tokenizer, std::nullopt),
        name_(counted(paths.size(), llmc ? "llm.c file" : "nanoGPT file")) {
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
    for (const Path& path : paths) {
      const std::string name = path.string();
      BinFile file{path, map_tokens(path), {}, {}, documents};
      const auto bytes = file.mapped.bytes();
      if (llmc) {
        const Kind this_kind = llmc_kind(bytes, name);
        if (path != paths[0] && this_kind.type != kind.type)
          fail_user("{}: {} and {} are of different kinds and cannot be read together", s.key, paths[0].string(), name);
        kind = this_kind;
      } else if (bytes.size() % 2 != 0) {
        fail_user("{}: {} bytes are no whole number of uint16 tokens; the file is damaged or cut short", name,
                  bytes.size());
      }
      file.ids = {bytes.data() + kind.header_bytes,
                  (static_cast<std::int64_t>(bytes.size()) - kind.header_bytes) / size_of(kind.type), kind.type};
      const EndTokens ends = end ? EndTokens{*end, *end} : kind.ends;
      FoundDocuments found = find_documents(file.ids, ends, name, pool);
      const std::int64_t known = vocabulary > 0 ? vocabulary : kind.vocabulary;
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
  // Of one long row of ids the last 64th becomes a document of its own, to be held out. Returns how many were made.
  std::int64_t part_last_document() {
    std::int64_t tokens = 0;
    for (const BinFile& f : files_) tokens += f.ids.count;
    const auto last =
        std::ranges::find_if(files_.rbegin(), files_.rend(), [](const auto& f) { return !f.starts.empty(); });
    const auto begin = static_cast<std::int64_t>(last->starts.back());
    const std::int64_t cut = last->ids.count - std::max<std::int64_t>(tokens / kHeldOutOf, 2);
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
    return hasher.digest();
  }

  std::string name_;
  std::vector<BinFile> files_;
  EndTokens ends_{};
};

}  // namespace

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

}  // namespace redline::data
