// Allocates the arenas, binds every op to them, and moves values between them and the host; and the choice of an
// executor by the kind of device.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <system_error>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "program/arena_executor.h"

namespace redline::program {

namespace {

// By all threads: one takes seconds for the moments of a large model. The pool is of this call, since others use the
// device's.
void clear_on_host(std::byte* at, std::int64_t bytes) {
  const auto fill = [at](std::int64_t begin, std::int64_t end) {
    std::memset(at + begin, 0, static_cast<std::size_t>(end - begin));
  };
  constexpr std::int64_t kGrain = std::int64_t{16} << 20;
  if (bytes <= kGrain) return fill(0, bytes);
  ThreadPool().for_ranges(bytes, kGrain, fill);
}

// Zeros, and touched to the end: the first copy into new memory would take ten times as long as the next ones. Pinned
// memory was touched when it was pinned. Null where the host has no room.
std::unique_ptr<device::Buffer> zeros_on_host(device::Device& device, std::int64_t bytes) {
  std::unique_ptr<device::Buffer> buffer = device.try_allocate_host(bytes);
  if (buffer && (device.shares_host_memory() || !buffer->is_zero())) clear_on_host(buffer->data(), bytes);
  return buffer;
}

[[noreturn]] void fail_on_host(std::int64_t bytes) {
  fail_machine("the host has no {:.1f} GiB for the values that lie in its memory", std::ldexp(bytes, -30));
}

}  // namespace

ArenaExecutor::ArenaExecutor(const ProgramSet& set, device::Device& device, bool late_snapshots)
    : set_(set), device_(device), arena_(device.allocate(set.memory.device.allocated())), bound_(set.programs.size()) {
  made_.memory = steady_seconds();
  const std::int64_t bytes = set_.memory.host.total, of_snapshots = set_.memory.host.snapshot;
  if (bytes > 0 && !(host_arena_ = zeros_on_host(device, bytes))) fail_on_host(bytes);
  if (!late_snapshots && !has_snapshots()) fail_on_host(bytes + of_snapshots);
  made_.host_memory = made_.products = steady_seconds();
  constexpr double kWorthTelling = 1;  // seconds
  if (const double took = made_.host_memory - made_.memory; took >= kWorthTelling)
    log::note("made {:.1f} GiB of the host's memory ready for copies in {:.1f} s",
              std::ldexp(bytes + (late_snapshots ? 0 : of_snapshots), -30), took);
  bind_programs();
}

void ArenaExecutor::begin_snapshots() {
  const std::int64_t bytes = set_.memory.host.snapshot;
  // Read alone once it is set: the thread that saves asks as well, behind the call that began to make them.
  if (bytes == 0 || asked_for_snapshots_) return;
  asked_for_snapshots_ = true;
  // A run can do without the copy: its saves hold it up then.
  try {
    coming_snapshots_ = std::async(std::launch::async, [this, bytes]() -> std::unique_ptr<device::Buffer> {
      try {
        return zeros_on_host(device_, bytes);
      } catch (const MachineError&) {  // there are no threads for it
        return nullptr;
      }
    });
  } catch (const std::system_error&) {  // nor for this
  }
}

bool ArenaExecutor::has_snapshots() {
  begin_snapshots();
  if (coming_snapshots_.valid()) {
    snapshots_ = coming_snapshots_.get();
    bind_programs();
  }
  return snapshots_ || set_.memory.host.snapshot == 0;
}

bool ArenaExecutor::in_snapshots(std::size_t value) const {
  return set_.values[value].memory == Memory::host && set_.memory.offsets[value] >= set_.memory.host.total;
}

bool ArenaExecutor::has_memory(const Program& program) const {
  bool has = true;
  for (const Node& node : program.nodes)
    each_operand(node.op, [&](std::string_view, ValueId id, Access) {
      has = has && (snapshots_ || !in_snapshots(static_cast<std::size_t>(id.index)));
    });
  return has;
}

void ArenaExecutor::bind_programs() {
  for (std::size_t i = 0; i < bound_.size(); ++i)
    if (bound_[i].empty() && has_memory(set_.programs[i]))
      for (const Node& node : set_.programs[i].nodes) bound_[i].push_back(bind(node.op));
}

// Moments start at zero, and the gaps between parameters must stay there.
void ArenaExecutor::begin() {
  if (!arena_->is_zero()) device_.fill(arena_->data(), 0, set_.memory.device.persistent);
  for (const Constant& c : set_.constants) {
    const std::vector<float> data = c.make();
    write(c.value, data.data(), std::ssize(data) * static_cast<std::int64_t>(sizeof(float)));
  }
}

Tensor ArenaExecutor::tensor(ValueId id) const {
  const std::int64_t offset = set_.memory.offsets[static_cast<std::size_t>(id.index)];
  const bool of_snapshots = in_snapshots(static_cast<std::size_t>(id.index));
  REDLINE_CHECK(offset >= 0 && (!of_snapshots || snapshots_), "{} has no memory", set_.at(id).full_name());
  std::byte* const at = of_snapshots                           ? snapshots_->data() - set_.memory.host.total
                        : set_.at(id).memory == Memory::device ? arena_->data()
                                                               : host_arena_->data();
  return {at + offset, set_.at(id).dtype, set_.at(id).shape};
}

void ArenaExecutor::write(ValueId id, const void* host, std::int64_t bytes) {
  check_size(id, bytes);
  write(id, host, bytes, 0);
}

void ArenaExecutor::write(ValueId id, const void* host, std::int64_t bytes, std::int64_t offset) {
  REDLINE_CHECK(offset >= 0 && bytes >= 0 && offset + bytes <= set_.at(id).bytes(), "bytes {} to {} of {}", offset,
                offset + bytes, set_.at(id).name);
  std::byte* const to = tensor(id).as<std::byte>() + offset;
  if (set_.at(id).memory == Memory::device) return device_.copy_in(to, host, bytes);
  device_.wait();  // copies of this memory may be under way
  std::memcpy(to, host, static_cast<std::size_t>(bytes));
}

void ArenaExecutor::read(ValueId id, void* host, std::int64_t bytes) {
  check_size(id, bytes);
  if (set_.at(id).memory == Memory::device) return device_.copy_out(host, tensor(id).data, bytes);
  device_.wait();
  std::memcpy(host, tensor(id).data, static_cast<std::size_t>(bytes));
}

// Pairs run at their start, so that what a node wrote is there when the watch looks.
void ArenaExecutor::run_watched(std::string_view name, const NodeWatch& written, const StopFlag* stop) {
  const std::size_t program = index_of(name);
  const std::vector<Node>& nodes = set_.programs[program].nodes;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    end_if_asked(stop);
    if (nodes[i].when == When::wait) continue;
    run_one(bound_[program][i]);
    written(nodes[i]);
  }
}

void ArenaExecutor::count(ValueId copy, ValueId counts, std::int64_t index) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(ops::Fp8Count));
  REDLINE_CHECK(index >= 0 && (index + 1) * kBytes <= set_.at(counts).bytes(), "count {} of {}", index,
                set_.at(counts).bytes() / kBytes);
  count_in({tensor(copy), {tensor(counts).as<std::byte>() + kBytes * index, DType::u8, {kBytes}}});
}

std::size_t ArenaExecutor::pairs() const {
  std::int32_t most = -1;
  for (const Program& program : set_.programs)
    for (const Node& node : program.nodes) most = std::max(most, node.pair);
  return static_cast<std::size_t>(most + 1);
}

bool ArenaExecutor::within_host(const ops::Copy<Tensor>& op) const {
  const auto lies_in = [](const Tensor& t, const std::unique_ptr<device::Buffer>& arena) {
    return arena && t.as<std::byte>() >= arena->data() && t.as<std::byte>() < arena->data() + arena->bytes();
  };
  const auto lies = [&](const Tensor& t) { return lies_in(t, host_arena_) || lies_in(t, snapshots_); };
  return lies(op.from) && lies(op.to);
}

void ArenaExecutor::clear(ValueId id) {
  const Value& value = set_.at(id);
  if (value.memory == Memory::device) return device_.fill(tensor(id).data, 0, value.bytes());
  device_.wait();
  clear_on_host(tensor(id).as<std::byte>(), value.bytes());
}

void ArenaExecutor::poison_transients() {
  const auto& [offsets, device, host] = set_.memory;
  device_.fill(arena_->data() + device.persistent, 0xFF, device.total - device.persistent);
  if (!host_arena_) return;
  device_.wait();
  std::memset(host_arena_->data() + host.persistent, 0xFF, static_cast<std::size_t>(host.total - host.persistent));
}

std::size_t ArenaExecutor::index_of(std::string_view program) const {
  const auto index = static_cast<std::size_t>(&set_.find(program, documents_, step_) - set_.programs.data());
  REDLINE_CHECK(bound_[index].size() == set_.programs[index].nodes.size(), "{} runs before has_snapshots()", program);
  return index;
}

BoundOp ArenaExecutor::bind(const Op& op) const {
  each_operand(op, [&](std::string_view operand, ValueId id, Access) {
    REDLINE_CHECK(set_.at(id).memory == Memory::device || std::holds_alternative<ops::Copy<ValueId>>(op),
                  "{} computes with {} ({}), which lies in the host's memory", name_of(op), operand,
                  set_.at(id).full_name());
  });
  return std::visit(
      [&](const auto& o) -> BoundOp {
        return o.map([&](std::string_view, ValueId id, Access) { return id.present() ? tensor(id) : Tensor{}; });
      },
      op);
}

void ArenaExecutor::check_size(ValueId id, std::int64_t bytes) const {
  REDLINE_CHECK(bytes == set_.at(id).bytes(), "{} holds {} bytes, not {}", set_.at(id).name, set_.at(id).bytes(),
                bytes);
}

std::unique_ptr<Executor> make_executor(const ProgramSet& set, device::Device& device, const ExecutorOptions& options) {
  switch (device.kind()) {
    case device::Kind::cpu: return make_cpu_executor(set, static_cast<device::CpuDevice&>(device), options);
    case device::Kind::cuda: return make_cuda_executor(set, device, options);
  }
  fail_machine("make_executor: a device of an unknown kind");
}

}  // namespace redline::program
