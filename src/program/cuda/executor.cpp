// The CUDA executor. A program's first run launches node by node, which also makes the plans of its products; then it is
// captured, and every later run replays the graph. Capturing executes nothing, so a first run changes state once.
#include "base/clock.h"
#include "base/log.h"
#include "base/troubleshooting.h"
#include "device/cuda/device.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/kernels.h"
#include "optim/cuda/kernels.h"
#include "program/arena_executor.h"
#include "program/backends.h"

namespace redline::program {
namespace {

using device::cuda::Event;
using device::cuda::Graph;
using device::cuda::GraphExec;
using device::cuda::Launch;

class CudaExecutor final : public ArenaExecutor {
 public:
  CudaExecutor(const ProgramSet& set, device::CudaDevice& device, const ExecutorOptions& options)
      : ArenaExecutor(set, device),
        device_(device),
        launch_(device.launch()),
        graphs_(options.graphs),
        attention_(options.attention),
        captured_{std::vector<GraphExec>(set.programs.size()), std::vector<GraphExec>(set.programs.size())} {
    launch_.tf32 = options.tf32;
    launch_.deterministic = options.deterministic;
    launch_.attention = attention_;
  }

  ~CudaExecutor() override { cudaStreamSynchronize(launch_.stream); }  // the arena goes next

  void run(std::string_view name, NodeTimer* timer) override {
    const std::size_t program = index_of(name);
    if (const GraphExec& graph = captured(program); graph && !timer) {
      REDLINE_CUDA(cudaGraphLaunch(graph.get(), launch_.stream));
      return;
    }
    if (timer)
      run_timed(program, *timer);
    else
      run_nodes(program);
    if (graphs_ && !timer) return capture(program);
    ops::cuda::keep_tuning();  // of a first run; nothing to do after others
  }

  void expect_full_rows(bool full) override { launch_.full_rows = full; }

 private:
  GraphExec& captured(std::size_t program) { return captured_[launch_.full_rows ? 1 : 0][program]; }

  void run_node(std::size_t program, std::size_t node) const {
    std::visit([&](const auto& op) { launch(op); }, ops(program)[node]);
  }
  void run_nodes(std::size_t program) const {
    for (std::size_t i = 0; i < ops(program).size(); ++i) run_node(program, i);
  }

  // One overload set for all kernels; the op's own namespace decides which backend function it is.
  template <class Op>
  void launch(const Op& op) const {
    if constexpr (requires { ops::cuda::run(op, launch_); })
      ops::cuda::run(op, launch_);
    else
      optim::cuda::run(op, launch_);
  }

  // An event before the first node and after each: what the host takes to launch a node counts where the card waited.
  void run_timed(std::size_t program, NodeTimer& timer) {
    const std::vector<Node>& nodes = set().programs[program].nodes;
    while (marks_.size() <= nodes.size()) marks_.push_back(device::cuda::make_event());
    device_.wait();
    const double start = steady_seconds();
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      REDLINE_CUDA(cudaEventRecord(marks_[i].get(), launch_.stream));
      run_node(program, i);
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
    device_.wait();  // a fault of the first run is told here, as its own
    ops::cuda::keep_tuning();
    try {
      captured(program) = instantiate(record(program));
    } catch (const MachineError& e) {
      cudaGetLastError();
      graphs_ = false;
      log::warn("programs run node by node from here on, without CUDA graphs: capturing \"{}\" failed: {}; see {}",
                set().programs[program].name, e.what(), troubleshooting::kGraphs);
    }
  }

  Graph record(std::size_t program) const {
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
  bool graphs_;
  std::string attention_;
  std::vector<GraphExec> captured_[2];  // for packed documents and for full rows, by program; null before its first run
  std::vector<Event> marks_;
};

}  // namespace

std::unique_ptr<Executor> make_cuda_executor(const ProgramSet& set, device::Device& device,
                                             const ExecutorOptions& options) {
  return std::make_unique<CudaExecutor>(set, static_cast<device::CudaDevice&>(device), options);
}

}  // namespace redline::program
