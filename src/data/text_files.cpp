// Opening text files.
#include "data/text_files.h"

#include "base/error.h"
#include "data/input/paths.h"

namespace redline::data {
namespace {

// Small files are copied: the kernel allows some 65,000 mappings, and a folder can hold more articles than that.
constexpr std::uint64_t kMappedFrom = 1 << 18;

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

std::vector<TextFile> open_text_files(const std::vector<std::string>& paths, const std::string& key) {
  std::vector<TextFile> files;
  for (const Path& file : expand_paths(paths, key)) {
    try {
      files.emplace_back(file);
    } catch (const std::runtime_error& e) {  // nothing but what cannot be read
      fail_user("{}: {}", key, e.what());
    }
  }
  if (files.empty()) fail_user("{} is empty: name text files, a folder, or \"ping\"", key);
  return files;
}

}  // namespace redline::data
