// optim.moments on a card: a model's steps are the CPU's, with graphs and without, and its training that of fp32
// moments.
#include <cmath>

#include "model/tiny.h"
#include "testing/on_card.h"

namespace redline::model {
namespace {

using namespace redline::testing;

constexpr data::BatchShape kMomentsShape{2, 32, 8};

class CudaMomentsOfModels : public OnCard<> {
 protected:
  CudaMomentsOfModels() { model_.vocab = 50; }  // the embedding ends within a block

  LoweringOptions options(const std::string& moments, DType compute, device::Kind kind, bool graphs = true) const {
    LoweringOptions o;
    o.batch = kMomentsShape;
    o.accumulate = false;
    o.compute = compute;
    o.seed = 5;
    o.kind = kind;
    o.execution.graphs = graphs;
    o.optim.moments = moments;
    return o;
  }

  std::vector<double> train(const LoweringOptions& o, device::Device& device, int steps) const {
    TinyEngine engine(model_, o, device);
    std::vector<double> losses;
    for (int step = 0; step < steps; ++step) {
      const std::uint64_t key = static_cast<std::uint64_t>(step) % 4;
      const data::Batch batch =
          batch_of(kMomentsShape, {random_document(key, 31, 50), random_document(key + 50, 27, 50)});
      losses.push_back(step_on(engine, batch, step, 3e-3));
    }
    return losses;
  }

  config::Model model_ = tiny_model("qwen3");
  device::CpuDevice cpu_{2};
};

TEST_F(CudaMomentsOfModels, StepsAreTheCpus) {
  for (const char* moments : {"bf16", "8bit"}) {
    const std::vector<double> want = train(options(moments, DType::f32, device::Kind::cpu), cpu_, 12);
    const std::vector<double> got = train(options(moments, DType::f32, device::Kind::cuda), card(), 12);
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-3 * want[i]) << moments << " " << i;
    EXPECT_EQ(train(options(moments, DType::f32, device::Kind::cuda, false), card(), 12), got) << "without graphs";
  }
}

TEST_F(CudaMomentsOfModels, TrainAsFp32Does) {
  const auto last = [&](const char* moments) {
    const std::vector<double> losses = train(options(moments, DType::bf16, device::Kind::cuda), card(), 80);
    double sum = 0;
    for (std::size_t i = losses.size() - 4; i < losses.size(); ++i) sum += losses[i] / 4;
    return sum;
  };
  const double fp32 = last("fp32");
  EXPECT_LT(fp32, 3.0) << "nothing was learned";
  EXPECT_NEAR(last("bf16"), fp32, 0.05 * fp32);
  EXPECT_NEAR(last("8bit"), fp32, 0.08 * fp32);
}

}  // namespace
}  // namespace redline::model
