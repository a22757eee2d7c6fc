// Finding files: folders are walked, patterns matched, and the rest must be there.
#include "data/input/paths.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"

namespace redline::data {
namespace {

namespace fs = std::filesystem;

std::vector<Path> files_below(const Path& folder, const std::string& key) {
  std::vector<Path> files;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    // An empty or hidden file in a folder (.DS_Store) is nobody's mistake; one that is named is.
    std::error_code ignored;
    if (it->path().filename().string().starts_with('.')) {
      it.disable_recursion_pending();
      continue;
    }
    if (it->is_regular_file(ignored) && it->file_size(ignored) > 0) files.push_back(it->path());
  }
  if (error) fail_user("{}: the folder {} cannot be read: {}", key, folder.string(), error.message());
  if (files.empty()) fail_user("{}: the folder {} holds no text", key, folder.string());
  std::ranges::sort(files);
  return files;
}

std::vector<Path> matching(const std::string& pattern) {
  glob_t found{};
  std::vector<Path> paths;
  if (glob(pattern.c_str(), GLOB_TILDE, nullptr, &found) == 0) {  // sorted
    for (std::size_t i = 0; i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
  }
  globfree(&found);
  return paths;
}

// The files of one word of the list.
std::vector<Path> expand(const Path& path, const std::string& key) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) return files_below(path, key);
  if (!fs::exists(status)) {
    const std::string pattern = path.string();
    if (pattern.find_first_of("*?[") == std::string::npos) fail_user("{}: there is no file or folder {}", key, pattern);
    std::vector<Path> files;
    for (const Path& match : matching(pattern)) {
      std::error_code ignored;
      if (fs::is_regular_file(match, ignored) && fs::file_size(match, ignored) == 0) continue;  // as in a folder
      const std::vector<Path> more = expand(match, key);
      files.insert(files.end(), more.begin(), more.end());
    }
    if (files.empty()) fail_user("{}: no file with text in it matches {}", key, pattern);
    return files;
  }
  if (!fs::is_regular_file(status)) fail_user("{}: {} is not a file", key, path.string());
  if (fs::file_size(path, error) == 0) fail_user("{}: {} is empty; leave it out", key, path.string());
  return {path};
}

}  // namespace

std::vector<Path> expand_paths(const std::vector<std::string>& paths, const std::string& key) {
  std::vector<Path> files;
  for (const std::string& path : paths) {
    const std::vector<Path> more = expand(path, key);
    files.insert(files.end(), more.begin(), more.end());
  }
  return files;
}

}  // namespace redline::data
