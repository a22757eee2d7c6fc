// The saved state of a run. Rows of the state table map to tensors of a checkpoint's files, which are written directly
// from memory of the host, else through two windows, one filled while the other is written. A Snapshot is a copy of the
// state that a thread can read while training goes on.
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

// Bytes that a snapshot of a state takes, whole blocks of memory for each of its arrays.
std::int64_t snapshot_bytes(const optim::StateTable& table);

// Memory of a card that a snapshot leaves free for a run's first evaluation, sample or new kernel.
inline constexpr std::int64_t kSpareForSnapshot = std::int64_t{1} << 30;

// A copy of the saved part of an engine's state, taken between two steps. It lies on the device where there is room,
// else in the host's memory.
class Snapshot {
 public:
  enum class Where {
    device,
    host,     // a card's state is copied there while the next forward and backward pass run
    nowhere,  // no room: the state itself is read, and may not change meanwhile
  };
  // `spare`: bytes of the device that it leaves to others.
  explicit Snapshot(Engine& engine, std::int64_t spare = kSpareForSnapshot);

  Where where() const { return where_; }
  std::int64_t bytes() const { return bytes_; }

  // Copies the state as the queued work leaves it. No thread may be reading the snapshot.
  void take();
  // Called before an update is queued: the update waits for copies into the host's memory. Returns at once.
  void hold_update();
  // Gives all bytes of the tensors, as StateReader does. One thread may call it, after take().
  void read(std::span<const StateTensor> tensors, const TakeBytes& take);

 private:
  Engine& engine_;
  Where where_ = Where::nowhere;
  std::int64_t bytes_ = 0;
  std::unique_ptr<device::CopyLane> lane_;
  std::unique_ptr<device::Buffer> memory_;
  std::vector<Tensor> arrays_;  // one for each row of the state table; rows that no file holds have no memory
  StateReader reader_;
  bool copying_ = false;  // into the host's memory, and no update was held for it yet
};

}  // namespace redline::model
