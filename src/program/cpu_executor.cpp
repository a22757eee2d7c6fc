// The CPU executor: node by node, on the device's thread pool.
#include "base/clock.h"
#include "ops/cpu/kernels.h"
#include "optim/cpu/kernels.h"
#include "program/arena_executor.h"
#include "program/backends.h"

namespace redline::program {
namespace {

class CpuExecutor final : public ArenaExecutor {
 public:
  CpuExecutor(const ProgramSet& set, device::CpuDevice& device) : ArenaExecutor(set, device), device_(device) {}

  void run(std::string_view name, NodeTimer* timer, const StopFlag* stop) override {
    const std::size_t program = index_of(name);
    const Stoppable stoppable(device_.pool(), stop);  // one attention over long rows takes minutes
    for (std::size_t i = 0; i < ops(program).size(); ++i) {
      end_if_asked(stop);
      const double begin = timer ? steady_seconds() : 0;
      const Node& node = set().programs[program].nodes[i];
      if (node.when != When::wait) std::visit([&](const auto& op) { run(op, device_.pool()); }, ops(program)[i]);
      if (timer) timer->node(node, begin, steady_seconds());
    }
  }

 private:
  struct Stoppable {
    Stoppable(ThreadPool& p, const StopFlag* stop) : pool(p) { pool.stop_on(stop); }
    ~Stoppable() { pool.stop_on(nullptr); }
    ThreadPool& pool;
  };

  // One overload set for all kernels; the op's own namespace decides which backend function it is.
  template <class Op>
  static void run(const Op& op, ThreadPool& pool) {
    if constexpr (requires { ops::cpu::run(op, pool); })
      ops::cpu::run(op, pool);
    else
      optim::cpu::run(op, pool);
  }

  device::CpuDevice& device_;
};

}  // namespace

std::unique_ptr<Executor> make_cpu_executor(const ProgramSet& set, device::CpuDevice& device) {
  return std::make_unique<CpuExecutor>(set, device);
}

}  // namespace redline::program
