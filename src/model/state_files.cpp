// Lists the tensors of the state table and streams them from a device's memory; finds room for a snapshot, copies the
// state into it, and reads it back beside the work.
#include "model/state_files.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <utility>

#include "base/dtype.h"
#include "base/error.h"
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
      std::vector<std::int64_t> shape = {a.all_elements()};
      if (a.shape.rank() > 0) shape.clear();
      for (int i = 0; i < a.shape.rank(); ++i) shape.push_back(a.shape[i]);
      StateTensor& t = tensors.emplace_back(StateTensor{a.stored_as, std::move(shape), row, 0, 0, a.dtype});
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
    // What is about a range as a whole belongs to whom the range's first element does.
    if (a.shape.rank() > 0)
      return !part.empty() && part.begin == a.range.begin ? a.range : Range{a.range.begin, a.range.begin};
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

namespace {

std::int64_t bytes_of(const optim::StateArray& a) {
  return a.file.empty() ? 0 : aligned(a.elements() * static_cast<std::int64_t>(size_of(a.dtype)));
}

std::unique_ptr<device::Buffer> room_on(device::Device& device, std::int64_t bytes, std::int64_t spare) {
  if (device.shares_host_memory() || device.available_bytes() < bytes + spare) return nullptr;
  try {
    return device.allocate(bytes);
  } catch (const MachineError&) {  // another process was faster
    return nullptr;
  }
}

}  // namespace

std::int64_t snapshot_bytes(const optim::StateTable& table) {
  std::int64_t bytes = 0;
  for (const optim::StateArray& a : table) bytes += bytes_of(a);
  return bytes;
}

Snapshot::Snapshot(Engine& engine, std::int64_t spare)
    : engine_(engine),
      bytes_(snapshot_bytes(engine.lowered().state)),
      lane_(engine.device().make_lane()),
      memory_(room_on(engine.device(), bytes_, spare)) {
  if (memory_) {
    where_ = Where::device;
    reader_ = StateReader([this](std::int64_t bytes) { return lane_->make_window(bytes); });
  } else if ((memory_ = engine.device().try_allocate_host(bytes_))) {
    where_ = Where::host;
    reader_ = StateReader();
  } else {
    reader_ = StateReader(windows_of(engine.device()));
    arrays_ = engine.state();
    return;
  }
  std::byte* at = memory_->data();
  const optim::StateTable& table = engine.lowered().state;
  const std::vector<Tensor> state = engine.state();
  for (std::size_t i = 0; i < table.size(); ++i) {
    Tensor& array = arrays_.emplace_back(state[i]);
    array.data = table[i].file.empty() ? nullptr : at;
    at += bytes_of(table[i]);
  }
}

void Snapshot::take() {
  if (where_ == Where::nowhere) return;
  const std::vector<Tensor> state = engine_.state();
  const bool by_lane = where_ == Where::host && !engine_.device().shares_host_memory();
  if (by_lane) lane_->follow();
  for (std::size_t i = 0; i < state.size(); ++i) {
    if (!arrays_[i].data) continue;
    if (by_lane)
      lane_->fetch(arrays_[i].as<std::byte>(), state[i].data, state[i].bytes());
    else
      engine_.device().copy_within(arrays_[i].data, state[i].data, state[i].bytes());
  }
  if (!by_lane) lane_->follow();
  copying_ = by_lane;
}

void Snapshot::hold_update() {
  if (std::exchange(copying_, false)) lane_->hold_work();
}

void Snapshot::read(std::span<const StateTensor> tensors, const TakeBytes& take) {
  if (where_ == Where::host) lane_->wait();
  reader_.read(tensors, arrays_, take);
}

}  // namespace redline::model
