// Which tensors of a checkpoint's files the rows of the state table are, and how they get there: straight from memory
// that is the host's, else through two windows, one of which is on its way while the other is written.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/tensor.h"
#include "device/device.h"
#include "model/parameters.h"

namespace redline::model {

// Elements [first, first + elements) of a row's array, under their name.
struct StateTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::size_t row = 0;
  std::int64_t first = 0, elements = 0;
};

// The files that the rows name, and what each of them holds: row after row, parameters in the order of their table.
std::vector<std::string> state_files(const optim::StateTable& table);
std::vector<StateTensor> state_tensors(const optim::StateTable& table, const FlatLayout& layout, std::string_view file);

// Bytes of all tensors in those files.
std::int64_t state_bytes(const optim::StateTable& table);

// Gives all bytes of the tensors in order, in pieces that may end anywhere. `arrays`, one for each row, are memory of
// the device. The host holds two windows at most (device::kTransferWindow), whatever the tensors' sizes.
using TakeBytes = std::function<void(std::span<const std::byte> bytes)>;
void read_state(std::span<const StateTensor> tensors, std::span<const Tensor> arrays, device::Device& device,
                const TakeBytes& take);
// The same into a safetensors file, synced. Returns its hash.
std::uint64_t write_state(std::span<const StateTensor> tensors, std::span<const Tensor> arrays, device::Device& device,
                          FileSystem& files, const Path& path);

}  // namespace redline::model
