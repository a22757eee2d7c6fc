// The pass that puts products into eight bits: which products it takes, that a value is cast once after the node that
// made it, and that a buffer which is written again and again is cast as each reader found it.
#include <gtest/gtest.h>

#include <map>

#include "program/passes.h"
#include "program/small_program.h"
#include "testing/check_plan.h"

namespace redline::program {
namespace {

using Quantize = ops::Quantize<ValueId>;
using Fp8Product = ops::Fp8Product<ValueId>;
// Layers of a norm, a linear, SwiGLU and a linear back to the residual stream, whose gradient is one buffer.
struct Fp8Mlp : SmallProgram {
  struct Products {
    bool output = true, input_grad = true, weight_grad = true;
  };
  Fp8Linears linears;

  explicit Fp8Mlp(Products which, bool in_fp8 = true, int layers = 3, device::Kind kind = device::Kind::cpu) {
    std::vector<ValueId> norms, wides, downs;
    for (int i = 0; i < layers; ++i) {
      norms.push_back(vector(fmt::format("norm {}", i)));
      wides.push_back(linear(fmt::format("wide {}", i), 2 * kHidden, which));
      downs.push_back(linear(fmt::format("down {}", i), kHidden, which));
    }
    const ValueId last = vector("last"), head = matrix("head", kVocab), embedding = matrix("embedding", kVocab);
    b.begin(
        "step",
        {.training = true, .loss_chunk = 5, .compute = DType::bf16, .kind = kind, .fp8 = in_fp8 ? &linears : nullptr});
    b.at(Part::embedding);
    ValueId residual = b.embed(tokens, embedding), branch = kAbsent;
    for (std::size_t i = 0; i < norms.size(); ++i) {
      b.at(Part::mlp, i);
      const auto [r, y] = b.add_norm(residual, branch, norms[i], kEps, "norm");
      residual = r;
      branch = b.linear(b.swiglu(b.linear(y, wides[i], "wide")), downs[i], "down");
    }
    b.at(Part::head);
    end(b.add_norm(residual, branch, last, kEps, "last norm").y, head);
  }

  // A parameter with all that persists for its products.
  ValueId linear(const std::string& name, std::int64_t rows, Products which) {
    const ValueId weight = matrix(name, rows);
    const auto entry = [&](const char* what) {
      return Fp8Entry{b.declare(fmt::format("{} {} scale", name, what), {ops::kScaleFloats}, DType::f32, Role::scale),
                      b.declare(fmt::format("{} {} amax", name, what), {1}, DType::f32, Role::record)};
    };
    Fp8Linear l;
    l.output = which.output, l.input_grad = which.input_grad, l.weight_grad = which.weight_grad;
    l.weight_rows = b.declare(name + " rows", {rows, kHidden}, DType::e4m3, Role::working);
    l.weight_columns = b.declare(name + " columns", {kHidden, rows}, DType::e4m3, Role::working);
    l.x = entry("x");
    l.dy = entry("dy");
    l.weight_scale = entry("weight").scale;
    linears.by_weight.emplace(weight, l);
    return weight;
  }

  const std::vector<Node>& nodes() const { return set.programs[0].nodes; }
  // f(node, op) for every node of the kind.
  template <class Op, class F>
  void each(const F& f) const {
    for (const Node& node : nodes())
      if (const auto* const op = std::get_if<Op>(&node.op)) f(node, *op);
  }
  template <class Op>
  std::vector<std::string> names_of() const {
    std::vector<std::string> names;
    each<Op>([&](const Node& node, const Op&) { names.push_back(node.full_name()); });
    return names;
  }
  bool writes(const Node& node, ValueId value) const {
    bool found = false;
    each_operand(node.op, [&](std::string_view, ValueId id, Access access) {
      found = found || (access != Access::read && set.owner(id) == set.owner(value));
    });
    return found;
  }
  // Who wrote a value last before the node.
  const Node& maker(std::size_t reader, ValueId value) const {
    for (std::size_t i = reader; i-- > 0;)
      if (writes(nodes()[i], value)) return nodes()[i];
    ADD_FAILURE() << "nothing wrote " << set.at(value).full_name();
    return nodes()[0];
  }
};

using Names = std::vector<std::string>;

TEST(Fp8Pass, TakesTheProductsItIsToldToTake) {
  for (const int which : {1, 2, 4, 7}) {
    const Fp8Mlp plain({}, false), mlp({(which & 1) > 0, (which & 2) > 0, (which & 4) > 0});
    EXPECT_EQ(check_plan(mlp.set), std::vector<std::string>{});
    Names expected, products = mlp.names_of<Fp8Product>();
    for (const auto& [bit, names] : {std::pair{1, plain.names_of<ops::Linear<ValueId>>()},
                                     {2, plain.names_of<ops::LinearInputGrad<ValueId>>()},
                                     {4, plain.names_of<ops::LinearWeightGrad<ValueId>>()}})
      if (which & bit) expected.insert(expected.end(), names.begin(), names.end());
    std::ranges::sort(expected);
    std::ranges::sort(products);
    EXPECT_EQ(products, expected) << which;
    EXPECT_EQ(mlp.names_of<ops::Linear<ValueId>>().empty(), (which & 1) > 0);
    EXPECT_EQ(mlp.names_of<ops::LinearInputGrad<ValueId>>().empty(), (which & 2) > 0);
    EXPECT_EQ(mlp.names_of<ops::LinearWeightGrad<ValueId>>().empty(), (which & 4) > 0);
  }
}

// The nodes that are not casts are those of the program without the pass, in their order, with the same work.
TEST(Fp8Pass, LeavesTheRestAsItWas) {
  const Fp8Mlp plain({}, false), mlp({});
  Names rest;
  double flops = 0, plain_flops = 0;
  for (const Node& node : mlp.nodes()) {
    if (!std::holds_alternative<Quantize>(node.op)) rest.push_back(node.full_name());
    flops += node.cost.flops;
  }
  for (const Node& node : plain.nodes()) plain_flops += node.cost.flops;
  EXPECT_EQ(rest, plain.node_names());
  EXPECT_EQ(flops, plain_flops);
}

TEST(Fp8Pass, CastsAValueOnceBehindItsMakerInTheFormsThatAreRead) {
  const Fp8Mlp mlp({});
  std::map<std::pair<std::string, ValueId>, int> casts;  // by maker and value
  for (std::size_t i = 0; i < mlp.nodes().size(); ++i) {
    const auto* const cast = std::get_if<Quantize>(&mlp.nodes()[i].op);
    if (!cast) continue;
    std::size_t before = i - 1;  // casts of other results of the same node may stand between
    while (std::holds_alternative<Quantize>(mlp.nodes()[before].op)) --before;
    EXPECT_TRUE(mlp.writes(mlp.nodes()[before], cast->x)) << mlp.nodes()[i].full_name();
    EXPECT_EQ(mlp.nodes()[i].full_name(), mlp.nodes()[before].full_name() + "/cast");
    EXPECT_EQ(mlp.nodes()[i].phase, mlp.nodes()[before].phase);
    EXPECT_EQ(++casts[std::pair(mlp.nodes()[before].full_name(), cast->x)], 1);
    EXPECT_TRUE(cast->to.rows.present() && cast->to.columns.present()) << "all three products read it";
    EXPECT_EQ(mlp.set.at(cast->to.rows).shape, mlp.set.at(cast->x).shape);
    EXPECT_EQ(mlp.set.at(cast->to.columns).shape[0], mlp.set.at(cast->x).shape[1]);
    EXPECT_EQ(mlp.set.at(cast->to.rows).dtype, mlp.nodes()[i].phase == Phase::forward ? DType::e4m3 : DType::e5m2);
  }
  EXPECT_EQ(casts.size(), 12u);  // x and dy of two linears of three layers
  for (const auto& which : {Fp8Mlp::Products{true, false, false}, {false, true, false}, {false, false, true}})
    Fp8Mlp(which).each<Quantize>([&](const Node& node, const Quantize& cast) {
      EXPECT_EQ(cast.to.rows.present(), !which.weight_grad) << node.full_name();
      EXPECT_EQ(cast.to.columns.present(), which.weight_grad) << node.full_name();
    });
}

// Each norm adds to the one buffer that is the gradient of the residual stream: a product must find what stood there
// when it read, not what came later.
TEST(Fp8Pass, AProductTakesTheCopyOfWhatItHadRead) {
  const Fp8Mlp plain({}, false), mlp({});
  std::map<std::string, Names> makers;  // of a product's operands
  for (std::size_t i = 0; i < plain.nodes().size(); ++i) {
    const Node& node = plain.nodes()[i];
    const auto from = [&](ValueId value) { return plain.maker(i, value).full_name() + "/cast"; };
    if (const auto* p = std::get_if<ops::Linear<ValueId>>(&node.op)) makers[node.full_name()] = {from(p->x)};
    if (const auto* p = std::get_if<ops::LinearInputGrad<ValueId>>(&node.op)) makers[node.full_name()] = {from(p->dy)};
    if (const auto* p = std::get_if<ops::LinearWeightGrad<ValueId>>(&node.op))
      makers[node.full_name()] = {from(p->dy), from(p->x)};
  }
  for (std::size_t i = 0; i < mlp.nodes().size(); ++i) {
    const Node& node = mlp.nodes()[i];
    const auto* const p = std::get_if<Fp8Product>(&node.op);
    if (!p) continue;
    Names found;
    for (const ValueId operand : {p->a, p->b})
      if (!persistent(mlp.set.at(operand).role)) found.push_back(mlp.maker(i, operand).full_name());
    EXPECT_EQ(found, makers.at(node.full_name())) << node.full_name();
  }
  std::set<ValueId> streams;  // it is one buffer indeed
  mlp.each<ops::AddNormGrad<ValueId>>([&](const Node&, const auto& norm) { streams.insert(norm.dresidual); });
  EXPECT_EQ(streams.size(), 1u);
}

TEST(Fp8Pass, ScalesOfNormsFollowFromTheirWeightsAndOthersAreRecorded) {
  const Fp8Mlp mlp({});
  std::size_t bounded = 0;
  mlp.each<Quantize>([&](const Node& node, const Quantize& cast) {
    const bool of_norm = node.full_name().ends_with("/norm/cast") && node.phase == Phase::forward;
    bounded += of_norm;
    EXPECT_EQ(cast.to.amax.present(), !of_norm) << node.full_name();
    EXPECT_EQ(mlp.linears.bounds.contains(cast.to.scale), of_norm) << node.full_name();
  });
  EXPECT_EQ(bounded, 3u);
  for (const auto& [scale, norm] : mlp.linears.bounds)
    EXPECT_TRUE(mlp.set.at(norm.weight).name.starts_with("norm")) << mlp.set.at(norm.weight).name;
}

TEST(Fp8Pass, ForwardSumsAreFastAndThoseOfGradientsKeepAllBits) {
  Fp8Mlp({}).each<Fp8Product>([](const Node& node, const Fp8Product& p) {
    EXPECT_EQ(p.how.fast_sums, node.phase == Phase::forward) << node.full_name();
  });
}

// Whoever casts on a card, a copy has one writer, and all is written before it is read.
TEST(Fp8Pass, OnACardEveryCopyIsWrittenOnce) {
  const Fp8Mlp mlp({}, true, 3, device::Kind::cuda);
  EXPECT_EQ(check_plan(mlp.set), std::vector<std::string>{});
  for (std::size_t v = 0; v < mlp.set.values.size(); ++v) {
    const Value& value = mlp.set.values[v];
    if (!is_fp8(value.dtype) || persistent(value.role)) continue;
    const ValueId id{static_cast<std::int32_t>(v)};
    const auto writers = std::ranges::count_if(mlp.nodes(), [&](const Node& node) { return mlp.writes(node, id); });
    EXPECT_EQ(writers, 1) << value.full_name();
  }
}

}  // namespace
}  // namespace redline::program
