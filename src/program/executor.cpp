// Allocates the arenas, binds every op to them, and moves values between them and the host; and the choice of an
// executor by the kind of device.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"
#include "program/arena_executor.h"
#include "program/passes.h"

namespace redline::program {

ArenaExecutor::ArenaExecutor(const ProgramSet& set, device::Device& device)
    : set_(set), device_(device), arena_(device.allocate(set.memory.device.allocated())) {
  if (const std::int64_t bytes = set_.memory.host.allocated(); bytes > 0) {
    const double begin = steady_seconds();
    host_arena_ = device.try_allocate_host(bytes);
    if (!host_arena_)
      fail_machine("the host has no {:.1f} GiB for the values that lie in its memory", std::ldexp(bytes, -30));
    // By all threads and to the end: the first copy into new memory would take ten times as long as the next ones.
    // Pinned memory was touched when it was pinned.
    if (device.shares_host_memory())
      device.fill(host_arena_->data(), 0, bytes);
    else if (!host_arena_->is_zero())
      std::memset(host_arena_->data(), 0, static_cast<std::size_t>(set_.memory.host.total));
    constexpr double kWorthTelling = 1;  // seconds
    if (const double took = steady_seconds() - begin; took >= kWorthTelling)
      log::note("made {:.1f} GiB of the host's memory ready for copies in {:.1f} s", std::ldexp(bytes, -30), took);
  }
  for (const Program& program : set_.programs) {
    std::vector<BoundOp>& bound = bound_.emplace_back();
    for (const Node& node : program.nodes) bound.push_back(bind(node.op));
  }
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
  const auto lies = [&](const Tensor& t) {
    return host_arena_ && t.as<std::byte>() >= host_arena_->data() &&
           t.as<std::byte>() < host_arena_->data() + host_arena_->bytes();
  };
  return lies(op.from) && lies(op.to);
}

void ArenaExecutor::clear(ValueId id) {
  const Value& value = set_.at(id);
  if (value.memory == Memory::device) return device_.fill(tensor(id).data, 0, value.bytes());
  device_.wait();
  const auto fill = [to = tensor(id).as<std::byte>()](std::int64_t begin, std::int64_t end) {
    std::memset(to + begin, 0, static_cast<std::size_t>(end - begin));
  };
  constexpr std::int64_t kGrain = std::int64_t{16} << 20;
  if (value.bytes() <= kGrain) return fill(0, value.bytes());
  ThreadPool().for_ranges(value.bytes(), kGrain, fill);  // one thread takes seconds for the moments of a large model
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
    case device::Kind::cuda:
      if (const std::string lacks = without_kernel(set); !lacks.empty()) fail_user("{}; use --device cpu", lacks);
      return make_cuda_executor(set, device, options);
  }
  fail_machine("make_executor: a device of an unknown kind");
}

}  // namespace redline::program
