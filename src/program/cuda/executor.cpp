// The CUDA executor. It makes the plans of all products first, and tunes them. A program's first run launches node by
// node; then it is captured, and every later run replays the graph. Capturing executes nothing, so a first run changes
// state once.
#include <algorithm>
#include <array>
#include <cstring>
#include <future>
#include <thread>
#include <type_traits>

#include "base/clock.h"
#include "base/log.h"
#include "base/words.h"
#include "device/cuda/device.h"
#include "device/cuda/ranges.h"
#include "dist/group.h"
#include "ops/cuda/attention_backends.h"
#include "ops/cuda/cublaslt.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/start_budgets.h"
#include "optim/cuda/kernels.h"
#include "program/arena_executor.h"
#include "program/cuda/wait_clock.h"

namespace redline::program {
namespace {

using device::cuda::Event;
using device::cuda::Graph;
using device::cuda::GraphExec;
using device::cuda::Launch;
using device::cuda::Range;

class CudaExecutor final : public ArenaExecutor {
 public:
  CudaExecutor(const ProgramSet& set, device::CudaDevice& device, const ExecutorOptions& options)
      : ArenaExecutor(set, device, options.late_snapshots),
        device_(device),
        launch_(device.launch()),
        graphs_(options.graphs),
        group_(options.group),
        captured_(set.programs.size()),
        names_(set.programs.size()),
        pairs_(pairs()) {
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      lanes_[lane] = device.side_launch();
      if (lane == static_cast<std::size_t>(Lane::side)) continue;
      copy_streams_.push_back(device::cuda::make_stream());
      lanes_[lane].stream = copy_streams_.back().get();
    }
    if (group_) waits_.emplace();
    prepare_attention();
    tune();
    made_.products = steady_seconds();
    begin();
  }

  ~CudaExecutor() override {  // the arena goes next
    for (const Launch& lane : lanes_) cudaStreamSynchronize(lane.stream);
    cudaStreamSynchronize(launch_.stream);
  }

  void run(std::string_view name, NodeTimer* timer, const StopFlag* stop) override {
    end_if_asked(stop);
    if (attention_.valid()) launch_.own->of<ops::cuda::StartBudgets>().choosing.spend([&] { attention_.get(); });
    const std::size_t program = index_of(name);
    const Range range(set().programs[program].name.c_str());
    if (const GraphExec& graph = captured_[program]; graph && !timer) {
      REDLINE_CUDA(cudaGraphLaunch(graph.get(), launch_.stream));
      return;
    }
    if (timer)
      run_timed(program, *timer);
    else
      run_nodes(program);
    if (graphs_ && !timer && !set().programs[program].across) return capture(program);
    ops::cuda::keep_tuning(launch_);  // of what was not tuned before; nothing to do after a first run
  }

  double choosing() const override { return launch_.own->of<ops::cuda::StartBudgets>().choosing.spent(); }

  void wait(std::string_view name) override {
    for (const Node& node : set().find(name).nodes)
      if (node.when == When::start) REDLINE_CUDA(cudaEventSynchronize(pair(node).done.get()));
  }

  std::optional<double> waited_for_ranks() const override {
    return waits_ ? std::optional(waits_->seconds()) : std::nullopt;
  }

 private:
  // Before anything lies in the arena: the operands of any product stand in it together, so products are timed there.
  void tune() const {
    for (std::size_t program = 0; program < set().programs.size(); ++program)
      for (const BoundOp& op : ops(program))
        std::visit(
            [&](const auto& o) {
              ops::cuda::each_product(o, [&](const ops::cuda::Gemm& g) { ops::cuda::prepare(g, launch_, arena()); });
            },
            op);
    ops::cuda::keep_tuning(launch_);
  }

  // The plans of cuDNN for attention, on a thread beside what comes before the first run: tuning, and weights that are
  // drawn or read. Whoever chooses says why it cannot do a case.
  void prepare_attention() {
    std::vector<ops::cuda::AttentionCase> cases;
    for (std::size_t program = 0; program < set().programs.size(); ++program)
      for (const BoundOp& op : ops(program))
        std::visit(
            [&](const auto& o) {
              if constexpr (requires { ops::cuda::case_of(o, launch_); })
                cases.push_back(ops::cuda::case_of(o, launch_));
            },
            op);
    std::ranges::sort(cases);
    cases.erase(std::unique(cases.begin(), cases.end()), cases.end());
    std::erase_if(cases, [](const ops::cuda::AttentionCase& c) {
      return c.how.by != ops::AttentionBy::automatic && c.how.by != ops::AttentionBy::cudnn;
    });
    if (cases.empty()) return;
    attention_ = std::async(std::launch::async, [cases = std::move(cases)] {
      for (const ops::cuda::AttentionCase& c : cases) ops::cuda::cudnn_why_not(c);
    });
  }

  void run_node(std::size_t program, std::size_t node, const Launch& on) const {
    std::visit([&](const auto& op) { launch(op, on); }, ops(program)[node]);
  }
  void run_one(const BoundOp& op) override {
    std::visit([&](const auto& o) { launch(o, launch_); }, op);
  }
  void count_in(const ops::CountFp8<Tensor>& op) override { ops::cuda::run(op, launch_); }
  void run_nodes(std::size_t program) {
    const std::vector<Node>& nodes = set().programs[program].nodes;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const Range range(name_of(program, i));
      const bool waits = waits_ && nodes[i].when != When::start && is_collective(ops(program)[i]);
      if (waits) waits_->begin(launch_.stream);
      switch (nodes[i].when) {
        case When::now: run_node(program, i, launch_); break;
        case When::start: start(program, i); break;
        case When::wait: REDLINE_CUDA(cudaStreamWaitEvent(launch_.stream, pair(nodes[i]).done.get())); break;
      }
      if (waits) waits_->end(launch_.stream);
    }
  }

  // A node's name for the range around its launch, made once.
  const char* name_of(std::size_t program, std::size_t node) {
    std::vector<std::string>& names = names_[program];
    if (names.empty())
      for (const Node& each : set().programs[program].nodes) names.push_back(each.full_name());
    return names[node].c_str();
  }

  // On the stream of its lane, after all that was queued on the first so far.
  void start(std::size_t program, std::size_t node) {
    const Node& started = set().programs[program].nodes[node];
    const Launch& lane = lanes_[static_cast<std::size_t>(started.lane)];
    const Pair& ends = pair(started);
    REDLINE_CUDA(cudaEventRecord(ends.begun.get(), launch_.stream));
    REDLINE_CUDA(cudaStreamWaitEvent(lane.stream, ends.begun.get()));
    run_node(program, node, lane);
    REDLINE_CUDA(cudaEventRecord(ends.done.get(), lane.stream));
  }

  struct Pair {
    Event begun = device::cuda::make_event(cudaEventDisableTiming),
          done = device::cuda::make_event(cudaEventDisableTiming);
  };
  const Pair& pair(const Node& node) const { return pairs_[static_cast<std::size_t>(node.pair)]; }

  // One overload set for all kernels; the op's own namespace decides which backend function it is.
  template <class Op>
  void launch(const Op& op, const Launch& on) const {
    if constexpr (kCollective<Op>) {
      REDLINE_CHECK(group_, "{} without ranks", Op::kName);
      group_->run(op, on.stream);
    } else if constexpr (std::is_same_v<Op, ops::Copy<Tensor>>) {
      // A copy from host to host by the runtime would have this thread wait for all of the stream.
      if (within_host(op))
        REDLINE_CUDA(cudaLaunchHostFunc(on.stream, copy_on_host, const_cast<ops::Copy<Tensor>*>(&op)));
      else
        REDLINE_CUDA(cudaMemcpyAsync(op.to.data, op.from.data, static_cast<std::size_t>(op.to.bytes()),
                                     cudaMemcpyDefault, on.stream));
    } else if constexpr (requires { ops::cuda::run(op, on); })
      ops::cuda::run(op, on);
    else
      optim::cuda::run(op, on);
  }

  static void copy_on_host(void* bound) {
    const auto& op = *static_cast<const ops::Copy<Tensor>*>(bound);
    std::memcpy(op.to.data, op.from.data, static_cast<std::size_t>(op.to.bytes()));
  }

  // An event before the first node and after each: what the host takes to launch a node counts where the card waited.
  // Pairs run at their start, so that each node has its time.
  void run_timed(std::size_t program, NodeTimer& timer) {
    const std::vector<Node>& nodes = set().programs[program].nodes;
    while (marks_.size() <= nodes.size()) marks_.push_back(device::cuda::make_event());
    device_.wait();
    const double start = steady_seconds();
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const Range range(name_of(program, i));
      REDLINE_CUDA(cudaEventRecord(marks_[i].get(), launch_.stream));
      if (nodes[i].when != When::wait) run_node(program, i, launch_);
    }
    REDLINE_CUDA(cudaEventRecord(marks_[nodes.size()].get(), launch_.stream));
    device_.wait();
    double begin = start;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      float ms = 0;
      REDLINE_CUDA(cudaEventElapsedTime(&ms, marks_[i].get(), marks_[i + 1].get()));
      timer.node(nodes[i], begin, begin + 1e-3 * ms);
      begin += 1e-3 * ms;
    }
  }

  void capture(std::size_t program) {
    device_.wait();  // a fault of the first run is reported here, as its own
    ops::cuda::keep_tuning(launch_);
    try {
      captured_[program] = instantiate(record(program));
    } catch (const MachineError& e) {
      cudaGetLastError();
      if (group_)  // the others replay theirs, and collectives must be captured on all ranks or on none
        fail_machine("capturing \"{}\" failed: {}; kernels.graphs = \"off\" runs node by node on all ranks; see {}",
                     set().programs[program].name, e.what(), troubleshooting::kGraphs);
      graphs_ = false;
      log::warn("programs run node by node from here on, without CUDA graphs: capturing \"{}\" failed: {}; see {}",
                set().programs[program].name, e.what(), troubleshooting::kGraphs);
    }
  }

  Graph record(std::size_t program) {
    REDLINE_CUDA(cudaStreamBeginCapture(launch_.stream, cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    try {
      run_nodes(program);
    } catch (...) {  // the stream must leave its capture before anything else can run
      cudaStreamEndCapture(launch_.stream, &graph);
      const Graph unfinished(graph);
      throw;
    }
    REDLINE_CUDA(cudaStreamEndCapture(launch_.stream, &graph));
    return Graph(graph);
  }

  static GraphExec instantiate(const Graph& graph) {
    cudaGraphExec_t exec = nullptr;
    REDLINE_CUDA(cudaGraphInstantiate(&exec, graph.get(), 0));
    return GraphExec(exec);
  }

  device::CudaDevice& device_;
  Launch launch_;
  std::vector<device::cuda::Stream> copy_streams_;
  std::array<Launch, kLanes> lanes_;
  bool graphs_;
  dist::Group* group_;
  std::optional<WaitClock> waits_;               // where there are other ranks
  std::vector<GraphExec> captured_;              // by program; null before its first run
  std::vector<std::vector<std::string>> names_;  // of nodes, by program; empty before its first run
  std::vector<Pair> pairs_;                      // by their number; programs follow each other, so they share them
  std::vector<Event> marks_;
  std::future<void> attention_;  // until the first run
};

// Loads the libraries of products and attention. Whoever needs one waits for it, or meets the same error.
class Loading {
 public:
  Loading()
      : thread_([] {
          try {
            ops::cuda::lt::cublasLtGetVersion();
            ops::cuda::cudnn_version();
          } catch (const std::exception&) {  // no product may be asked for, and who asks for one is told
          }
        }) {}

 private:
  std::jthread thread_;
};

}  // namespace

void load_libraries(device::Device& device) {
  if (device.kind() == device::Kind::cuda) static_cast<device::CudaDevice&>(device).launch().own->of<Loading>();
}

std::unique_ptr<Executor> make_cuda_executor(const ProgramSet& set, device::Device& device,
                                             const ExecutorOptions& options) {
  return std::make_unique<CudaExecutor>(set, static_cast<device::CudaDevice&>(device), options);
}

void tune_products(device::Device& device, std::string_view tuning, TuningTime time) {
  if (device.kind() != device::Kind::cuda) return;
  using enum ops::cuda::Tuning;
  const Launch& launch = static_cast<device::CudaDevice&>(device).launch();
  ops::cuda::set_tuning(tuning == "off" ? off : tuning == "max" ? max : on, launch);
  if (time == TuningTime::begins) ops::cuda::begin_budgets(launch);
}

}  // namespace redline::program
