// Lists the tensors of the state table, and streams them from a device's memory.
#include "model/state_files.h"

#include <algorithm>
#include <array>
#include <memory>

#include "io/safetensors.h"

namespace redline::model {

std::vector<std::string> state_files(const optim::StateTable& table) {
  std::vector<std::string> files;
  for (const optim::StateArray& a : table)
    if (!a.file.empty() && std::ranges::find(files, a.file) == files.end()) files.push_back(a.file);
  return files;
}

std::int64_t state_bytes(const optim::StateTable& table) {
  std::int64_t bytes = 0;
  for (const optim::StateArray& a : table)
    if (!a.file.empty()) bytes += a.elements() * static_cast<std::int64_t>(size_of(a.dtype));
  return bytes;
}

std::vector<StateTensor> state_tensors(const optim::StateTable& table, const FlatLayout& layout,
                                       std::string_view file) {
  std::vector<StateTensor> tensors;
  for (std::size_t row = 0; row < table.size(); ++row) {
    const optim::StateArray& a = table[row];
    if (a.file != file) continue;
    if (!a.by_parameter()) tensors.push_back({a.stored_as, {a.elements()}, row, 0, a.elements(), a.dtype});
    for (const StoredParameter& p : layout.stored) {
      const std::int64_t begin = p.offset, end = p.offset + p.elements;
      if (!a.by_parameter() || end <= a.range.begin || begin >= a.range.end) continue;
      REDLINE_CHECK(begin >= a.range.begin && end <= a.range.end, "{} hold a part of {}", a.name, p.name);
      tensors.push_back({a.stored_as + p.name, p.shape, row, begin - a.range.begin, p.elements, a.dtype});
    }
  }
  return tensors;
}

MakeWindow windows_of(device::Device& device) {
  if (device.shares_host_memory()) return {};
  return [&device](std::int64_t bytes) { return device.make_transfer_window(bytes); };
}

void StateReader::read(std::span<const StateTensor> tensors, std::span<const Tensor> arrays, const TakeBytes& take) {
  const auto bytes_of = [&](const StateTensor& t) {
    const Tensor& array = arrays[t.row];
    REDLINE_CHECK(t.first >= 0 && t.first + t.elements <= array.elements(), "{} is elements {} to {} of {}", t.name,
                  t.first, t.first + t.elements, array.elements());
    const std::size_t element = size_of(array.dtype);
    return std::span<const std::byte>(array.as<std::byte>(), static_cast<std::size_t>(array.bytes()))
        .subspan(static_cast<std::size_t>(t.first) * element, static_cast<std::size_t>(t.elements) * element);
  };
  if (!make_window_) {
    for (const StateTensor& t : tensors) take(bytes_of(t));
    return;
  }
  std::size_t left = 0;
  for (const StateTensor& t : tensors) left += bytes_of(t).size();
  const std::int64_t window_bytes = std::min(static_cast<std::int64_t>(left), device::kTransferWindow);

  std::array<std::span<std::byte>, 2> filled;
  std::size_t next = 0, done = 0;  // the tensor that is read next, and how much of it was
  const auto fetch = [&](std::size_t w) {
    filled[w] = {};
    if (left == 0) return;
    if (!windows_[w] || std::ssize(windows_[w]->memory()) < window_bytes) windows_[w] = make_window_(window_bytes);
    const std::span<std::byte> room = windows_[w]->memory();
    std::size_t at = 0;
    while (at < room.size() && next < tensors.size()) {
      const std::span<const std::byte> rest = bytes_of(tensors[next]).subspan(done);
      const std::size_t count = std::min(room.size() - at, rest.size());
      windows_[w]->fetch(room.data() + at, rest.data(), static_cast<std::int64_t>(count));
      at += count;
      done += count;
      if (count == rest.size()) {
        ++next;
        done = 0;
      }
    }
    filled[w] = room.first(at);
    left -= at;
  };
  fetch(0);
  for (std::size_t w = 0; !filled[w].empty(); w = 1 - w) {
    fetch(1 - w);
    windows_[w]->wait();
    take(filled[w]);
  }
}

void read_state(std::span<const StateTensor> tensors, std::span<const Tensor> arrays, device::Device& device,
                const TakeBytes& take) {
  StateReader(windows_of(device)).read(tensors, arrays, take);
}

std::uint64_t write_state(std::span<const StateTensor> tensors, const ReadTensors& read, FileSystem& files,
                          const Path& path) {
  std::vector<io::TensorToWrite> header;
  for (const StateTensor& t : tensors) header.push_back({t.name, t.dtype, t.shape, {}});
  io::SafetensorsWriter writer(files, path, header, {{"format", "pt"}});
  read(tensors, [&](std::span<const std::byte> bytes) { writer.put(bytes); });
  return writer.finish();
}

}  // namespace redline::model
