// The clock of waits: it counts what lies between begin and end on a stream, and nothing else, in a graph as well.
#include "program/cuda/wait_clock.h"

#include <chrono>
#include <thread>

#include "testing/on_card.h"

namespace redline::program {
namespace {

constexpr std::chrono::milliseconds kNap{20};

void nap_on(cudaStream_t stream) {
  REDLINE_CUDA(cudaLaunchHostFunc(
      stream, [](void*) { std::this_thread::sleep_for(kNap); }, nullptr));
}

class CudaWaitClock : public testing::OnCard<> {};

TEST_F(CudaWaitClock, CountsWaitsAndNothingElse) {
  const WaitClock clock;
  cudaStream_t stream = card().launch().stream;
  EXPECT_EQ(clock.seconds(), 0);
  for (int waits = 1; waits <= 2; ++waits) {
    nap_on(stream);
    clock.begin(stream);
    nap_on(stream);
    clock.end(stream);
    nap_on(stream);
    card().wait();
    EXPECT_GE(clock.seconds(), 0.019 * waits);
    EXPECT_LT(clock.seconds(), 0.035 * waits);
  }
}

TEST_F(CudaWaitClock, CountsInEveryReplayOfAGraph) {
  const WaitClock clock;
  cudaStream_t stream = card().launch().stream;
  REDLINE_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  clock.begin(stream);
  nap_on(stream);
  clock.end(stream);
  cudaGraph_t recorded = nullptr;
  REDLINE_CUDA(cudaStreamEndCapture(stream, &recorded));
  const device::cuda::Graph graph(recorded);
  cudaGraphExec_t made = nullptr;
  REDLINE_CUDA(cudaGraphInstantiate(&made, graph.get(), 0));
  const device::cuda::GraphExec exec(made);
  EXPECT_EQ(clock.seconds(), 0);
  for (int i = 0; i < 3; ++i) REDLINE_CUDA(cudaGraphLaunch(exec.get(), stream));
  card().wait();
  EXPECT_GE(clock.seconds(), 0.057);
  EXPECT_LT(clock.seconds(), 0.105);
}

}  // namespace
}  // namespace redline::program
