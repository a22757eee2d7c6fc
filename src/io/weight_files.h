// The weights of a folder: one model.safetensors, or the shards that model.safetensors.index.json names. Opening checks
// that the shards hold what the index says and nothing else; no tensor's bytes are read.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "io/file_hashes.h"
#include "io/safetensors.h"

namespace redline::io {

inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kWeightsIndex = "model.safetensors.index.json";

bool has_weights(FileSystem& files, const Path& folder);

class WeightFiles {
 public:
  // A missing shard, a tensor that its shard does not hold, one that the index does not name: a UserError. Where the
  // folder has a manifest (a checkpoint of ours), its hashes are there for whoever reads the bytes.
  WeightFiles(FileSystem& files, const Path& folder);
  // One file of a folder, of any name.
  WeightFiles(FileSystem& files, const Path& folder, const std::string& name);

  struct File {
    std::unique_ptr<SafetensorsReader> reader;
    FileHashes hashes = {};  // from the manifest; none where it does not name the file
  };
  const std::vector<File>& files() const { return files_; }
  const Path& listing() const { return listing_; }        // the file that says what there is: the index, or the weights
  const StoredTensor* find(std::string_view name) const;  // nullptr: not there
  const StoredTensor& at(std::string_view name) const;    // UserError: "FILE holds no tensor NAME"
  std::size_t tensors() const;
  std::uint64_t bytes() const;  // of all files

 private:
  std::vector<File> files_;
  Path listing_;
};

// Weights that do not match their files' promise.
struct DamagedWeights : UserError {
  using UserError::UserError;
};
// Runs `read` and turns its UserErrors into DamagedWeights, which find_weights_folder (io/checkpoint_folder.h) expects.
template <class Read>
auto reading_weights(const Read& read) {
  try {
    return read();
  } catch (const NoPermission&) {
    throw;
  } catch (const UserError& e) {
    throw DamagedWeights(e.what());
  }
}

// One file of a checkpoint, with its hashes where the folder's manifest names it.
WeightFiles::File open_hashed(FileSystem& files, const Path& folder, const std::string& name);

}  // namespace redline::io
