// Allocates the arenas, binds every op to them, and moves values between them and the host; and the choice of an
// executor by the kind of device.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "program/arena_executor.h"

namespace redline::program {

ArenaExecutor::ArenaExecutor(const ProgramSet& set, device::Device& device)
    : set_(set), device_(device), arena_(device.allocate(set.memory.device.total)) {
  // Persistent memory starts at zero: moments do, and the gaps between parameters must stay there.
  if (!arena_->is_zero()) device_.fill(arena_->data(), 0, set_.memory.device.persistent);
  if (const std::int64_t bytes = set_.memory.host.total; bytes > 0) {
    host_arena_ = device.try_allocate_host(bytes);
    if (!host_arena_)
      fail_machine("the host has no {:.1f} GiB for the values that lie in its memory", std::ldexp(bytes, -30));
    std::memset(host_arena_->data(), 0, static_cast<std::size_t>(bytes));
  }
  for (const Constant& c : set_.constants) write(c.value, c.data.data(), set_.at(c.value).bytes());
  for (const Program& program : set_.programs) {
    std::vector<BoundOp>& bound = bound_.emplace_back();
    for (const Node& node : program.nodes) bound.push_back(bind(node.op));
  }
}

Tensor ArenaExecutor::tensor(ValueId id) const {
  const std::int64_t offset = set_.memory.offsets[static_cast<std::size_t>(id.index)];
  REDLINE_CHECK(offset >= 0, "{} has no memory", set_.at(id).full_name());
  const device::Buffer& arena = set_.at(id).memory == Memory::device ? *arena_ : *host_arena_;
  return {arena.data() + offset, set_.at(id).dtype, set_.at(id).shape};
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

void ArenaExecutor::post(std::span<const ValueId> ids) {
  std::int64_t bytes = 0;
  pieces_.clear();
  for (const ValueId id : ids) {
    REDLINE_CHECK(set_.at(id).memory == Memory::device, "{} is on the host already", set_.at(id).name);
    pieces_.push_back({tensor(id).data, set_.at(id).bytes()});
    bytes += set_.at(id).bytes();
  }
  if (!readback_) readback_ = device_.make_readback(bytes);
  readback_->post(pieces_);
}

void ArenaExecutor::take(void* host) {
  REDLINE_CHECK(readback_, "nothing was posted");
  readback_->take(host);
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

void ArenaExecutor::count(ValueId copy) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(ops::Fp8Count));
  if (!counts_) counts_ = device_.allocate(kBytes * std::ranges::count_if(set_.values, is_fp8, &Value::dtype));
  REDLINE_CHECK((counts_begun_ + 1) * kBytes <= counts_->bytes(), "more counts than values in eight bits");
  if (counts_begun_ == 0) device_.fill(counts_->data(), 0, counts_->bytes());
  count_in({tensor(copy), {counts_->data() + kBytes * counts_begun_++, DType::u8, {kBytes}}});
}

std::vector<ops::Fp8Count> ArenaExecutor::counted() {
  std::vector<ops::Fp8Count> counts(static_cast<std::size_t>(std::exchange(counts_begun_, 0)));
  if (!counts.empty())
    device_.copy_out(counts.data(), counts_->data(), static_cast<std::int64_t>(counts.size() * sizeof(ops::Fp8Count)));
  return counts;
}

void ArenaExecutor::clear(ValueId id) {
  const Value& value = set_.at(id);
  if (value.memory == Memory::device) return device_.fill(tensor(id).data, 0, value.bytes());
  device_.wait();
  std::memset(tensor(id).data, 0, static_cast<std::size_t>(value.bytes()));
}

void ArenaExecutor::poison_transients() {
  const auto& [offsets, device, host] = set_.memory;
  device_.fill(arena_->data() + device.persistent, 0xFF, device.total - device.persistent);
  if (!host_arena_) return;
  device_.wait();
  std::memset(host_arena_->data() + host.persistent, 0xFF, static_cast<std::size_t>(host.total - host.persistent));
}

std::size_t ArenaExecutor::index_of(std::string_view program) const {
  return static_cast<std::size_t>(&set_.find(program, documents_, step_) - set_.programs.data());
}

BoundOp ArenaExecutor::bind(const Op& op) const {
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
