// Opening text files.
#include "data/text_files.h"

#include "base/error.h"
#include "data/input/file_kind.h"
#include "data/input/paths.h"

namespace redline::data {
namespace {

// Small files are copied: the kernel allows some 65,000 mappings, and a folder can hold more articles than that.
constexpr std::uint64_t kMappedFrom = 1 << 18;
constexpr std::size_t kLook = 1 << 16;  // bytes of each sample

void check(const Path& path, std::span<const std::byte> bytes, bool any_bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string_view middle = text.size() > 2 * kLook ? text.substr(text.size() / 2, kLook) : std::string_view();
  std::string why = why_not_one_document(path, "data.separator");
  if (why.empty()) why = why_not_text(text.substr(0, kLook), middle, "", any_bytes);
  if (!why.empty()) fail_user("{}: {}", path.string(), why);
}

}  // namespace

TextFile::TextFile(const Path& path) : path_(path) {
  if (real_files().size(path) < kMappedFrom) {
    small_ = real_files().read(path);
  } else {
    large_.emplace(path);
  }
}

std::span<const std::byte> TextFile::bytes() const {
  return large_ ? large_->bytes() : std::as_bytes(std::span(small_.data(), small_.size()));
}

std::vector<TextFile> open_text_files(const std::vector<std::string>& paths, const std::string& key, bool any_bytes) {
  std::vector<TextFile> files;
  for (const Path& file : expand_paths(paths, key)) {
    try {
      check(file, files.emplace_back(file).bytes(), any_bytes);
    } catch (const std::runtime_error& e) {  // what cannot be read, or is no text
      fail_user("{}: {}", key, e.what());
    }
  }
  if (files.empty()) fail_user("{} is empty: name text files, a folder, or \"ping\"", key);
  return files;
}

}  // namespace redline::data
