// safetensors files over untrusted bytes: eight bytes of header length, a JSON header, the data. The reader maps the
// file and is as strict as the reference: bounds, no holes, no overlaps, products of shapes checked without overflow.
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

#include "base/files.h"
#include "base/hash.h"
#include "io/stored_tensor.h"

namespace redline::io {

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

}  // namespace redline::io
