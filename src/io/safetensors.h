// safetensors files over untrusted bytes: eight bytes of header length, a JSON header, the data. The reader maps the
// file and is as strict as the reference: bounds, no holes, no overlaps, products of shapes checked without overflow.
// Here are also the tensors as they lie in a file, and the files of a folder's weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "io/manifest.h"

namespace redline::io {

// A tensor as it lies in a file: its type, its shape and its bytes, and their conversion to other types.
struct StoredTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  // any rank, as the file says
  std::span<const std::byte> bytes;
  std::int64_t elements() const;
  void to_f32(std::span<float> out) const;  // from f32, f64, bf16 or f16; out.size() == elements()
  // Converts some of its elements, whose bytes are `from`, to f32, bf16 or f16, rounded to nearest even; the same type
  // keeps its bytes. From f32, f64, bf16 or f16. A finite value that `to` cannot hold is a UserError.
  void convert(std::span<const std::byte> from, DType to, std::byte* out) const;
  // Counts NaN and infinity among some of its elements. f32, f64, bf16 or f16.
  std::int64_t not_finite(std::span<const std::byte> some) const;
  std::vector<float> to_f32() const;
  std::vector<std::int32_t> to_i32() const;  // from i32 or i64, range checked
};

class SafetensorsReader {
 public:
  explicit SafetensorsReader(const Path& path);  // UserError names the file, the offset or tensor, and what is wrong
  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // in the file's order
  const StoredTensor* find(std::string_view name) const;                 // nullptr: not there
  const StoredTensor& at(std::string_view name) const;                   // UserError: "FILE holds no tensor NAME"
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const Path& path() const { return path_; }
  const MappedFile& file() const { return file_; }

 private:
  Path path_;
  MappedFile file_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::map<std::string, std::string> metadata_;
};

// One tensor to write; `bytes` must stay alive until write_safetensors returns.
struct TensorToWrite {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

// The header of a file of these tensors, and the place of each one's data: back to back, in the given order, from a
// multiple of 8 bytes on. The tensors' `bytes` are not used.
struct SafetensorsHeader {
  std::string bytes;                  // the length of the header, and the header
  std::vector<std::uint64_t> begins;  // of each tensor, in the file
  std::uint64_t file_bytes = 0;       // of all of it
};
SafetensorsHeader safetensors_header(const Path& path, std::span<const TensorToWrite> tensors,
                                     const std::map<std::string, std::string>& metadata);

// Header, then data in the given order, synced. Returns the XXH3-64 of the whole file.
std::uint64_t write_safetensors(FileSystem& files, const Path& path, std::span<const TensorToWrite> tensors,
                                const std::map<std::string, std::string>& metadata);

// The same file, for data that need not be in memory at once. The tensors come first (their `bytes` are not used), then
// put() takes all of the data in order, in pieces of any size.
class SafetensorsWriter {
 public:
  SafetensorsWriter(FileSystem& files, const Path& path, std::span<const TensorToWrite> tensors,
                    const std::map<std::string, std::string>& metadata);
  ~SafetensorsWriter();
  void put(std::span<const std::byte> bytes);
  std::uint64_t finish();  // as write_safetensors

 private:
  Path path_;
  std::unique_ptr<FileWriter> writer_;
  Hasher hasher_;
  std::uint64_t left_ = 0;  // bytes still to come
};

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
