// Lists the tensors of the state table, and streams them from a device's memory.
#include "model/state_files.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>

#include "base/shards.h"
#include "io/manifest.h"
#include "io/safetensors.h"

namespace redline::model {
namespace {

// The tensors of a file with what lies in `own(row)` of them; `independent`: whether that includes what is about no
// parameter.
template <class Own>
std::vector<StateTensor> tensors_of(const optim::StateTable& table, const FlatLayout& layout, std::string_view file,
                                    const Own& own, bool independent) {
  std::vector<StateTensor> tensors;
  for (std::size_t row = 0; row < table.size(); ++row) {
    const optim::StateArray& a = table[row];
    if (a.file != file) continue;
    const Range all = a.all(), mine = own(a);
    if (all.elements() == 0) {
      tensors.push_back({a.stored_as, {a.elements()}, row, 0, independent ? a.elements() : 0, a.dtype});
    } else if (!a.by_parameter()) {
      REDLINE_CHECK(a.cuts_no_block(mine), "{} are cut within a block of {}", a.name, a.block);
      StateTensor& t = tensors.emplace_back(StateTensor{a.stored_as, {a.all_elements()}, row, 0, 0, a.dtype});
      if (mine.elements() <= 0) continue;
      t.first = a.first_of(mine, a.range);
      t.elements = a.elements_of(mine);
      t.begin = a.first_of(mine, all);
    } else {
      for (const StoredParameter& p : layout.stored) {
        const Range within = intersection(p.range(), all), part = intersection(p.range(), mine);
        if (within.empty()) continue;
        REDLINE_CHECK(within == p.range(), "{} hold a part of {}", a.name, p.name);
        StateTensor& t = tensors.emplace_back(StateTensor{a.stored_as + p.name, p.shape, row, 0, 0, a.dtype});
        if (part.empty()) continue;
        t.first = part.begin - a.range.begin;
        t.elements = part.elements();
        t.begin = part.begin - p.offset;
      }
    }
  }
  return tensors;
}

std::vector<io::TensorToWrite> as_header(std::span<const StateTensor> tensors) {
  std::vector<io::TensorToWrite> header;
  for (const StateTensor& t : tensors) header.push_back({t.name, t.dtype, t.shape, {}});
  return header;
}

std::map<std::string, std::string> metadata() { return {{"format", "pt"}}; }

}  // namespace

std::vector<std::string> state_files(const optim::StateTable& table) {
  std::vector<std::string> files;
  for (const optim::StateArray& a : table)
    if (!a.file.empty() && std::ranges::find(files, a.file) == files.end()) files.push_back(a.file);
  return files;
}

std::int64_t state_bytes(const optim::StateTable& table) {
  std::int64_t bytes = 0;
  for (const optim::StateArray& a : table)
    if (!a.file.empty()) bytes += a.all_elements() * static_cast<std::int64_t>(size_of(a.dtype));
  return bytes;
}

std::vector<StateTensor> state_tensors(const optim::StateTable& table, const FlatLayout& layout,
                                       std::string_view file) {
  return tensors_of(
      table, layout, file, [](const optim::StateArray& a) { return a.range; }, true);
}

std::vector<StateTensor> tensors_to_write(const optim::StateTable& table, const FlatLayout& layout,
                                          std::string_view file, int rank, int ranks) {
  const auto own = [&](const optim::StateArray& a) -> Range {
    if (a.shared.elements() > 0) return a.range;
    const Range part = owned_part(Shards{layout.total, ranks}, rank, a.range.begin, a.range.end);
    // A block belongs to whom its first element does.
    const auto whole_blocks = [&](std::int64_t at) {
      if (at == a.range.begin || a.begins_block(at)) return at;
      return std::min(a.origin + (a.block_of(at) + 1) * a.block, a.range.end);
    };
    return {whole_blocks(part.begin), whole_blocks(part.end)};
  };
  return tensors_of(table, layout, file, own, rank == 0);
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
  io::SafetensorsWriter writer(files, path, as_header(tensors), metadata());
  read(tensors, [&](std::span<const std::byte> bytes) { writer.put(bytes); });
  return writer.finish();
}

void make_state_file(std::span<const StateTensor> tensors, FileSystem& files, const Path& path) {
  io::make_shared_file(files, path, io::safetensors_header(path, as_header(tensors), metadata()).file_bytes);
}

io::FileHashes write_state_part(std::span<const StateTensor> tensors, const ReadTensors& read,
                                const OpenStretches& open, const Path& path, bool header) {
  const io::SafetensorsHeader begin = io::safetensors_header(path, as_header(tensors), metadata());
  std::vector<io::ByteRange> mine;
  if (header) mine.push_back({0, begin.bytes.size()});
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t element = size_of(tensors[i].dtype);
    const std::uint64_t from = begin.begins[i] + static_cast<std::uint64_t>(tensors[i].begin) * element;
    mine.push_back({from, from + static_cast<std::uint64_t>(tensors[i].elements) * element});
  }
  io::SharedFileWriter writer(open, path, mine);
  if (header) writer.put(std::as_bytes(std::span(begin.bytes)));
  read(tensors, [&](std::span<const std::byte> bytes) { writer.put(bytes); });
  return writer.finish();
}

}  // namespace redline::model
