// Finds room for a snapshot, copies the state into it, and reads it back beside the work.
#include "model/snapshot.h"

#include <utility>

#include "base/dtype.h"
#include "base/error.h"

namespace redline::model {
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
