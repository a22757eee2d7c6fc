// Experts on the card against the CPU: routes with padding and ties, the sort over many pieces, rows there and back,
// and the balance of loads. Every op gets what the CPU made before it, so that one error shows once.
#include "ops/cuda/experts.h"

#include "ops/cuda/fp8_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

struct CardRouterCase {
  std::int64_t n, d, experts, k, padding;
  bool normalise;
};

// One token, one expert, all experts chosen, nothing but padding, odd widths, and experts in several lanes of a warp.
const std::vector<CardRouterCase> kCardRouterCases = {
    {1, 8, 4, 2, 0, false},   {9, 7, 1, 1, 0, true},      {33, 19, 8, 3, 5, false},     {40, 16, 6, 6, 1, true},
    {12, 8, 5, 2, 12, false}, {700, 64, 64, 8, 13, true}, {1500, 40, 128, 8, 0, false}, {50, 24, 300, 4, 2, true},
    {2, 8, 512, 1, 0, false}, {260, 8, 33, 33, 3, true}};

// What the CPU makes of a router's inputs, which are of bf16 whatever the card computes in.
struct CardRouted {
  explicit CardRouted(const CardRouterCase& c, std::int64_t align = 1) : of(c) {
    x = rounded(memory.uniform({c.n, c.d}));
    weight = rounded(memory.uniform({c.experts, c.d}));
    documents = memory.integers({0, (c.n - c.padding) / 2, c.n - c.padding, c.n - c.padding});
    probs = memory.zeros({c.n, c.experts}), lse = memory.zeros({c.n}), weights = memory.zeros({c.n, c.k});
    choices = memory.array(DType::i32, {c.n, c.k}), places = memory.array(DType::i32, {c.n, c.k});
    offsets = memory.array(DType::i32, {c.experts + 1}), counts = memory.array(DType::i32, {c.experts});
    rows = memory.array(DType::i32, {expert_rows(c.n, c.k, c.experts, align)});
    temporary = memory.array(DType::u8, {sort_scratch_bytes(c.n * c.k, c.experts)});
    run_on_cpu(route(), *all_pools()[0]);
    run_on_cpu(sort(align), *all_pools()[0]);
  }
  Route<Tensor> route() const { return {x, weight, documents, probs, lse, choices, weights, of.normalise}; }
  SortByExpert<Tensor> sort(std::int64_t align) const {
    return {choices, offsets, rows, places, counts, temporary, align};
  }
  static Tensor rounded(const Tensor& t) {
    for (std::int64_t i = 0; i < t.elements(); ++i) t.f32()[i] = from_bf16(to_bf16(t.f32()[i]));
    return t;
  }

  CardRouterCase of;
  Memory memory;
  Tensor x, weight, documents, probs, lse, weights, choices, places, offsets, counts, rows, temporary;
};

class CudaExperts : public OnCard<> {
 protected:
  // Integers are equal: the norm of what differs would be 1 at least, and that of none of these arrays is 1e6.
  static constexpr double kExact = 1e-6;
};

TEST_F(CudaExperts, RoutesAgree) {
  for (const CardRouterCase& c : kCardRouterCases) {
    CardRouted r(c);
    const auto written = expect_agreement(card(), r.route(), {.bf16 = 1e-5});
    for (const auto& run : written) EXPECT_EQ(run.at("choices"), values_of(r.choices));
  }
}

TEST_F(CudaExperts, OfEqualExpertsTheLowerIsFirst) {
  Memory memory;
  const Tensor choices = memory.array(DType::i32, {3, 40});
  expect_agreement(card(),
                   Route<Tensor>{memory.uniform({3, 8}),
                                 memory.zeros({70, 8}),
                                 {},
                                 memory.zeros({3, 70}),
                                 memory.zeros({3}),
                                 choices,
                                 memory.zeros({3, 40})},
                   {.bf16 = 1e-5});
  for (int i = 0; i < 120; ++i) EXPECT_EQ(choices.i32()[i], i % 40);
}

TEST_F(CudaExperts, RouteGradientsAgree) {
  for (const CardRouterCase& c : kCardRouterCases) {
    CardRouted r(c);
    const Tensor dweights = r.memory.uniform({c.n, c.k}), balance = r.memory.uniform({3, c.experts + 1});
    for (const bool balanced : {false, true})
      for (const bool accumulate : {false, true}) {
        const Tensor dx = r.memory.uniform({c.n, c.d}), dweight = r.memory.uniform({c.experts, c.d});
        const RouteGrad<Tensor> op{.x = r.x,
                                   .weight = r.weight,
                                   .probs = r.probs,
                                   .lse = r.lse,
                                   .choices = r.choices,
                                   .weights = r.weights,
                                   .dweights = dweights,
                                   .balance = balanced ? balance : Tensor{},
                                   .dx = dx,
                                   .dweight = dweight,
                                   .dlogits = r.memory.zeros({c.n, c.experts}),
                                   .normalise = c.normalise,
                                   .accumulate = accumulate,
                                   .accumulate_weight = accumulate,
                                   .layer = 1};
        // The gradient of weights has both parts of dlogits: it is nearly as close in bf16 as in fp32.
        for (const auto& run : expect_agreement(card(), op))
          expect_near_in_norm("dweight", run.at("dweight"), values_of(dweight), 3e-5);
      }
  }
}

TEST_F(CudaExperts, SortsAgree) {
  std::vector<CardRouterCase> cases = kCardRouterCases;
  cases.push_back({5000, 8, 64, 8, 77, false});  // forty pieces
  for (const CardRouterCase& c : cases)
    for (const std::int64_t align : {1, 8, 128}) {
      CardRouted r(c, align);
      expect_agreement(card(), r.sort(align), {.f32 = kExact, .types = {DType::f32}, .shifts = {0}});
    }
}

TEST_F(CudaExperts, AllChoicesOfOneExpertAgree) {
  Memory memory;
  constexpr std::int64_t n = 3333, experts = 7;
  const Tensor choices = memory.array(DType::i32, {n, 1});
  std::fill_n(choices.i32(), n, 4);
  const SortByExpert<Tensor> op{choices,
                                memory.array(DType::i32, {experts + 1}),
                                memory.array(DType::i32, {n}),
                                memory.array(DType::i32, {n, 1}),
                                memory.array(DType::i32, {experts}),
                                memory.array(DType::u8, {sort_scratch_bytes(n, experts)})};
  expect_agreement(card(), op, {.f32 = kExact, .types = {DType::f32}, .shifts = {0}});
}

TEST_F(CudaExperts, RowsAndSumsAgree) {
  for (const CardRouterCase& c : kCardRouterCases)
    for (const std::int64_t align : {1, 8}) {
      CardRouted r(c, align);
      const std::int64_t m = r.rows.elements();
      const Tensor y = r.memory.uniform({m, c.d}), dout = r.memory.uniform({c.n, c.d});
      expect_agreement(card(), GatherRows<Tensor>{r.x, r.rows, r.places, r.memory.zeros({m, c.d})}, {.bf16 = 1e-7});
      expect_agreement(card(), Combine<Tensor>{y, r.weights, r.rows, r.places, r.memory.zeros({c.n, c.d})});
      for (const bool accumulate : {false, true})
        expect_agreement(card(), Combine<Tensor>{y, {}, {}, r.places, r.memory.uniform({c.n, c.d}), accumulate});
      expect_agreement(card(), CombineGrad<Tensor>{dout, y, r.weights, r.rows, r.places, r.memory.zeros({m, c.d}),
                                                   r.memory.zeros({c.n, c.k})});
    }
}

// Rows in eight bits are the bytes that quantize makes of those that are not, for tokens of all places and for none.
TEST_F(CudaExperts, RowsInEightBitsAreThoseOfQuantize) {
  for (const CardRouterCase& c : {CardRouterCase{32, 48, 8, 3, 5, false}, CardRouterCase{48, 16, 6, 6, 1, true},
                                  CardRouterCase{16, 272, 5, 2, 16, false}, CardRouterCase{704, 64, 64, 8, 13, true}})
    for (const std::int64_t align : {1, 16}) {
      CardRouted r(c, align);
      const std::int64_t m = r.rows.elements();
      const Tensor y = r.memory.uniform({m, c.d}), dout = r.memory.uniform({c.n, c.d});
      for (Fp8Ask ask : kRowsColumnsOrBlocks) {
        if (!ask.rows) continue;  // whose columns are the rows turned over
        for (const bool keeps : {false, true}) {
          ask.dtype = DType::e4m3;
          expect_bytes_of_quantize(card(), r.memory,
                                   GatherRows<Tensor>{r.x, r.rows, r.places, r.memory.zeros({m, c.d})},
                                   &GatherRows<Tensor>::y, keeps, ask);
          ask.dtype = DType::e5m2;
          expect_bytes_of_quantize(card(), r.memory,
                                   CombineGrad<Tensor>{dout, y, r.weights, r.rows, r.places, r.memory.zeros({m, c.d}),
                                                       r.memory.zeros({c.n, c.k})},
                                   &CombineGrad<Tensor>::dy, keeps, ask);
        }
      }
    }
}

TEST_F(CudaExperts, LoadAndBalanceAgree) {
  for (const CardRouterCase& c : kCardRouterCases) {
    CardRouted r(c);
    const Tensor load = r.memory.array(DType::f64, {3, load_columns(c.experts)});
    for (const std::int64_t layer : {2, 0, 1}) {
      RouterLoad<Tensor> op{r.probs, r.lse, r.counts, load, r.memory.array(DType::f64, {kRowGroups, c.experts + 2})};
      op.layer = layer;
      expect_agreement(card(), op, {.types = {DType::f32}, .shifts = {0}});
    }
    std::vector<std::int64_t> targets(static_cast<std::size_t>(c.n));
    for (std::size_t i = 0; i < targets.size(); ++i) targets[i] = i % 3 == 0 ? -1 : 5;
    const Tensor totals = r.memory.array(DType::f64, {4, total_columns(c.experts)});
    for (const bool accumulate : {false, true})
      for (const bool gradient : {false, true})
        for (const bool pooled : {false, true}) {
          std::fill_n(totals.as<double>(), totals.elements(), 7.0);
          expect_agreement(card(),
                           BalanceLoss<Tensor>{load, r.memory.integers(targets),
                                               gradient ? r.memory.zeros({3, c.experts + 1}) : Tensor{}, totals, c.k,
                                               0.5f, 0.25f, accumulate, pooled},
                           {.f32 = 1e-6, .types = {DType::f32}, .shifts = {0}});
        }
  }
}

}  // namespace
}  // namespace redline::ops
