// The way back over forward passes written by hand: values with one reader, with several, and with a gradient that
// several of them share. Every gradient is held against finite differences of the loss.
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "program/passes.h"
#include "program/small_program.h"

namespace redline::program {
namespace {

struct Passes : ::testing::Test, SmallProgram {
  Passes() {
    embedding = matrix("embedding", kVocab);
    head = matrix("head", kVocab);
  }
  ValueId linear(ValueId x, const char* name) { return b.linear(x, weights.at(name), name); }
  ValueId embedding, head;
  std::map<std::string, ValueId> weights;
  void declare(std::initializer_list<const char*> names) {
    for (const char* name : names) weights[name] = matrix(name);
  }
  int count(std::string_view op) const {
    int n = 0;
    for (const Node& node : set.programs.at(0).nodes) n += name_of(node.op) == op;
    return n;
  }
};

TEST_F(Passes, AChain) {
  declare({"one", "two"});
  begin();
  end(linear(linear(b.embed(tokens, embedding), "one"), "two"), head);
  EXPECT_EQ(count("add"), 0);
  expect_true_gradients();
}

TEST_F(Passes, AForkOfTwoProductsThatJoin) {
  declare({"left", "right", "below"});
  const ValueId norm = vector("norm");
  begin();
  const ValueId x = linear(b.embed(tokens, embedding), "below");
  auto [sum, y] = b.add_norm(linear(x, "left"), linear(x, "right"), norm, kEps, "join");
  end(y, head);
  EXPECT_EQ(count("add"), 0);  // the second product adds to what the first has written
  expect_true_gradients();
}

TEST_F(Passes, AStreamThatIsReadBesideItsSums) {
  declare({"one", "two", "three"});
  const ValueId norm = vector("norm"), last = vector("last norm");
  begin();
  const ValueId x = b.embed(tokens, embedding);
  auto [r1, y1] = b.add_norm(x, linear(x, "one"), norm, kEps, "first");
  auto [r2, y2] = b.add_norm(r1, linear(y1, "two"), last, kEps, "second");
  auto [r3, y3] = b.add_norm(y2, linear(r1, "three"), norm, kEps, "third");
  end(y3, head);
  EXPECT_EQ(count("add"), 2);  // of x and of r1: a product and a sum have read each
  expect_true_gradients();
}

TEST_F(Passes, AValueThatNobodyReadsIsRefused) {
  declare({"one", "two"});
  begin();
  const ValueId x = b.embed(tokens, embedding);
  linear(x, "one");
  EXPECT_THROW(end(linear(x, "two"), head), MachineError);
}

TEST_F(Passes, AReaderThatCannotAddGetsASum) {
  declare({"down", "below"});
  const ValueId wide = matrix("wide", 2 * kHidden), second = matrix("second", 2 * kHidden), norm = vector("norm");
  begin();
  const ValueId gate_up = b.linear(linear(b.embed(tokens, embedding), "below"), wide, "wide");
  const ValueId again = b.linear(b.swiglu(gate_up), second, "second");
  auto [sum, y] = b.add_norm(b.swiglu(gate_up), b.swiglu(again), norm, kEps, "join");
  end(linear(y, "down"), head);
  EXPECT_EQ(count("add"), 1);
  expect_true_gradients();
}

// The gradient of a sum is one buffer for both addends; whoever adds to one of them must not change the other's.
TEST_F(Passes, AnAddendWithAnotherReaderBeforeTheSum) {
  declare({"a", "b", "c"});
  const ValueId norm1 = vector("norm 1"), norm2 = vector("norm 2");
  begin();
  const ValueId x = b.embed(tokens, embedding);
  const ValueId a = linear(x, "a"), c = linear(a, "c");  // a is read here first
  auto [r1, y1] = b.add_norm(linear(x, "b"), a, norm1, kEps, "first");
  auto [r2, y2] = b.add_norm(r1, c, norm2, kEps, "second");
  auto [r3, y3] = b.add_norm(r2, y1, norm2, kEps, "third");
  auto [r4, y4] = b.add_norm(r3, y2, norm1, kEps, "fourth");
  auto [r5, y5] = b.add_norm(y4, y3, norm1, kEps, "fifth");
  end(y5, head);
  expect_true_gradients();
}

// The gradient of the sum is what the product's rule reads, so the product may not add to it.
TEST_F(Passes, AProductNeverAddsToWhatItReads) {
  declare({"one"});
  const ValueId norm = vector("norm");
  begin();
  const ValueId x = b.embed(tokens, embedding);
  end(b.add_norm(x, linear(x, "one"), norm, kEps, "sum").y, head);
  for (const Node& node : set.programs[0].nodes) {
    const auto* const product = std::get_if<ops::LinearInputGrad<ValueId>>(&node.op);
    EXPECT_TRUE(!product || product->dy != product->dx);
  }
  expect_true_gradients();
}

TEST_F(Passes, TwoTablesOfTheSameTokens) {
  const ValueId second = matrix("second table", kVocab), norm = vector("norm");
  begin();
  const ValueId x = b.embed(tokens, embedding), y = b.embed(tokens, second);
  end(b.add_norm(x, y, norm, kEps, "sum").y, head);
  expect_true_gradients();
}

TEST_F(Passes, BothAddendsAreTheSameValue) {
  declare({"a"});
  const ValueId norm = vector("norm");
  begin();
  const ValueId a = linear(b.embed(tokens, embedding), "a");
  end(b.add_norm(a, a, norm, kEps, "twice").y, head);
  expect_true_gradients();
}

TEST_F(Passes, ATiedHeadWritesAndTheEmbeddingAdds) {
  const ValueId tied = matrix("tied", kVocab);
  parameters.erase(parameters.begin(), parameters.begin() + 2);  // the others have no part in it
  begin();
  end(b.embed(tokens, tied), tied);
  expect_true_gradients();
}

TEST_F(Passes, AValueThatIsReadBeforeItIsChangedInPlaceIsRefused) {
  declare({"a", "b"});
  const ValueId table =
      b.constant("rope", {kTokens, kHidden}, [] { return std::vector<float>(kTokens * kHidden, 0.5f); });
  const ValueId positions = b.declare("positions", {kTokens}, DType::i32, Role::input);
  begin();
  const ValueId x = linear(b.embed(tokens, embedding), "a");
  linear(x, "b");
  EXPECT_THROW(b.rope_qk_norm(x, {.q_norm = {}, .k_norm = {}, .positions = positions, .table = table},
                              {.heads = 1, .kv_heads = 0, .head_dim = kHidden}, kEps, ops::NormOver::head),
               MachineError);
}

TEST_F(Passes, AValueWhoseMemoryIsAnothersByNowIsRefused) {
  declare({"a", "b"});
  b.set_step_state(b.declare("state", {64}, DType::u8, Role::input));
  begin();
  const ValueId x = linear(b.embed(tokens, embedding), "a");
  b.dropout(x, 0.5f, "dropout");
  EXPECT_THROW(linear(x, "b"), MachineError);
}

TEST_F(Passes, GradientsStandWhereTheirForwardNodesStand) {
  declare({"one"});
  begin();
  b.at(Part::embedding);
  const ValueId x = b.embed(tokens, embedding);
  b.at(Part::mlp, 7);
  const ValueId y = linear(x, "one");
  b.at(Part::head);
  end(y, head);
  for (const Node& node : set.programs[0].nodes) {
    const bool product = node.name.starts_with("one");
    EXPECT_EQ(node.place.layer, product ? 7 : kNoLayer) << node.name;
    EXPECT_EQ(node.full_name().starts_with("layer 7/"), product) << node.name;
    EXPECT_EQ(node.place.part == Part::mlp, product) << node.name;
  }
}

// Each loss begins a way back of its own, and where they meet gradients add up: a loss above and one below a product.
TEST_F(Passes, TwoLossesOneAboveTheOther) {
  declare({"one", "two"});
  const ValueId other = matrix("other head", kVocab),
                losses2 = b.declare("more losses", {kTokens}, DType::f32, Role::output);
  begin();
  const ValueId x = linear(b.embed(tokens, embedding), "one");
  b.lm_loss(x, other, targets, {losses2, loss_sum});
  end(linear(x, "two"), head);
  EXPECT_EQ(count("add"), 1);
  expect_true_gradients();
}

// The same value has two losses, with one head, whose gradient both add to.
TEST_F(Passes, TwoLossesOfOneValue) {
  declare({"one"});
  const ValueId losses2 = b.declare("more losses", {kTokens}, DType::f32, Role::output);
  begin();
  const ValueId x = linear(b.embed(tokens, embedding), "one");
  b.lm_loss(x, head, targets, {losses2, loss_sum});
  end(x, head);
  EXPECT_EQ(count("add"), 1);
  expect_true_gradients();
}

// A loss that stands before the last reader of its input, on a branch that ends in it.
TEST_F(Passes, ALossOnABranchOfItsOwn) {
  declare({"one", "side"});
  const ValueId losses2 = b.declare("more losses", {kTokens}, DType::f32, Role::output), norm = vector("norm");
  begin();
  const ValueId x = b.embed(tokens, embedding);
  b.lm_loss(linear(x, "side"), head, targets, {losses2, loss_sum});
  end(b.add_norm(x, linear(x, "one"), norm, kEps, "join").y, head);
  expect_true_gradients();
}

TEST_F(Passes, ALinearWithABias) {
  declare({"one", "two"});
  const ValueId bias = vector("bias");
  begin();
  const ValueId x = b.linear(b.embed(tokens, embedding), weights.at("one"), "one", bias);
  end(b.linear(x, weights.at("two"), "two", bias), head);  // read twice: the second gradient adds
  EXPECT_EQ(count("bias_grad"), 2);
  expect_true_gradients();
  // Where products read copies in eight bits, nothing reads the output's gradient after its bias has.
  const auto at = [&](const std::string& name) {
    return std::ranges::find(set.programs[0].nodes, name + "/backward", &Node::name) - set.programs[0].nodes.begin();
  };
  for (const std::string name : {"one", "two"}) {
    EXPECT_LT(at(name + "/bias"), at(name + "/weight")) << name;
    EXPECT_LT(at(name + "/weight"), std::ssize(set.programs[0].nodes)) << name;
  }
}

// Rows by offsets in device memory: a group without rows, and two rows of no group. Its input has another reader.
TEST_F(Passes, AGroupedLinear) {
  declare({"one"});
  const ValueId experts = parameter("experts", {3, kHidden, kHidden}), norm = vector("norm");
  const ValueId offsets = integers("offsets", {0, 4, 4, kTokens - 2});
  begin();
  const ValueId x = linear(b.embed(tokens, embedding), "one");
  end(b.add_norm(x, b.grouped_linear(x, experts, offsets, "experts"), norm, kEps, "join").y, head);
  expect_true_gradients();
  // The same program over other groups: nothing but the offsets changes.
  inputs[0].second = {0, 1, kTokens, kTokens};
  expect_true_gradients();
}

// Every token goes to all experts, so that no small step changes a route; two rows are padding. The input of router and
// experts has another reader.
TEST_F(Passes, Experts) {
  for (const bool normalise : {false, true})
    for (const Recompute recompute : {Recompute::none, Recompute::mlp, Recompute::block}) {
      SmallProgram p;
      const ValueId embedding_table = p.matrix("embedding", kVocab), head_weight = p.matrix("head", kVocab);
      const ValueId router = p.matrix("router", 3), norm = p.vector("norm");
      const ValueId gate_up = p.parameter("gate_up", {3, 2 * 5, kHidden}), down = p.parameter("down", {3, kHidden, 5});
      const BatchValues batch{.tokens = p.tokens,
                              .targets = p.targets,
                              .positions = {},
                              .doc_offsets = p.integers("documents", {0, 4, kTokens - 2, kTokens - 2})};
      p.begin(recompute);
      ValueId x = p.b.embed(p.tokens, embedding_table);
      for (std::size_t layer = 0; layer < 2; ++layer) {  // the last layer is never made again
        p.b.at(Part::mlp, layer);
        const auto routed = p.b.route(x, router, batch, 3, normalise);
        const ValueId inner = p.b.swiglu(p.b.grouped_linear(p.b.gather_rows(x, routed), gate_up, routed.offsets, "up"));
        const ValueId y = p.b.combine(p.b.grouped_linear(inner, down, routed.offsets, "down"), routed);
        x = p.b.add_norm(x, y, norm, kEps, "join").y;
      }
      p.b.at(Part::head);
      p.end(x, head_weight);
      p.expect_true_gradients();
    }
}

}  // namespace
}  // namespace redline::program
