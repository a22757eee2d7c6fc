// Batches with context that nobody learns: the loss is that of the answers' tokens as a plain computation has it, and a
// batch without any adds nothing and divides by nothing.
#include <gtest/gtest.h>

#include <cmath>

#include "model/tiny.h"

namespace redline::model {
namespace {

using testing::array_of;
using testing::batch_of;
using testing::random_document;
using testing::tiny_model;

using Documents = std::vector<std::vector<std::int32_t>>;

constexpr data::BatchShape kShape{.rows = 2, .seq_len = 24, .max_segments = 4};

LoweringOptions options() {
  LoweringOptions o;
  o.batch = kShape;
  o.accumulate = true;
  o.logits = true;
  o.seed = 5;
  o.optim.weight_decay = 0;
  return o;
}

// Two answers in one document, the last tokens of another, and one that is context from end to end.
Documents conversations(std::int64_t vocab) {
  Documents all = {random_document(1, 15, vocab), random_document(2, 9, vocab), random_document(3, 11, vocab)};
  const auto mask = [&](std::size_t d, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) all[d][i] = data::as_context(all[d][i]);
  };
  mask(0, 0, 4);
  mask(0, 7, 11);
  mask(1, 0, 6);
  mask(2, 0, 11);
  return all;
}

class Masked : public ::testing::Test {
 protected:
  double loss_of(Engine& engine, const Documents& documents) {
    engine.upload(batch_of(kShape, documents));
    return engine.evaluate();
  }
  std::vector<float> gradient_of(Engine& engine, const std::vector<Documents>& micro) {
    engine.set_step(0, 0, 1, 0);
    for (std::size_t i = 0; i < micro.size(); ++i) {
      engine.upload(batch_of(kShape, micro[i]));
      engine.micro_step(i == 0);
    }
    return array_of(engine, optim::kGradients);
  }
  config::Model model_ = tiny_model("llama");
  device::CpuDevice device_{2};
};

TEST_F(Masked, TheLossIsThatOfTheLearnedTokens) {
  Engine engine(model_, options(), device_);
  engine.initialise(3);
  const Documents documents = conversations(model_.vocab);
  const data::Batch batch = batch_of(kShape, documents);
  EXPECT_EQ(batch.pairs, 3 + 4 + 3);
  const double loss = loss_of(engine, documents);
  const std::vector<float> logits = engine.logits();
  const auto v = static_cast<std::size_t>(model_.vocab);
  double expected = 0;
  std::size_t at = 0;
  for (const auto& d : documents)
    for (std::size_t i = 0; i < d.size(); ++i, ++at) {
      EXPECT_EQ(batch.tokens[at], data::token_id(d[i]));
      if (i + 1 == d.size() || data::is_context(d[i + 1])) continue;
      double sum = 0;
      for (std::size_t k = 0; k < v; ++k) sum += std::exp(static_cast<double>(logits[at * v + k]));
      expected += std::log(sum) - static_cast<double>(logits[at * v + static_cast<std::size_t>(d[i + 1])]);
    }
  EXPECT_GT(expected, 10);
  EXPECT_NEAR(loss, expected, 1e-4 * expected);
}

TEST_F(Masked, PackedDocumentsLoseWhatTheyLoseAlone) {
  Engine engine(model_, options(), device_);
  engine.initialise(3);
  const Documents documents = conversations(model_.vocab);
  double alone = 0;
  for (const auto& d : documents) alone += loss_of(engine, {d});
  EXPECT_EQ(loss_of(engine, {documents[2]}), 0.0);
  EXPECT_NEAR(loss_of(engine, documents), alone, 1e-5 * alone);
}

TEST_F(Masked, MicroBatchesCountByTheirLearnedTokens) {
  Engine engine(model_, options(), device_);
  engine.initialise(3);
  const Documents d = conversations(model_.vocab);
  const std::vector<float> together = gradient_of(engine, {d}), apart = gradient_of(engine, {{d[2]}, {d[0]}, {d[1]}});
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < together.size(); ++i) {
    difference += std::pow(static_cast<double>(together[i]) - apart[i], 2);
    norm += std::pow(static_cast<double>(together[i]), 2);
  }
  EXPECT_GT(norm, 0);
  EXPECT_LT(std::sqrt(difference / norm), 1e-5);
}

TEST_F(Masked, AStepWithNothingToLearnChangesNothing) {
  Engine engine(model_, options(), device_);
  engine.initialise(3);
  const Documents d = conversations(model_.vocab);
  const std::vector<float> before = array_of(engine, optim::kParameters);
  engine.upload(batch_of(kShape, {d[2]}));
  engine.set_step(0, 1e-2, 0, 0);
  engine.micro_step(true);
  engine.update();
  EXPECT_TRUE(array_of(engine, optim::kParameters) == before);
  for (const auto moments : {optim::kFirstMoments, optim::kSecondMoments})
    for (const float m : array_of(engine, moments)) ASSERT_EQ(m, 0.0f);
}

}  // namespace
}  // namespace redline::model
