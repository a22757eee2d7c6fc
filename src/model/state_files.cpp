// Lists the tensors of the state table and streams them from a device's memory; adds the programs of a snapshot to
// those of a run.
#include "model/state_files.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/dtype.h"
#include "base/error.h"
#include "base/shards.h"
#include "io/manifest.h"
#include "io/safetensors.h"
#include "program/builder.h"
#include "program/planner.h"

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
    } else if (row == 0 || table[row - 1].name != a.name) {
      // Rows of one name that follow each other are one list, in the order of the parameters, wherever it was cut.
      std::size_t end = row + 1;
      while (end < table.size() && table[end].name == a.name) ++end;
      for (const StoredParameter& p : layout.stored)
        for (std::size_t r = row; r < end; ++r) {
          const optim::StateArray& of = table[r];
          const Range within = intersection(p.range(), of.all()), part = intersection(p.range(), own(of));
          if (within.empty()) continue;
          REDLINE_CHECK(within == p.range(), "{} hold a part of {}", of.name, p.name);
          StateTensor& t = tensors.emplace_back(StateTensor{of.stored_as + p.name, p.shape, r, 0, 0, of.dtype});
          if (part.empty()) continue;
          t.first = part.begin - of.range.begin;
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

std::vector<StateTensor> tensors_to_write(const LoweredModel& m, std::string_view file, int rank) {
  const auto own = [&](const optim::StateArray& a) -> Range {
    const Range part = intersection(a.range, m.own);
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
  return tensors_of(m.state, m.layout, file, own, rank == 0);
}

std::span<std::byte> HostWindows::open(std::size_t window, std::int64_t bytes) {
  lane_->wait(static_cast<int>(window));
  Memory& memory = memory_[window];
  if (std::ssize(memory.bytes) >= bytes) return memory.bytes;
  memory = {};
  const auto size = static_cast<std::size_t>(bytes);
  memory.pinned = device_.try_allocate_host(bytes);
  if (!memory.pinned) memory.ordinary.resize(size);
  return memory.bytes = {memory.pinned ? memory.pinned->data() : memory.ordinary.data(), size};
}

namespace {

std::span<const std::byte> bytes_of(const StateTensor& t, std::span<const Tensor> arrays) {
  const Tensor& array = arrays[t.row];
  REDLINE_CHECK(t.first >= 0 && t.first + t.elements <= array.elements(), "{} is elements {} to {} of {}", t.name,
                t.first, t.first + t.elements, array.elements());
  const std::size_t element = size_of(array.dtype);
  return std::span<const std::byte>(array.as<std::byte>(), static_cast<std::size_t>(array.bytes()))
      .subspan(static_cast<std::size_t>(t.first) * element, static_cast<std::size_t>(t.elements) * element);
}

}  // namespace

void StateReader::read(std::span<const StateTensor> tensors, std::span<const Tensor> arrays, const TakeBytes& take) {
  for (std::size_t i = 0; i < tensors.size();) {  // neighbours in the same memory at a time
    const bool on_host = on_host_(tensors[i].row);
    std::size_t end = i + 1;
    while (end < tensors.size() && on_host_(tensors[end].row) == on_host) ++end;
    if (!on_host)
      read_through_windows(tensors.subspan(i, end - i), arrays, take);
    else
      for (const StateTensor& t : tensors.subspan(i, end - i)) take(bytes_of(t, arrays));
    i = end;
  }
}

void StateReader::read_through_windows(std::span<const StateTensor> tensors, std::span<const Tensor> arrays,
                                       const TakeBytes& take) {
  std::size_t left = 0;
  for (const StateTensor& t : tensors) left += bytes_of(t, arrays).size();
  const std::int64_t window_bytes = std::min(static_cast<std::int64_t>(left), HostWindows::kBytes);

  std::array<std::span<std::byte>, 2> filled;
  std::size_t next = 0, done = 0;  // the tensor that is read next, and how much of it was
  const auto fetch = [&](std::size_t w) {
    filled[w] = {};
    if (left == 0) return;
    const std::span<std::byte> room = windows_.open(w, window_bytes);
    std::size_t at = 0;
    while (at < room.size() && next < tensors.size()) {
      const std::span<const std::byte> rest = bytes_of(tensors[next], arrays).subspan(done);
      const std::size_t count = std::min(room.size() - at, rest.size());
      windows_.lane().copy(room.data() + at, rest.data(), static_cast<std::int64_t>(count));
      at += count;
      done += count;
      if (count == rest.size()) {
        ++next;
        done = 0;
      }
    }
    windows_.lane().mark(static_cast<int>(w));
    filled[w] = room.first(at);
    left -= at;
  };
  fetch(0);
  for (std::size_t w = 0; !filled[w].empty(); w = 1 - w) {
    fetch(1 - w);
    windows_.lane().wait(static_cast<int>(w));
    take(filled[w]);
  }
}

void read_state(std::span<const StateTensor> tensors, std::span<const Tensor> arrays, device::Device& device,
                const TakeBytes& take) {
  StateReader reader(device, [&](std::size_t) { return device.shares_host_memory(); });
  reader.follow();
  reader.read(tensors, arrays, take);
}

void read_state(std::span<const StateTensor> tensors, Engine& engine, const TakeBytes& take) {
  StateReader reader(engine.device(),
                     [&](std::size_t row) { return engine.on_host(engine.lowered().state_values[row]); });
  const std::vector<Tensor> arrays = engine.state();
  reader.follow();
  reader.read(tensors, arrays, take);
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

// Where the copy of a row lies; nothing where no file has the row.
std::optional<program::Memory> copy_of(const LoweredModel& m, std::size_t row, program::Memory memory) {
  if (m.state[row].file.empty()) return std::nullopt;
  return m.set.at(m.state_values[row]).memory == program::Memory::host ? program::Memory::host : memory;
}

}  // namespace

SnapshotBytes snapshot_bytes(const LoweredModel& m, program::Memory memory) {
  SnapshotBytes bytes;
  for (std::size_t row = 0; row < m.state.size(); ++row)
    if (const auto in = copy_of(m, row, memory))
      (*in == program::Memory::device ? bytes.device : bytes.host) += aligned(m.set.at(m.state_values[row]).bytes());
  return bytes;
}

std::vector<program::Memory> snapshot_memories(const LoweredModel& m, const SnapshotBytes& room) {
  const auto fits = [](std::int64_t bytes, std::int64_t left) { return bytes == 0 || bytes <= left; };
  std::vector<program::Memory> memories;
  for (const auto memory : {program::Memory::device, program::Memory::host})
    if (const SnapshotBytes b = snapshot_bytes(m, memory); fits(b.device, room.device) && fits(b.host, room.host))
      memories.push_back(memory);
  return memories;
}

SnapshotBytes room_for_snapshot(const LoweredModel& m, const device::Device& device, const SnapshotBytes& allowed,
                                int ranks_here) {
  const std::int64_t on_host = allowed.host - m.set.memory.host.total;
  if (device.shares_host_memory())  // the device's memory is the host's
    return {0, std::min(on_host,
                        device.available_bytes() / ranks_here - m.set.memory.device.total - m.set.memory.host.total)};
  const std::int64_t left = device.available_bytes() - m.set.memory.device.total;
  return {std::min(left - kSpareForSnapshot, allowed.device - m.set.memory.device.total),
          std::min(on_host, device::available_host_bytes() / ranks_here - m.set.memory.host.total)};
}

void add_snapshot(LoweredModel& m, program::Memory memory) {
  REDLINE_CHECK(m.snapshot.empty(), "two copies of the state");
  std::int32_t pairs = 0;  // the numbers that other programs use meanwhile
  for (const program::Program& p : m.set.programs)
    for (const program::Node& node : p.nodes) pairs = std::max(pairs, node.pair + 1);
  program::Program after{.name = std::string(kAfterSnapshot), .nodes = {}, .across = true};
  program::Writer w(m.set);
  w.begin(std::string(kSnapshot), {});
  w.set_place({program::Part::update});
  for (std::size_t row = 0; row < m.state.size(); ++row) {
    m.snapshot.push_back({});
    const auto in = copy_of(m, row, memory);
    if (!in) continue;
    const program::ValueId from = m.state_values[row];
    const program::Value value = m.set.at(from);
    const std::string name = fmt::format("snapshot of {}", value.name);
    const program::ValueId to = m.snapshot.back() =
        w.declare(name, value.shape, value.dtype, program::Role::snapshot, *in);
    if (*in == program::Memory::device) {
      w.append(ops::Copy<program::ValueId>{from, to}, program::Phase::update, name);
      continue;
    }
    w.start(ops::Copy<program::ValueId>{from, to}, program::Phase::update, name);
    program::Node& started = w.program().nodes.back();
    started.pair = pairs++;
    started.lane = program::Lane::to_host;
    after.nodes.push_back(started.wait());
    w.program().across = true;
  }
  w.end();
  m.set.programs.push_back(std::move(after));
  program::plan_memory(m.set);
}

SavedState::SavedState(Engine& engine)
    : engine_(engine), reader_(engine.device(), [&engine](std::size_t row) {
        const LoweredModel& m = engine.lowered();
        return engine.on_host(engine.has_snapshot() ? m.snapshot[row] : m.state_values[row]);
      }) {
  if (!engine.has_snapshot()) return;
  for (const program::ValueId copy : engine.lowered().snapshot)
    arrays_.push_back(copy.present() ? engine.executor().tensor(copy) : Tensor{});
}

void SavedState::take() {
  if (engine_.has_snapshot()) {
    engine_.take_snapshot();
  } else {
    arrays_ = engine_.state();
    engine_.device().wait();  // rows in the host's memory are read in place
  }
  reader_.follow();
}

void SavedState::read(std::span<const StateTensor> tensors, const TakeBytes& take) {
  if (engine_.has_snapshot()) engine_.executor().wait(kSnapshot);
  reader_.read(tensors, arrays_, take);
}

}  // namespace redline::model
