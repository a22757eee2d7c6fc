// Which files a list of paths means, and their bytes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"

namespace redline::data {

class TextFile {
 public:
  explicit TextFile(const Path& path);
  std::span<const std::byte> bytes() const;
  const Path& path() const { return path_; }

 private:
  Path path_;
  std::string small_;
  std::optional<MappedFile> large_;
};

// The files of paths, folders and globs, in that order and sorted within each; never empty. `key` leads the errors.
// What is no text is one of them (data/input/file_kind.h), unless `any_bytes` are wanted.
std::vector<TextFile> open_text_files(const std::vector<std::string>& paths, const std::string& key, bool any_bytes);

}  // namespace redline::data
