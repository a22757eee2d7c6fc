// A copy of the saved part of an engine's state, taken between two steps, so that a thread can read it while training
// goes on. It lies on the device where there is room, else in the host's memory.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "model/engine.h"
#include "model/state_files.h"

namespace redline::model {

// Bytes that a snapshot of a state takes, whole blocks of memory for each of its arrays.
std::int64_t snapshot_bytes(const optim::StateTable& table);

// Memory of a card that a snapshot leaves free for a run's first evaluation, sample or new kernel.
inline constexpr std::int64_t kSpareForSnapshot = std::int64_t{1} << 30;

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

  // Copies the state as the queued work leaves it. Nobody may be reading the snapshot before.
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
