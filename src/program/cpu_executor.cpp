// The CPU executor: node by node, on the device's thread pool.
#include <chrono>

#include "ops/cpu/kernels.h"
#include "optim/cpu/kernels.h"
#include "program/executor.h"

namespace redline::program {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(const ProgramSet& set, device::CpuDevice& device)
      : set_(set), device_(device), arena_(device.allocate(set.memory.total)) {
    // Persistent memory starts at zero: moments do, and the gaps between parameters must stay there.
    device_.fill(arena_->data(), 0, set_.memory.persistent);
    for (const Constant& c : set_.constants) write(c.value, c.data.data(), set_.at(c.value).bytes());
    for (const Program& program : set_.programs) {
      std::vector<BoundOp>& bound = bound_.emplace_back();
      for (const Node& node : program.nodes) bound.push_back(bind(node.op));
    }
  }

  void run(std::string_view name, NodeTimer* timer) override {
    const Program& program = set_.find(name);
    const std::vector<BoundOp>& ops = bound_[static_cast<std::size_t>(&program - set_.programs.data())];
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const double begin = timer ? now() : 0;
      std::visit([&](const auto& op) { run(op, device_.pool()); }, ops[i]);
      if (timer) timer->node(program.nodes[i], begin, now());
    }
  }

  Tensor tensor(ValueId id) const override {
    const std::int64_t offset = set_.memory.offsets[static_cast<std::size_t>(id.index)];
    REDLINE_CHECK(offset >= 0, "{} has no memory", set_.at(id).name);
    return {arena_->data() + offset, set_.at(id).dtype, set_.at(id).shape};
  }

  void write(ValueId id, const void* host, std::int64_t bytes) override {
    REDLINE_CHECK(bytes == set_.at(id).bytes(), "{} holds {} bytes, not {}", set_.at(id).name, set_.at(id).bytes(),
                  bytes);
    device_.copy_in(tensor(id).data, host, bytes);
  }
  void read(ValueId id, void* host, std::int64_t bytes) override {
    REDLINE_CHECK(bytes == set_.at(id).bytes(), "{} holds {} bytes, not {}", set_.at(id).name, set_.at(id).bytes(),
                  bytes);
    device_.copy_out(host, tensor(id).data, bytes);
  }
  void clear(ValueId id) override { device_.fill(tensor(id).data, 0, set_.at(id).bytes()); }
  void poison_transients() override {
    device_.fill(arena_->data() + set_.memory.persistent, 0xFF, set_.memory.total - set_.memory.persistent);
  }
  std::int64_t arena_bytes() const override { return arena_->bytes(); }

 private:
  // One overload set for all kernels; the op's own namespace decides which backend function it is.
  template <class Op>
  static void run(const Op& op, ThreadPool& pool) {
    if constexpr (requires { ops::cpu::run(op, pool); })
      ops::cpu::run(op, pool);
    else
      optim::cpu::run(op, pool);
  }

  BoundOp bind(const Op& op) const {
    return std::visit(
        [&](const auto& o) -> BoundOp {
          return o.map([&](std::string_view, ValueId id, Access) { return id.present() ? tensor(id) : Tensor{}; });
        },
        op);
  }

  const ProgramSet& set_;
  device::CpuDevice& device_;
  std::unique_ptr<device::Buffer> arena_;
  std::vector<std::vector<BoundOp>> bound_;
};

}  // namespace

std::unique_ptr<Executor> make_executor(const ProgramSet& set, device::Device& device) {
  REDLINE_CHECK(device.kind() == device::Kind::cpu, "no executor for this device yet");
  return std::make_unique<CpuExecutor>(set, static_cast<device::CpuDevice&>(device));
}

}  // namespace redline::program
