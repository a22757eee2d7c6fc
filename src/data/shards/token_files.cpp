// Telling formats of tokens apart: folders by what is in them, files by name and first bytes.
#include "data/shards/token_files.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "data/input/paths.h"
#include "data/shards/bin_files.h"
#include "data/shards/megatron.h"
#include "data/shards/writer.h"

namespace redline::data {
namespace {

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

bool are_token_files(const std::vector<std::string>& paths, const std::string& key) {
  return std::ranges::any_of(paths, [&](const std::string& path) {
    return is_prepared_folder(path) || is_megatron_prefix(path) ||
           std::ranges::any_of(expand_paths({path}, key), [](const Path& file) {
             return file.extension() == ".bin" || file.extension() == ".idx";
           });
  });
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
