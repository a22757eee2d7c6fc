// Finds the files of a folder's weights, and checks them against the index.
#include "io/weight_files.h"

#include <map>

#include "base/error.h"
#include "base/words.h"
#include "io/checkpoint_folder.h"
#include "io/json.h"

namespace redline::io {
namespace {

using WeightMap = std::map<std::string, std::string>;  // tensor -> file

WeightMap read_index(FileSystem& files, const Path& path) {
  const std::string where = path.string();
  const Json index = read_json(files, path);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object() || map->empty())
    fail_user("{}: \"weight_map\" is missing, empty or not an object", where);
  WeightMap result;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) fail_user("{}: the file of {} is not a string", where, in_quotes(tensor));
    const std::string& name = file.get_ref<const std::string&>();
    // The index is untrusted: a shard must lie in the folder.
    if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string("/\0", 2)) != name.npos)
      fail_user("{}: {} is not the name of a file in this folder", where, in_quotes(name));
    result.emplace(tensor, name);
  }
  return result;
}

WeightFiles::File open_file(const Path& folder, const std::string& name,
                            const std::map<std::string, FileHashes>& hashes) {
  const auto found = hashes.find(name);
  return {std::make_unique<SafetensorsReader>(folder / name), found == hashes.end() ? FileHashes{} : found->second};
}

}  // namespace

WeightFiles::File open_hashed(FileSystem& files, const Path& folder, const std::string& name) {
  return open_file(folder, name, checkpoint_hashes(files, folder));
}

bool has_weights(FileSystem& files, const Path& folder) {
  return files.exists(folder / kWeightsFile) || files.exists(folder / kWeightsIndex);
}

WeightFiles::WeightFiles(FileSystem& files, const Path& folder) {
  const std::map<std::string, FileHashes> hashes = checkpoint_hashes(files, folder);
  const auto open = [&](const std::string& name) { files_.push_back(open_file(folder, name, hashes)); };
  // As transformers: where both are there, the one file counts.
  if (files.exists(folder / kWeightsFile)) {
    listing_ = folder / kWeightsFile;
    open(kWeightsFile);
    return;
  }
  listing_ = folder / kWeightsIndex;
  if (!files.exists(listing_))
    fail_user("{}: there is neither {} nor {}", folder.string(), kWeightsFile, kWeightsIndex);
  const WeightMap map = read_index(files, listing_);
  std::map<std::string, std::size_t> promised;  // tensors of each shard
  for (const auto& [tensor, name] : map) ++promised[name];
  for (const auto& [name, count] : promised) {
    if (!files.exists(folder / name))
      fail_user("{}: the shard {} is missing; {} names it for {}", folder.string(), name, kWeightsIndex,
                counted(count, "tensor"));
    open(name);
    for (const StoredTensor& t : files_.back().reader->tensors()) {
      const auto it = map.find(t.name);
      if (it == map.end())
        fail_user("{} holds {}, which {} does not name", (folder / name).string(), in_quotes(t.name), kWeightsIndex);
      if (it->second != name)
        fail_user("{} holds {}, which {} says is in {}", (folder / name).string(), in_quotes(t.name), kWeightsIndex,
                  it->second);
    }
  }
  for (const auto& [tensor, name] : map)
    if (!find(tensor))
      fail_user("{} holds no tensor {}, which {} says is there", (folder / name).string(), in_quotes(tensor),
                kWeightsIndex);
}

WeightFiles::WeightFiles(FileSystem& files, const Path& folder, const std::string& name) : listing_(folder / name) {
  files_.push_back(open_hashed(files, folder, name));
}

const StoredTensor* WeightFiles::find(std::string_view name) const {
  for (const File& file : files_)
    if (const StoredTensor* tensor = file.reader->find(name)) return tensor;
  return nullptr;
}

const StoredTensor& WeightFiles::at(std::string_view name) const {
  const StoredTensor* tensor = find(name);
  if (!tensor) fail_user("{} holds no tensor {}", listing_.string(), name);
  return *tensor;
}

std::size_t WeightFiles::tensors() const {
  std::size_t n = 0;
  for (const File& file : files_) n += file.reader->tensors().size();
  return n;
}

std::uint64_t WeightFiles::bytes() const {
  std::uint64_t n = 0;
  for (const File& file : files_) n += file.reader->file().bytes().size();
  return n;
}

}  // namespace redline::io
