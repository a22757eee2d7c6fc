// Text files served as documents of bounded length: a file of gigabytes is many pieces, each of which knows the token
// that comes after it, so nothing is lost at the cuts and no read is longer than a piece.
#include "data/text.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/counted.h"
#include "base/error.h"
#include "base/hash.h"
#include "data/byte_roles.h"
#include "data/identity.h"
#include "data/text_files.h"

namespace redline::data {
namespace {

constexpr std::int64_t kSmallestText = 64;  // bytes that can be split into training and held-out text
constexpr std::int64_t kLargestPiece = 1 << 16, kSmallestPiece = 1 << 12;

// A stretch of one file that belongs to this part.
struct Stretch {
  std::span<const std::byte> bytes;
  bool ends;  // with the file: <end> follows
  std::int64_t first_piece = 0;

  std::int64_t tokens() const { return static_cast<std::int64_t>(bytes.size()) + (ends ? 1 : 0); }
  std::int32_t token(std::int64_t i) const {
    return i < static_cast<std::int64_t>(bytes.size())
               ? std::to_integer<std::int32_t>(bytes[static_cast<std::size_t>(i)])
               : kEndOfDocument;
  }
};

struct Cut {
  std::size_t file = 0;
  std::size_t offset = 0;  // within the file
};

// Where the last twentieth of the bytes begins, moved back to the start of a line or file if one is near.
Cut held_out_cut(const std::vector<TextFile>& files, const std::string& key) {
  std::size_t total = 0;
  for (const TextFile& file : files) total += file.bytes().size();
  if (total < static_cast<std::size_t>(kSmallestText)) {
    fail_user("{}: {} bytes of text are too few to hold a part out for evaluation; set data.eval", key, total);
  }
  const std::size_t reach = total / 20, near = std::max(reach, std::min<std::size_t>(256, total / 4));
  std::size_t at = total - reach;
  Cut cut;
  while (at >= files[cut.file].bytes().size()) at -= files[cut.file++].bytes().size();
  const auto bytes = files[cut.file].bytes();
  for (std::size_t back = 0; back <= std::min(at, near); ++back) {
    const std::size_t offset = at - back;
    const bool line_start = offset == 0 ? cut.file > 0 : bytes[offset - 1] == std::byte{'\n'};
    if (line_start) return {cut.file, offset};
  }
  return {cut.file, at};
}

std::vector<Stretch> stretches_of(const std::vector<TextFile>& files, Part part, const std::string& key) {
  const Cut cut = part == Part::all ? Cut{} : held_out_cut(files, key);
  std::vector<Stretch> stretches;
  for (std::size_t f = 0; f < files.size(); ++f) {
    const auto bytes = files[f].bytes();
    std::size_t begin = 0, end = bytes.size();
    if (part == Part::training && f >= cut.file) end = f == cut.file ? cut.offset : 0;
    if (part == Part::held_out && f <= cut.file) begin = f == cut.file ? cut.offset : end;
    if (begin < end) stretches.push_back({bytes.subspan(begin, end - begin), end == bytes.size()});
  }
  return stretches;
}

class Text final : public DocumentSource {
 public:
  Text(const std::vector<std::string>& paths, const std::string& key, Part part, std::int64_t seed, bool any_bytes)
      : files_(open_text_files(paths, key, any_bytes)),
        stretches_(stretches_of(files_, part, key)),
        seed_(static_cast<std::uint64_t>(seed)) {
    std::int64_t total = 0;
    for (const Stretch& s : stretches_) total += s.tokens();
    // Pieces are what shuffling moves: small enough that a small text has many, large enough to hold a long row.
    piece_ = std::clamp(static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(total) / 64)),
                        kSmallestPiece, kLargestPiece);
    for (Stretch& s : stretches_) {
      s.first_piece = pieces_;
      pieces_ += (s.tokens() + piece_ - 1) / piece_;
    }
  }

  std::string name() const override { return counted(files_.size(), "text file"); }
  std::int64_t documents() const override { return pieces_; }
  std::int64_t vocabulary() const override { return text_roles().size(); }
  std::uint64_t fingerprint() const override {
    Hasher hasher;
    for (const Stretch& s : stretches_) hash_sampled(hasher, s.bytes, stretches_.size());
    return hasher.digest();
  }
  std::vector<Path> files() const override {
    std::vector<Path> paths;
    for (const TextFile& file : files_) paths.push_back(file.path());
    return paths;
  }
  std::uint64_t order_seed() const override { return seed_; }
  std::string decode(const std::vector<std::int32_t>& tokens) const override { return text_roles().decode(tokens); }
  std::vector<std::int32_t> encode(const std::string& text) const override { return text_roles().encode(text); }
  std::optional<std::int32_t> end_token() const override { return kEndOfDocument; }
  std::optional<std::vector<std::int32_t>> bytes_of_ids() const override {
    return data::bytes_of_ids(*open_tokenizer("bytes", "data"));
  }

  void read(std::int64_t index, std::vector<std::int32_t>& tokens) const override {
    const auto [stretch, begin, end] = locate(index);
    tokens.resize(static_cast<std::size_t>(end - begin));
    for (std::int64_t i = begin; i < end; ++i) tokens[static_cast<std::size_t>(i - begin)] = stretch.token(i);
  }

  std::int64_t length(std::int64_t index) const override {
    const Piece piece = locate(index);
    return piece.end - piece.begin;
  }

  std::int32_t token_after(std::int64_t index) const override {
    const auto [stretch, begin, end] = locate(index);
    return end < stretch.tokens() ? stretch.token(end) : kNoTarget;
  }

 private:
  struct Piece {
    const Stretch& stretch;
    std::int64_t begin, end;  // tokens of the stretch
  };
  Piece locate(std::int64_t index) const {
    REDLINE_CHECK(index >= 0 && index < pieces_, "no document {} among {}", index, pieces_);
    const Stretch& stretch = *std::prev(std::ranges::upper_bound(stretches_, index, {}, &Stretch::first_piece));
    const std::int64_t begin = (index - stretch.first_piece) * piece_;
    return {stretch, begin, std::min(begin + piece_, stretch.tokens())};
  }

  std::vector<TextFile> files_;
  std::vector<Stretch> stretches_;
  std::int64_t piece_ = 0, pieces_ = 0;
  std::uint64_t seed_;
};

}  // namespace

std::unique_ptr<DocumentSource> open_text(const std::vector<std::string>& paths, const std::string& key, Part part,
                                          std::int64_t seed, bool any_bytes) {
  return std::make_unique<Text>(paths, key, part, seed, any_bytes);
}

}  // namespace redline::data
