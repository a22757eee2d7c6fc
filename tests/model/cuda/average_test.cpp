// The average of the weights and the norms of tensors of a model on a card: the CPU's numbers, replayed as graphs or
// not; looking at norms changes no bit, and an evaluation of the average leaves the weights as they were.
#include <cmath>

#include "model/tiny.h"
#include "optim/adamw.h"
#include "optim/schedule.h"
#include "testing/on_card.h"

namespace redline::model {
namespace {

using namespace redline::testing;

LoweringOptions average_options(device::Kind kind, DType compute, bool graphs = true) {
  LoweringOptions o;
  o.batch = kCardShape;
  o.compute = compute;
  o.loss_chunk = 64;
  o.kind = kind;
  o.execution.graphs = graphs;
  o.average = o.norms = true;
  o.products.bits = o.attention.bits = ops::Bits::repeat;
  return o;
}

data::Batch batch_number(std::int64_t k, std::int64_t vocab) {
  const auto key = static_cast<std::uint64_t>(10 * k);
  return batch_of(kCardShape, {random_document(key + 1, 80, vocab), random_document(key + 2, 63, vocab)});
}

// Steps of two micro-batches; looks at the norms of each where asked to, and returns those of the last.
NormSums train(Engine& engine, int steps, bool look) {
  config::Train average;
  average.average = "ema";
  average.average_steps = 3;
  engine.initialise(3);
  NormSums sums;
  for (int index = 0; index < steps; ++index) {
    const auto step = static_cast<std::uint64_t>(index);
    double pairs = 0;
    for (const int micro : {0, 1}) {
      const data::Batch batch = batch_number(2 * index + micro, engine.model().vocab);
      engine.upload(batch);
      engine.set_step(step, 1e-3, 0, 0);
      engine.micro_step(micro == 0, micro == 1);
      pairs += static_cast<double>(batch.pairs);
      if (look && micro == 0) engine.small_gradient(step, pairs);
    }
    engine.set_step(step, 1e-3, pairs, 0, optim::average_share(average, index, 100));
    if (look)
      engine.update_with_norms();
    else
      engine.update();
    if (look) sums = engine.norm_sums();
    engine.post_result();
    EXPECT_EQ(engine.take_result().update.finite, 1.0f);
  }
  return sums;
}

void expect_close(const char* what, const std::vector<double>& got, const std::vector<double>& want, double within) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], within * want[i] + 1e-12) << what << i;
}

class CudaAverageModel : public OnCard<> {
 protected:
  device::CpuDevice cpu_{2};
};

TEST_F(CudaAverageModel, NormsAndAverageAreTheCpus) {
  Engine on_cpu(tiny_model("qwen3"), average_options(device::Kind::cpu, DType::f32), cpu_);
  const NormSums want = train(on_cpu, 4, true);
  for (const bool graphs : {true, false}) {
    Engine engine(tiny_model("qwen3"), average_options(device::Kind::cuda, DType::f32, graphs), card());
    const NormSums got = train(engine, 4, true);
    expect_close("gradient of tensor ", got.gradients, want.gradients, 1e-2);
    expect_close("weight of tensor ", got.weights, want.weights, 1e-4);
    expect_close("update of tensor ", got.updates, want.updates, 5e-2);
    EXPECT_NEAR(got.small.grad_norm, want.small.grad_norm, 1e-3f * want.small.grad_norm);
    EXPECT_EQ(got.small.counts.pairs, want.small.counts.pairs);
    const std::vector<float> a = array_of(engine, optim::kAverage), b = array_of(on_cpu, optim::kAverage);
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < b.size(); ++i) {
      difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
      norm += std::pow(static_cast<double>(b[i]), 2);
    }
    EXPECT_LE(std::sqrt(difference), 1e-3 * std::sqrt(norm));
  }
}

TEST_F(CudaAverageModel, LookingChangesNoBitAndAnEvaluationOfTheAverageNeither) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    Engine seen(tiny_model("llama"), average_options(device::Kind::cuda, compute), card());
    Engine unseen(tiny_model("llama"), average_options(device::Kind::cuda, compute), card());
    train(seen, 5, true);
    train(unseen, 5, false);
    const std::vector<float> weights = array_of(seen, optim::kParameters), average = array_of(seen, optim::kAverage);
    EXPECT_EQ(weights, array_of(unseen, optim::kParameters));
    EXPECT_EQ(average, array_of(unseen, optim::kAverage));
    seen.upload(batch_number(99, seen.model().vocab));
    const double loss = seen.evaluate();
    double of_average[2];
    for (double& of : of_average) {  // the second time as graphs
      of = loss_of_average(seen);
      EXPECT_EQ(seen.evaluate(), loss);
    }
    EXPECT_EQ(of_average[0], of_average[1]);
    EXPECT_NE(of_average[0], loss);
    EXPECT_EQ(array_of(seen, optim::kParameters), weights);
    EXPECT_EQ(array_of(seen, optim::kAverage), average);
  }
}

}  // namespace
}  // namespace redline::model
