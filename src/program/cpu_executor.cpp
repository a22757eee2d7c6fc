// The CPU executor: node by node, on the device's thread pool. Kernels compute in fp32; a value that the program keeps
// in bf16 is taken to fp32 for the node that reads it, and rounded by the node that writes it.
#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/small_floats.h"
#include "dist/group.h"
#include "ops/cpu/kernels.h"
#include "optim/cpu/kernels.h"
#include "program/arena_executor.h"

namespace redline::program {
namespace {

// A second thread, as a card has a second stream. Work that a pair of nodes starts runs there, one after the other,
// beside the nodes that follow.
class SideThread {
 public:
  SideThread() = default;
  ~SideThread();  // waits for started work
  SideThread(const SideThread&) = delete;
  SideThread& operator=(const SideThread&) = delete;

  std::int64_t start(std::function<void()> task);  // its number
  // Waits until that task and all before it are done. An exception from one of them is thrown here, and by every later
  // wait.
  void wait(std::int64_t number);
  void settle();  // waits until nothing is under way

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable has_task_, has_ended_;
  std::queue<std::function<void()>> tasks_;
  std::int64_t started_ = 0, ended_ = 0;
  std::exception_ptr error_;
  bool stopping_ = false;
  std::thread thread_;  // from the first task on
};

SideThread::~SideThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  has_task_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::int64_t SideThread::start(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  tasks_.push(std::move(task));
  has_task_.notify_one();
  return ++started_;
}

void SideThread::wait(std::int64_t number) {
  std::unique_lock lock(mutex_);
  has_ended_.wait(lock, [&] { return ended_ >= number; });
  if (error_) std::rethrow_exception(error_);
}

void SideThread::settle() {
  std::unique_lock lock(mutex_);
  has_ended_.wait(lock, [&] { return ended_ == started_; });
}

void SideThread::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    has_task_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop();
    const bool broken = error_ != nullptr;
    lock.unlock();
    std::exception_ptr error;
    if (!broken) {  // after a failure nothing would be true
      try {
        task();
      } catch (...) {
        error = std::current_exception();
      }
    }
    lock.lock();
    if (error) error_ = error;
    ++ended_;
    has_ended_.notify_all();
  }
}

class CpuExecutor final : public ArenaExecutor {
 public:
  CpuExecutor(const ProgramSet& set, device::CpuDevice& device, const ExecutorOptions& options)
      : ArenaExecutor(set, device, options.late_snapshots),
        device_(device),
        group_(options.group),
        under_way_(pairs()) {
    begin();
  }

  void run(std::string_view name, NodeTimer* timer, const StopFlag* stop) override {
    const std::size_t program = index_of(name);
    const Stoppable stoppable(device_.pool(), stop);  // one attention over long rows takes minutes
    try {
      for (std::size_t i = 0; i < ops(program).size(); ++i) {
        end_if_asked(stop);
        const double begin = timer ? steady_seconds() : 0;
        const Node& node = set().programs[program].nodes[i];
        run_node(node, ops(program)[i]);
        if (timer) timer->node(node, begin, steady_seconds());
      }
    } catch (...) {  // what comes next may use the bytes of copies that were under way
      for (const Lane lane : {Lane::to_host, Lane::to_device}) lanes_[static_cast<std::size_t>(lane)].settle();
      throw;
    }
  }

  void wait(std::string_view name) override {
    for (const Node& node : set().find(name).nodes)
      if (node.when == When::start) lane(node).wait(number(node));
  }

  std::optional<double> waited_for_ranks() const override { return waited_; }

 private:
  // Collectives run on a thread of their own, in the order of their nodes, and so do pairs of copies between memories,
  // one thread a direction; other pairs run at their start.
  void run_node(const Node& node, const BoundOp& op) {
    const bool collective = is_collective(op);
    if (!collective && (node.lane == Lane::side || node.when == When::now)) {
      if (node.when != When::wait) run_one(op);
      return;
    }
    std::int64_t awaited = 0;
    if (node.when != When::wait) {
      awaited = lane(node).start([this, &op] {
        if (const auto* copy = std::get_if<ops::Copy<Tensor>>(&op))  // without the pool, which nodes beside it use
          std::memcpy(copy->to.data, copy->from.data, static_cast<std::size_t>(copy->to.bytes()));
        else
          run_one(op);
      });
      if (node.when == When::start) number(node) = awaited;
      if (node.when == When::start) return;
    } else {
      awaited = number(node);
    }
    const double begin = steady_seconds();
    lane(node).wait(awaited);
    if (collective) waited_ += steady_seconds() - begin;
  }
  SideThread& lane(const Node& node) { return lanes_[static_cast<std::size_t>(node.lane)]; }
  std::int64_t& number(const Node& node) { return under_way_[static_cast<std::size_t>(node.pair)]; }
  void run_one(const BoundOp& op) override {
    std::visit([&](const auto& o) { run_node(o); }, op);
  }
  void count_in(const ops::CountFp8<Tensor>& op) override { ops::cpu::run(op, device_.pool()); }

  struct Stoppable {
    Stoppable(ThreadPool& p, const StopFlag* stop) : pool(p) { pool.stop_on(stop); }
    ~Stoppable() { pool.stop_on(nullptr); }
    ThreadPool& pool;
  };

  // The norm is of the sum as it is stored, as on a card: that is what the backward pass sees, and what it is made
  // again of.
  void run_node(const ops::AddNorm<Tensor>& op) {
    if (op.residual_out.dtype != DType::bf16) return run_in_f32(op);
    run_in_f32(ops::Add<Tensor>{op.residual_in, op.branch, op.residual_out});
    run_in_f32(ops::AddNorm<Tensor>{op.residual_out, {}, op.weight, {}, op.y, op.rstd, op.eps, op.fp8, op.one_plus});
  }
  void run_node(const ops::Copy<Tensor>& op) {
    device_.pool().for_ranges(op.to.bytes(), kCopyGrain, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(op.to.as<std::byte>() + begin, op.from.as<std::byte>() + begin,
                  static_cast<std::size_t>(end - begin));
    });
  }
  template <class Op>
  void run_node(const Op& op) {
    if constexpr (kCollective<Op>) {
      REDLINE_CHECK(group_, "{} without ranks", Op::kName);
      group_->run(op, nullptr);
    } else {
      run_in_f32(op);
    }
  }

  template <class Op>
  void run_in_f32(const Op& op) {
    struct Wide {
      Tensor narrow, wide;
      Access access;
    };
    std::array<Wide, kMostOperands> wide;
    std::size_t count = 0;
    const auto widened = op.map([&](std::string_view, const Tensor& t, Access access) {
      if (t.dtype != DType::bf16) return t;
      REDLINE_CHECK(count < wide.size(), "{} has too many operands", Op::kName);
      std::vector<float>& memory = wide_[count];
      if (std::ssize(memory) < t.elements()) memory.resize(static_cast<std::size_t>(t.elements()));
      Wide& w = wide[count++] = {t, {memory.data(), DType::f32, t.shape}, access};
      if (access != Access::write) to_f32(t, w.wide);
      return w.wide;
    });
    run(widened, device_.pool());
    for (const Wide& w : std::span(wide).first(count))
      if (w.access != Access::read) to_bf16(w.wide, w.narrow);
  }

  static constexpr std::int64_t kGrain = 1 << 16, kCopyGrain = 8 << 20;
  template <class Body>
  void for_elements(std::int64_t n, const Body& body) {
    const auto task = [&](std::int64_t i) {
      for (std::int64_t j = i * kGrain; j < std::min(n, (i + 1) * kGrain); ++j) body(j);
    };
    device_.pool().run((n + kGrain - 1) / kGrain, std::cref(task));
  }
  void to_f32(const Tensor& from, const Tensor& to) {
    for_elements(from.elements(), [&](std::int64_t i) { to.f32()[i] = f32_from_bf16(from.as<std::uint16_t>()[i]); });
  }
  void to_bf16(const Tensor& from, const Tensor& to) {
    for_elements(from.elements(), [&](std::int64_t i) { to.as<std::uint16_t>()[i] = bf16_from_f32(from.f32()[i]); });
  }

  // One overload set for all kernels; the op's own namespace decides which backend function it is.
  template <class Op>
  static void run(const Op& op, ThreadPool& pool) {
    if constexpr (requires { ops::cpu::run(op, pool); })
      ops::cpu::run(op, pool);
    else
      optim::cpu::run(op, pool);
  }

  static constexpr std::size_t kMostOperands = 16;

  device::CpuDevice& device_;
  dist::Group* group_;
  double waited_ = 0;
  std::vector<std::int64_t> under_way_;                 // by pair: its number on its lane
  std::array<std::vector<float>, kMostOperands> wide_;  // by operand of a node
  std::array<SideThread, kLanes> lanes_;                // the last: they end before what they use goes
};

}  // namespace

std::unique_ptr<Executor> make_cpu_executor(const ProgramSet& set, device::CpuDevice& device,
                                            const ExecutorOptions& options) {
  return std::make_unique<CpuExecutor>(set, device, options);
}

}  // namespace redline::program
