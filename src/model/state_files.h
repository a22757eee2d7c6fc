// Maps rows of the state table to tensors of a checkpoint's files, and writes them: directly from memory of the host,
// else through two windows, one filled while the other is written.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/tensor.h"
#include "device/device.h"
#include "io/manifest.h"
#include "model/parameters.h"

namespace redline::model {

// A tensor of a file. It is elements [first, first + elements) of a row's array. Where ranks share it, these are the
// part from its element `begin` on, which may be empty.
struct StateTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::size_t row = 0;
  std::int64_t first = 0, elements = 0;
  DType dtype = DType::f32;
  std::int64_t begin = 0;
};

// The files that the rows name, and the tensors of each: row after row, parameters in the order of their table. All
// ranks list the same tensors.
std::vector<std::string> state_files(const optim::StateTable& table);
std::vector<StateTensor> state_tensors(const optim::StateTable& table, const FlatLayout& layout, std::string_view file);

// The tensors that a rank writes. Of rows that every rank has whole, it writes its share (base/shards.h); rank 0 writes
// arrays that belong to no parameter. All ranks together write every element once.
std::vector<StateTensor> tensors_to_write(const optim::StateTable& table, const FlatLayout& layout,
                                          std::string_view file, int rank, int ranks);

// Bytes of all tensors in those files, of all ranks.
std::int64_t state_bytes(const optim::StateTable& table);

// Makes a window through which bytes come to the host (device::kTransferWindow, or fewer bytes). None: the arrays are
// memory of the host.
using MakeWindow = std::function<std::unique_ptr<device::TransferWindow>(std::int64_t bytes)>;
MakeWindow windows_of(device::Device& device);

// Gives all bytes of tensors in order, in pieces that may end anywhere. The host holds two windows at most, whatever
// the tensors' sizes, and keeps them for the next time.
using TakeBytes = std::function<void(std::span<const std::byte> bytes)>;
class StateReader {
 public:
  explicit StateReader(MakeWindow windows = {}) : make_window_(std::move(windows)) {}
  // `arrays`, one for each row, are memory of the device.
  void read(std::span<const StateTensor> tensors, std::span<const Tensor> arrays, const TakeBytes& take);

 private:
  MakeWindow make_window_;
  std::array<std::unique_ptr<device::TransferWindow>, 2> windows_;
};

void read_state(std::span<const StateTensor> tensors, std::span<const Tensor> arrays, device::Device& device,
                const TakeBytes& take);

// Writes tensors to a safetensors file, synced. `read` gives their bytes. Returns the file's hash.
using ReadTensors = std::function<void(std::span<const StateTensor> tensors, const TakeBytes& take)>;
std::uint64_t write_state(std::span<const StateTensor> tensors, const ReadTensors& read, FileSystem& files,
                          const Path& path);

// The same file by several ranks: rank 0 makes it and writes the header, and each rank writes its own part
// (tensors_to_write). Returns the part of this rank, synced and read back.
void make_state_file(std::span<const StateTensor> tensors, FileSystem& files, const Path& path);
io::FileHashes write_state_part(std::span<const StateTensor> tensors, const ReadTensors& read,
                                const OpenStretches& open, const Path& path, bool header);

}  // namespace redline::model
