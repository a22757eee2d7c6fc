// Recompute on a small model written by hand: the same gradients to the bit, what is made again and what is kept, and
// layers that differ from LLaMA's in what stands where.
#include <gtest/gtest.h>

#include <algorithm>

#include "program/passes.h"
#include "program/small_program.h"
#include "testing/check_plan.h"

namespace redline::program {
namespace {

constexpr std::size_t kLayers = 3;

// Layers of a norm, SwiGLU between two products, and a residual sum. `first` puts a node of the layer before its norm.
struct RecomputedMlp : SmallProgram {
  explicit RecomputedMlp(Recompute recompute, bool first = false) {
    const ValueId embedding = matrix("embedding", kVocab), head = matrix("head", kVocab), last = vector("last norm");
    std::vector<ValueId> norms, wides, downs, firsts;
    for (std::size_t i = 0; i < kLayers; ++i) {
      norms.push_back(vector("norm"));
      wides.push_back(matrix("wide", 2 * kHidden));
      downs.push_back(matrix("down"));
      firsts.push_back(first ? matrix("first") : kAbsent);
    }
    begin(recompute);
    b.at(Part::embedding);
    ValueId residual = b.embed(tokens, embedding), branch = kAbsent;
    for (std::size_t i = 0; i < kLayers; ++i) {
      b.at(Part::mlp, i);
      if (first && branch.present()) branch = b.linear(branch, firsts[i], "first");
      auto [r, y] = b.add_norm(residual, branch, norms[i], kEps, "norm");
      if (first && !branch.present()) y = b.linear(y, firsts[i], "first");
      residual = r;
      branch = b.linear(b.swiglu(b.linear(y, wides[i], "wide")), downs[i], "down");
    }
    b.at(Part::head);
    end(b.add_norm(residual, branch, last, kEps, "last norm").y, head);
  }

  std::vector<std::string> made_again() const {
    std::vector<std::string> names;
    for (const Node& node : set.programs[0].nodes)
      if (node.phase == Phase::recompute) names.push_back(node.full_name());
    return names;
  }
  std::vector<float> bits() {
    EXPECT_EQ(check_plan(set), std::vector<std::string>{});
    bind();
    return gradients();
  }
};

TEST(Recompute, MakesTheSameBits) {
  for (const bool first : {false, true}) {
    const std::vector<float> kept = RecomputedMlp(Recompute::none, first).bits();
    EXPECT_EQ(RecomputedMlp(Recompute::mlp, first).bits(), kept) << first;
    EXPECT_EQ(RecomputedMlp(Recompute::block, first).bits(), kept) << first;
  }
}

TEST(Recompute, TakesTheProductBeforeSwigluAndSwigluOrAllThatIsNeeded) {
  EXPECT_TRUE(RecomputedMlp(Recompute::none).made_again().empty());
  EXPECT_EQ(RecomputedMlp(Recompute::mlp).made_again(),
            (std::vector<std::string>{"layer 1/wide/again", "layer 1/swiglu/again", "layer 0/wide/again",
                                      "layer 0/swiglu/again"}));
  EXPECT_EQ(RecomputedMlp(Recompute::block).made_again(),
            (std::vector<std::string>{"layer 1/norm/again", "layer 1/wide/again", "layer 1/swiglu/again",
                                      "layer 0/norm/again", "layer 0/wide/again", "layer 0/swiglu/again"}));
}

// The sum that enters a layer is kept, so its norm is taken again of that and neither addend has to live on.
TEST(Recompute, KeepsTheSumThatEntersALayer) {
  const RecomputedMlp mlp(Recompute::block);
  const std::vector<Node>& nodes = mlp.set.programs[0].nodes;
  const auto again = std::ranges::find(nodes, "layer 1/norm/again", &Node::full_name);
  ASSERT_NE(again, nodes.end());
  const auto& norm = std::get<ops::AddNorm<ValueId>>(again->op);
  EXPECT_FALSE(norm.branch.present());
  EXPECT_FALSE(norm.residual_out.present());
}

// Where the layer itself makes the branch that its norm adds, the sum is its own: it is made again with the rest.
TEST(Recompute, ANodeBeforeTheNormIsOneOfTheLayersOwn) {
  const RecomputedMlp mlp(Recompute::block, true);
  const std::vector<Node>& nodes = mlp.set.programs[0].nodes;
  const auto norm = std::ranges::find(nodes, "layer 1/norm/again", &Node::full_name);
  ASSERT_NE(norm, nodes.end());
  EXPECT_TRUE(std::get<ops::AddNorm<ValueId>>(norm->op).branch.present());
}

TEST(Recompute, IsNoWorkOfTheModelAndSavesMemory) {
  const RecomputedMlp none(Recompute::none), mlp(Recompute::mlp), block(Recompute::block);
  const auto transients = [](const RecomputedMlp& m) { return m.set.memory.device.transient_by_program[0]; };
  EXPECT_LE(transients(mlp), transients(none));
  EXPECT_LE(transients(block), transients(mlp));
  double counted = 0, again = 0;
  for (const Node& node : block.set.programs[0].nodes)
    (node.phase == Phase::recompute ? again : counted) += node.cost.flops;
  double plain = 0;
  for (const Node& node : none.set.programs[0].nodes) plain += node.cost.flops;
  EXPECT_EQ(counted, plain);
  EXPECT_GT(again, 0);
}

// A loss within a layer adds to its sum and to its head's gradient: it never runs again, and what it made is kept.
TEST(Recompute, ALossInALayerRunsOnce) {
  struct WithLosses : SmallProgram {
    explicit WithLosses(Recompute recompute) {
      const ValueId embedding = matrix("embedding", kVocab), head = matrix("head", kVocab);
      const ValueId wide = matrix("wide", 2 * kHidden), norm = vector("norm");
      const ValueId more = b.declare("more losses", {kTokens}, DType::f32, Role::output);
      begin(recompute);
      b.at(Part::embedding);
      ValueId x = b.embed(tokens, embedding);
      for (std::size_t i = 0; i < kLayers; ++i) {
        b.at(Part::mlp, i);
        const ValueId y = b.add_norm(x, kAbsent, norm, kEps, "norm").y;
        b.lm_loss(y, head, targets, {more, loss_sum});
        x = b.swiglu(b.linear(y, wide, "wide"));
      }
      b.at(Part::head);
      end(x, head);
    }
  };
  WithLosses kept(Recompute::none);
  kept.bind();
  const std::vector<float> gradients = kept.gradients();
  const double sum = kept.run();
  for (const Recompute recompute : {Recompute::mlp, Recompute::block}) {
    WithLosses again(recompute);
    ASSERT_EQ(check_plan(again.set), std::vector<std::string>{});
    again.bind();
    EXPECT_EQ(again.gradients(), gradients);
    EXPECT_EQ(again.run(), sum);
    std::size_t losses = 0;
    for (const Node& node : again.set.programs[0].nodes) losses += name_of(node.op) == "lm_loss";
    EXPECT_EQ(losses, kLayers + 1);
  }
}

}  // namespace
}  // namespace redline::program
