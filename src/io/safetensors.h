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
#include "base/tensor.h"

namespace redline::io {

struct StoredTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  // any rank, as the file says
  std::span<const std::byte> bytes;
  std::int64_t elements() const;
  void to_f32(std::span<float> out) const;  // from f32, f64, bf16 or f16; out.size() == elements()
  // Some of its elements, wherever their bytes are, as `to` (f32, bf16 or f16), rounded to nearest even; the same type
  // keeps its bytes. From f32, f64, bf16 or f16; a finite value that `to` cannot hold is a UserError.
  void convert(std::span<const std::byte> from, DType to, std::byte* out) const;
  // How many of some of its elements are NaN or infinite. f32, f64, bf16 or f16.
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

// The header of a file of these tensors, and where the data of each of them stand in it: back to back, in the given
// order, from a multiple of 8 bytes on. `bytes` of the tensors are not looked at.
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

// The same file, for data that need not be in memory at once: what it holds is told first (`bytes` of the tensors are
// not looked at), then put() is given all of the data in order, in pieces of any size.
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
