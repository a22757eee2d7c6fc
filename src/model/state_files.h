// The saved state of a run. Rows of the state table map to tensors of a checkpoint's files, which are written directly
// from memory of the host, else through two windows, one filled while the other is written. A snapshot is a copy of the
// rows that a thread can read while training goes on.
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
#include "model/engine.h"
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

// The tensors that a rank writes: what it alone answers for of each row, which after an update is what it has just
// updated; rank 0 writes arrays that belong to no parameter. All ranks together write every element once.
std::vector<StateTensor> tensors_to_write(const LoweredModel& lowered, std::string_view file, int rank);

// Bytes of all tensors in those files, of all ranks.
std::int64_t state_bytes(const optim::StateTable& table);

// Two windows of the host's memory through which bytes go to a device or come from it: one is under way while the host
// uses the other. Where no memory can be pinned, ordinary memory does the same, only slower.
class HostWindows {
 public:
  // Two are pinned, which costs up to half a millisecond for each MiB, so a smaller transfer takes smaller ones.
  static constexpr std::int64_t kBytes = std::int64_t{32} << 20;

  explicit HostWindows(device::Device& device) : device_(device), lane_(device.make_lane()) {}
  // One of the two, with so many bytes at least, once what went through it before has arrived.
  std::span<std::byte> open(std::size_t window, std::int64_t bytes);
  device::CopyLane& lane() { return *lane_; }  // the mark of a window's copies has its number

 private:
  struct Memory {
    std::unique_ptr<device::Buffer> pinned;
    std::vector<std::byte> ordinary;
    std::span<std::byte> bytes;
  };
  device::Device& device_;
  std::array<Memory, device::CopyLane::kMarks> memory_;
  std::unique_ptr<device::CopyLane> lane_;  // the last: it ends before the memory goes
};

// Gives all bytes of tensors in order, in pieces that may end anywhere. Rows in memory of the host are read in place.
// The host holds two windows at most, whatever the tensors' sizes, and keeps them for the next time.
using TakeBytes = std::function<void(std::span<const std::byte> bytes)>;
class StateReader {
 public:
  using OnHost = std::function<bool(std::size_t row)>;
  StateReader(device::Device& device, OnHost on_host) : windows_(device), on_host_(std::move(on_host)) {}
  void follow() { windows_.lane().follow(); }  // what is read from here on is what the work so far leaves
  // `arrays`: one for each row.
  void read(std::span<const StateTensor> tensors, std::span<const Tensor> arrays, const TakeBytes& take);

 private:
  void read_through_windows(std::span<const StateTensor> tensors, std::span<const Tensor> arrays,
                            const TakeBytes& take);

  HostWindows windows_;
  OnHost on_host_;
};

// As the work so far leaves them. `arrays` are memory of the device, those of an engine where each value has its own.
void read_state(std::span<const StateTensor> tensors, std::span<const Tensor> arrays, device::Device& device,
                const TakeBytes& take);
void read_state(std::span<const StateTensor> tensors, Engine& engine, const TakeBytes& take);

// Writes tensors to a safetensors file, synced. `read` gives their bytes. Returns the file's hash.
using ReadTensors = std::function<void(std::span<const StateTensor> tensors, const TakeBytes& take)>;
std::uint64_t write_state(std::span<const StateTensor> tensors, const ReadTensors& read, FileSystem& files,
                          const Path& path);

// The same file by several ranks: rank 0 makes it and writes the header, and each rank writes its own part
// (tensors_to_write). Returns the part of this rank, synced and read back.
void make_state_file(std::span<const StateTensor> tensors, FileSystem& files, const Path& path);
io::FileHashes write_state_part(std::span<const StateTensor> tensors, const ReadTensors& read,
                                const OpenStretches& open, const Path& path, bool header);

// The copy of the saved rows that a checkpoint is written from while training goes on. It is a part of the programs: a
// value for each row, in a memory that was chosen before anything runs, and two programs. kSnapshot copies within the
// device's memory in the order of its work, and into the host's memory beside the work that follows; kAfterSnapshot
// has work wait for the latter. A row in the host's memory has its copy there. Without room for it the rows themselves
// are written, and training stands still meanwhile.
void add_snapshot(LoweredModel& lowered, program::Memory memory);

struct SnapshotBytes {
  std::int64_t device = 0, host = 0;
  std::int64_t all() const { return device + host; }
};
SnapshotBytes snapshot_bytes(const LoweredModel& lowered, program::Memory memory);
// The memories in which it has room, the best first.
std::vector<program::Memory> snapshot_memories(const LoweredModel& lowered, const SnapshotBytes& room);

// Memory of a card that a snapshot leaves free for a run's first evaluation, sample or new kernel.
inline constexpr std::int64_t kSpareForSnapshot = std::int64_t{1} << 30;

// What is left for it of memory that a run may have, beside its programs. Ranks of one machine share the host's.
SnapshotBytes room_for_snapshot(const LoweredModel& lowered, const device::Device& device, const SnapshotBytes& allowed,
                                int ranks_here = 1);

// Gives the saved rows to a thread that writes them: from the copy, or themselves where none was planned. These may not
// change meanwhile.
class SavedState {
 public:
  explicit SavedState(Engine& engine);

  // The state as the queued work leaves it. No thread may be reading.
  void take();
  // Gives all bytes of the tensors, as StateReader does. One thread may call it, after take().
  void read(std::span<const StateTensor> tensors, const TakeBytes& take);

 private:
  Engine& engine_;
  std::vector<Tensor> arrays_;  // one for each row of the state table; rows that no file holds have no memory
  StateReader reader_;
};

}  // namespace redline::model
