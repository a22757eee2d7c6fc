// Text files as documents: a file, or the stretch of it that is this part's, is one, and any part of it is read by
// itself.
#include "data/text.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/hash.h"
#include "base/words.h"
#include "data/identity.h"
#include "data/input/byte_stream.h"
#include "data/input/text_input.h"
#include "data/tokenizer/tokenizer.h"

namespace redline::data {
namespace {

constexpr std::int64_t kSmallestText = 64;  // bytes that can be split into training and held-out text

// Small files are copied: the kernel allows some 65,000 mappings, and a folder can hold more articles than that.
constexpr std::uint64_t kMappedFrom = 1 << 18;
constexpr std::size_t kLook = 1 << 16;  // bytes of each sample

class TextFile {
 public:
  explicit TextFile(const Path& path) : path_(path) {
    if (real_files().size(path) < kMappedFrom)
      small_ = real_files().read(path);
    else
      large_.emplace(path);
  }
  std::span<const std::byte> bytes() const {
    return large_ ? large_->bytes() : std::as_bytes(std::span(small_.data(), small_.size()));
  }
  const Path& path() const { return path_; }

 private:
  Path path_;
  std::string small_;
  std::optional<MappedFile> large_;
};

void require_text(const Path& path, std::span<const std::byte> bytes, bool any_bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string_view middle = text.size() > 2 * kLook ? text.substr(text.size() / 2, kLook) : std::string_view();
  std::string why = why_not_one_document(path, "data.separator");
  if (why.empty()) why = why_not_text(text.substr(0, kLook), middle, "", any_bytes);
  if (!why.empty()) fail_user("{}: {}", path.string(), why);
}

std::vector<TextFile> open_text_files(const std::vector<std::string>& paths, const std::string& key, bool any_bytes) {
  std::vector<TextFile> files;
  for (const Path& file : expand_paths(paths, key)) {
    try {
      require_text(file, files.emplace_back(file).bytes(), any_bytes);
    } catch (const std::runtime_error& e) {  // what cannot be read, or is no text
      fail_user("{}: {}", key, e.what());
    }
  }
  if (files.empty()) fail_user("{} is empty: name text files, a folder, or \"ping\"", key);
  return files;
}

// A stretch of one file that belongs to this part.
struct Stretch {
  std::span<const std::byte> bytes;
  bool ends;  // with the file: <end> follows

  std::int64_t tokens() const { return static_cast<std::int64_t>(bytes.size()) + (ends ? 1 : 0); }
};

struct HeldOutCut {
  std::size_t file = 0;
  std::size_t offset = 0;  // within the file
};

// Where the last twentieth of the bytes begins, moved back to the start of a line or file if one is near.
HeldOutCut held_out_cut(const std::vector<TextFile>& files, const std::string& key) {
  std::size_t total = 0;
  for (const TextFile& file : files) total += file.bytes().size();
  if (total < static_cast<std::size_t>(kSmallestText)) {
    fail_user("{}: {} bytes of text are too few to hold a part out for evaluation; set data.eval", key, total);
  }
  const std::size_t reach = total / 20, near = std::max(reach, std::min<std::size_t>(256, total / 4));
  std::size_t at = total - reach;
  HeldOutCut cut;
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
  const HeldOutCut cut = part == Part::all ? HeldOutCut{} : held_out_cut(files, key);
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
        seed_(static_cast<std::uint64_t>(seed)) {}

  std::string name() const override { return counted(files_.size(), "text file") + " as bytes"; }
  std::int64_t documents() const override { return static_cast<std::int64_t>(stretches_.size()); }
  std::int64_t vocabulary() const override { return text_vocabulary().size(); }
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
  std::string decode(const std::vector<std::int32_t>& tokens) const override {
    return text_vocabulary().decode(tokens);
  }
  std::vector<std::int32_t> encode(const std::string& text) const override { return text_vocabulary().encode(text); }
  std::optional<std::int32_t> end_token() const override { return kEndOfDocument; }
  std::optional<std::vector<std::int32_t>> beginning() const override { return std::vector<std::int32_t>(); }
  std::optional<std::vector<std::int32_t>> bytes_of_ids() const override {
    return data::bytes_of_ids(*open_tokenizer("bytes", "data"));
  }

  void read(std::int64_t index, std::vector<std::int32_t>& tokens) const override {
    tokens.clear();
    append(index, 0, length(index), tokens);
  }
  void append(std::int64_t index, std::int64_t begin, std::int64_t count,
              std::vector<std::int32_t>& tokens) const override {
    const Stretch& stretch = at(index);
    REDLINE_CHECK(begin >= 0 && count >= 0 && begin + count <= stretch.tokens(), "tokens {} to {} of {}", begin,
                  begin + count, stretch.tokens());
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(stretch.bytes.data());
    const std::int64_t end = std::min(begin + count, static_cast<std::int64_t>(stretch.bytes.size()));
    tokens.insert(tokens.end(), bytes + begin, bytes + std::max(begin, end));
    if (end < begin + count) tokens.push_back(kEndOfDocument);
  }
  std::int64_t length(std::int64_t index) const override { return at(index).tokens(); }

 private:
  const Stretch& at(std::int64_t index) const {
    REDLINE_CHECK(index >= 0 && index < documents(), "no document {} among {}", index, documents());
    return stretches_[static_cast<std::size_t>(index)];
  }

  std::vector<TextFile> files_;
  std::vector<Stretch> stretches_;
  std::uint64_t seed_;
};

}  // namespace

std::unique_ptr<DocumentSource> open_text(const std::vector<std::string>& paths, const std::string& key, Part part,
                                          std::int64_t seed, bool any_bytes) {
  return std::make_unique<Text>(paths, key, part, seed, any_bytes);
}

}  // namespace redline::data
