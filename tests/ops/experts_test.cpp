// Experts against doubles: routes and their ties, the order of rows, sums over experts and their gradients, and the
// balance of loads. Routing is held where gradients are taken by differences.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "testing/op_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

struct RouterCase {
  std::int64_t n, d, experts, k, padding;
  bool normalise;
};

// One token, one expert, all experts chosen, odd widths, padding.
constexpr RouterCase kRouterCases[] = {{1, 5, 4, 2, 0, false},  {9, 7, 1, 1, 0, true},   {33, 19, 8, 3, 5, false},
                                       {33, 19, 8, 3, 5, true}, {40, 16, 6, 6, 1, true}, {12, 8, 5, 2, 12, false}};

std::size_t entry(std::int64_t i) { return static_cast<std::size_t>(i); }

// A router's operands; choices and weights are those of the kernel.
struct Routed {
  explicit Routed(const RouterCase& c) : of(c) {
    x = memory.uniform({c.n, c.d});
    weight = memory.uniform({c.experts, c.d});
    probs = memory.zeros({c.n, c.experts});
    lse = memory.zeros({c.n});
    choices = memory.array(DType::i32, {c.n, c.k});
    weights = memory.zeros({c.n, c.k});
    const Tensor documents = memory.integers({0, (c.n - c.padding) / 2, c.n - c.padding, c.n - c.padding});
    run_checked(memory, Route<Tensor>{x, weight, documents, probs, lse, choices, weights, c.normalise});
  }
  void sort(std::int64_t align = 1) {
    const std::int64_t m = expert_rows(of.n, of.k, of.experts, align);
    offsets = memory.array(DType::i32, {of.experts + 1});
    rows = memory.array(DType::i32, {m});
    places = memory.array(DType::i32, {of.n, of.k});
    counts = memory.array(DType::i32, {of.experts});
    SortByExpert<Tensor> op{choices, offsets, rows, places, counts};
    op.align = align;
    run_checked(memory, op);
  }
  std::int64_t tokens() const { return of.n - of.padding; }

  RouterCase of;
  Memory memory;
  Tensor x, weight, probs, lse, choices, weights, offsets, rows, places, counts;
};

// Probabilities, weights of held choices and logsumexp in double.
struct RouterReference {
  Values probs, weights, lse;
};
RouterReference routed_by_doubles(const RouterCase& c, const Values& x, const Values& weight,
                                  const std::int32_t* choices) {
  RouterReference r{product_of_doubles(x, false, weight, true, c.n, c.experts, c.d), Values(entry(c.n * c.k)),
                    Values(entry(c.n))};
  for (std::int64_t i = 0; i < c.n; ++i) {
    double* const row = r.probs.data() + i * c.experts;
    if (choices[i * c.k] == kNowhere) {
      std::fill_n(row, c.experts, 0.0);
      continue;
    }
    double sum = 0, chosen = 0;
    for (std::int64_t e = 0; e < c.experts; ++e) sum += std::exp(row[e]);
    for (std::int64_t e = 0; e < c.experts; ++e) row[e] = std::exp(row[e]) / sum;
    r.lse[entry(i)] = std::log(sum);
    for (std::int64_t j = 0; j < c.k; ++j) chosen += row[choices[i * c.k + j]];
    for (std::int64_t j = 0; j < c.k; ++j)
      r.weights[entry(i * c.k + j)] = row[choices[i * c.k + j]] / (c.normalise ? chosen : 1.0);
  }
  return r;
}

TEST(Route, ProbabilitiesChoicesAndWeights) {
  for (const RouterCase& c : kRouterCases) {
    const Routed r(c);
    const RouterReference want = routed_by_doubles(c, values_of(r.x), values_of(r.weight), r.choices.i32());
    expect_close("probs", r.probs, want.probs, 1e-5);
    expect_close("weights", r.weights, want.weights, 1e-5);
    expect_close("lse", r.lse, want.lse, 1e-5);
    for (std::int64_t i = 0; i < c.n; ++i) {
      const std::int32_t* const choices = r.choices.i32() + i * c.k;
      if (i >= r.tokens()) {
        EXPECT_EQ(std::count(choices, choices + c.k, kNowhere), c.k);
        continue;
      }
      // The k first of a stable sort by probability.
      std::vector<std::int32_t> order(entry(c.experts));
      std::iota(order.begin(), order.end(), 0);
      const float* const probs = r.probs.f32() + i * c.experts;
      std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) { return probs[a] > probs[b]; });
      EXPECT_TRUE(std::equal(choices, choices + c.k, order.begin())) << "token " << i;
    }
  }
}

TEST(Route, OfEqualExpertsTheLowerIsFirst) {
  Memory memory;
  const Tensor x = memory.uniform({3, 4}), weight = memory.zeros({5, 4}), choices = memory.array(DType::i32, {3, 4});
  run_checked(memory,
              Route<Tensor>{x, weight, {}, memory.zeros({3, 5}), memory.zeros({3}), choices, memory.zeros({3, 4})});
  for (int i = 0; i < 12; ++i) EXPECT_EQ(choices.i32()[i], i % 4);
}

TEST(SortByExpert, EveryRowHasItsPlace) {
  for (const RouterCase& c : kRouterCases)
    for (const std::int64_t align : {1, 8}) {
      Routed r(c);
      r.sort(align);
      std::int64_t held = 0;
      for (std::int64_t e = 0; e < c.experts; ++e) {
        const std::int32_t begin = r.offsets.i32()[e], end = r.offsets.i32()[e + 1], count = r.counts.i32()[e];
        EXPECT_EQ(begin % align, 0);
        EXPECT_LT(end - begin - count, align);
        for (std::int32_t s = begin; s < end; ++s) {
          const std::int32_t row = r.rows.i32()[s];
          if (s >= begin + count) {
            EXPECT_EQ(row, kNowhere);
            continue;
          }
          EXPECT_EQ(r.choices.i32()[row], e);
          EXPECT_EQ(r.places.i32()[row], s);
          EXPECT_TRUE(s == begin || r.rows.i32()[s - 1] < row) << "not in the order of tokens";
        }
        held += count;
      }
      EXPECT_EQ(held, r.tokens() * c.k);
      for (std::int64_t s = r.offsets.i32()[c.experts]; s < r.rows.elements(); ++s)
        EXPECT_EQ(r.rows.i32()[s], kNowhere);
      for (std::int64_t i = r.tokens() * c.k; i < c.n * c.k; ++i) EXPECT_EQ(r.places.i32()[i], kNowhere);
    }
}

TEST(SortByExpert, AllTokensToOneExpertAndExpertsThatAreNone) {
  Memory memory;
  const Tensor choices = memory.array(DType::i32, {6, 1}), offsets = memory.array(DType::i32, {4});
  const Tensor rows = memory.array(DType::i32, {6}), places = memory.array(DType::i32, {6, 1});
  std::fill_n(choices.i32(), 6, 1);
  const SortByExpert<Tensor> op{choices, offsets, rows, places, memory.array(DType::i32, {3})};
  run_checked(memory, op);
  EXPECT_EQ(std::vector(offsets.i32(), offsets.i32() + 4), (std::vector<std::int32_t>{0, 0, 6, 6}));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(rows.i32()[i], i);
  choices.i32()[2] = 3;
  EXPECT_THROW(cpu::run(op, *all_pools()[0]), MachineError);
}

TEST(Combine, SumsOverExpertsAndTheirGradients) {
  for (const RouterCase& c : kRouterCases)
    for (const std::int64_t align : {1, 8}) {
      Routed r(c);
      r.sort(align);
      const std::int64_t m = r.rows.elements();
      const Tensor gathered = r.memory.zeros({m, c.d}), y = r.memory.uniform({m, c.d});
      const Tensor dout = r.memory.uniform({c.n, c.d}), out = r.memory.zeros({c.n, c.d});
      const Tensor dy = r.memory.zeros({m, c.d}), dweights = r.memory.zeros({c.n, c.k});
      Values want_x(entry(m * c.d)), want_out(entry(c.n * c.d)), want_sum(want_out), want_dy(want_x),
          want_dweights(entry(c.n * c.k));
      const Values xs = values_of(r.x), ys = values_of(y), ws = values_of(r.weights), douts = values_of(dout);
      for (std::int64_t i = 0; i < c.n * c.k; ++i) {
        const std::int64_t place = r.places.i32()[i], t = i / c.k;
        if (place == kNowhere) continue;
        for (std::int64_t l = 0; l < c.d; ++l) {
          want_x[entry(place * c.d + l)] = xs[entry(t * c.d + l)];
          want_out[entry(t * c.d + l)] += ws[entry(i)] * ys[entry(place * c.d + l)];
          want_sum[entry(t * c.d + l)] += ys[entry(place * c.d + l)];
          want_dy[entry(place * c.d + l)] = ws[entry(i)] * douts[entry(t * c.d + l)];
          want_dweights[entry(i)] += douts[entry(t * c.d + l)] * ys[entry(place * c.d + l)];
        }
      }
      run_checked(r.memory, GatherRows<Tensor>{r.x, r.rows, r.places, gathered});
      expect_close("gathered", gathered, want_x, 0);
      run_checked(r.memory, Combine<Tensor>{y, r.weights, r.rows, r.places, out});
      expect_close("out", out, want_out, 1e-5);
      for (const bool accumulate : {false, true}) {
        const Tensor sum = r.memory.uniform({c.n, c.d});
        const Values base = accumulate ? values_of(sum) : Values();
        run_checked(r.memory, Combine<Tensor>{y, {}, {}, r.places, sum, accumulate});
        expect_close("sum", sum, want_sum, 1e-5, base);
      }
      run_checked(r.memory, CombineGrad<Tensor>{dout, y, r.weights, r.rows, r.places, dy, dweights});
      expect_close("dy", dy, want_dy, 1e-5);
      expect_close("dweights", dweights, want_dweights, 1e-5);
    }
}

// The loss is that of the weights, the balance of the probabilities and the z-loss, with routing held.
TEST(Route, GradientsWithRoutingHeld) {
  for (const RouterCase& c : kRouterCases) {
    Routed r(c);
    const Tensor dweights = r.memory.uniform({c.n, c.k}), balance = r.memory.uniform({2, c.experts + 1});
    Values x = values_of(r.x), weight = values_of(r.weight);
    const Values gs = values_of(dweights), bs = values_of(balance);
    for (const bool balanced : {false, true})
      for (const bool accumulate : {false, true}) {
        const Tensor dx = r.memory.uniform({c.n, c.d}), dweight = r.memory.uniform({c.experts, c.d});
        const Values dx_base = accumulate ? values_of(dx) : Values(),
                     dweight_base = accumulate ? values_of(dweight) : Values();
        RouteGrad<Tensor> op{r.x,
                             r.weight,
                             r.probs,
                             r.lse,
                             r.choices,
                             r.weights,
                             dweights,
                             balanced ? balance : Tensor{},
                             dx,
                             dweight,
                             r.memory.zeros({c.n, c.experts}),
                             c.normalise,
                             accumulate,
                             accumulate};
        op.layer = 1;
        run_checked(r.memory, op);
        const auto loss = [&] {
          const RouterReference at_point = routed_by_doubles(c, x, weight, r.choices.i32());
          double sum = dot(at_point.weights, gs);
          if (!balanced) return sum;
          for (std::size_t i = 0; i < at_point.probs.size(); ++i)
            sum += at_point.probs[i] * bs[entry(c.experts + 1) + i % entry(c.experts)];
          for (const double lse : at_point.lse) sum += bs.back() * lse * lse / 2;
          return sum;
        };
        expect_gradient("dx", dx, x, loss, 1e-4, dx_base);
        expect_gradient("dweight", dweight, weight, loss, 1e-4, dweight_base);
      }
  }
}

// Two routers of one batch: loads, the balance of each layer's and as transformers defines it over the rows of all
// layers, and its gradient.
TEST(BalanceLoss, MatchesItsDefinition) {
  const RouterCase c{33, 19, 8, 3, 5, false};
  Routed layers[] = {Routed(c), Routed(c)};
  Memory memory;
  const Tensor load = memory.array(DType::f64, {2, load_columns(c.experts)});
  const Tensor totals = memory.array(DType::f64, {3, total_columns(c.experts)});
  layers[1].weight.f32()[3] = 2;  // another router
  const Tensor offsets = layers[1].memory.integers({0, c.n - c.padding});
  run_checked(layers[1].memory, Route<Tensor>{layers[1].x, layers[1].weight, offsets, layers[1].probs, layers[1].lse,
                                              layers[1].choices, layers[1].weights, false});
  const double rows = 2.0 * static_cast<double>(c.n - c.padding), e_count = static_cast<double>(c.experts);
  Values mean(entry(c.experts)), mean_of_layer[2] = {mean, mean}, entropy(2);
  std::vector<Values> share(entry(c.k), Values(entry(c.experts)));  // f(j, e)
  Values loads(entry(2 * c.experts));
  double z = 0;
  for (std::int64_t l = 0; l < 2; ++l) {
    Routed& r = layers[l];
    r.sort();
    RouterLoad<Tensor> op{r.probs, r.lse, r.counts, load, memory.array(DType::f64, {kRowGroups, c.experts + 2})};
    op.layer = l;
    run_checked(memory, op);
    for (std::int64_t i = 0; i < r.tokens(); ++i) {
      for (std::int64_t e = 0; e < c.experts; ++e) {
        const double p = static_cast<double>(r.probs.f32()[i * c.experts + e]);
        mean[entry(e)] += p / rows;
        mean_of_layer[l][entry(e)] += 2 * p / rows;
        entropy[entry(l)] -= p * std::log(p);
      }
      for (std::int64_t j = 0; j < c.k; ++j) {
        share[entry(j)][entry(r.choices.i32()[i * c.k + j])] += 1 / rows;
        loads[entry(l * c.experts + r.choices.i32()[i * c.k + j])] += 1;
      }
      z += std::pow(static_cast<double>(r.lse.f32()[i]), 2) / rows;
    }
  }
  double pooled_balance = 0, balance = 0;
  for (const Values& of_choice : share) pooled_balance += e_count * dot(of_choice, mean);
  for (std::int64_t l = 0; l < 2; ++l)
    for (std::int64_t e = 0; e < c.experts; ++e)
      balance += e_count * loads[entry(l * c.experts + e)] / rows * mean_of_layer[l][entry(e)];
  EXPECT_GT(balance, pooled_balance);  // what one layer has too much of the other has too little of

  const Tensor targets = memory.integers({3, -1, 0, 5, -1}), gradient = memory.zeros({2, c.experts + 1});
  constexpr double kPairs = 3;
  for (const auto& [accumulate, pooled] : {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
    for (std::int64_t i = 0; i < totals.elements(); ++i) totals.as<double>()[i] = 7;
    run_checked(memory, BalanceLoss<Tensor>{load, targets, gradient, totals, c.k, 0.5f, 0.25f, accumulate, pooled});
    const double base = accumulate ? 7 : 0, *const row = totals.as<double>() + 2 * (c.experts + 1);
    EXPECT_NEAR(row[0], base + kPairs * (pooled ? pooled_balance : balance), 1e-6);
    EXPECT_NEAR(row[1], base + kPairs * z, 1e-5);
    for (std::int64_t l = 0; l < 2; ++l) {
      for (std::int64_t e = 0; e < c.experts; ++e)
        EXPECT_EQ(totals.as<double>()[l * (c.experts + 1) + e], base + loads[entry(l * c.experts + e)]);
      EXPECT_NEAR(totals.as<double>()[l * (c.experts + 1) + c.experts], base + entropy[entry(l)], 1e-6);
      const float* const of_layer = gradient.f32() + l * (c.experts + 1);
      for (std::int64_t e = 0; e < c.experts; ++e) {
        const double counted =
            pooled ? loads[entry(e)] + loads[entry(c.experts + e)] : 2 * loads[entry(l * c.experts + e)];
        EXPECT_NEAR(static_cast<double>(of_layer[e]), 0.5 * kPairs * e_count * counted / (rows * rows), 1e-6);
      }
      EXPECT_NEAR(static_cast<double>(of_layer[c.experts]), 0.25 * kPairs * 2 / rows, 1e-6);
    }
  }
  BalanceLoss<Tensor> without{load, targets, {}, totals, c.k, 0, 0, false};
  run_checked(memory, without);
}

// Every expert has its share: k. One of each layer has all: E, with k = 1, which sums over layers do not show.
TEST(BalanceLoss, IsKWhenEvenAndEWhenCollapsed) {
  constexpr std::int64_t kExperts = 4;
  for (const auto& [even, pooled] : {std::pair(true, false), {true, true}, {false, false}, {false, true}}) {
    Memory memory;
    const Tensor load = memory.array(DType::f64, {kExperts, load_columns(kExperts)});
    const Tensor totals = memory.array(DType::f64, {kExperts + 1, total_columns(kExperts)});
    for (std::int64_t l = 0; l < kExperts; ++l)
      for (std::int64_t e = 0; e < kExperts; ++e) {
        double* const row = load.as<double>() + l * load_columns(kExperts);
        row[e] = row[kExperts + e] = even ? 2 : e == l ? 8 : 0;
      }
    run_checked(memory, BalanceLoss<Tensor>{load, memory.integers({1, 2}), {}, totals, 1, 0, 0, false, pooled});
    EXPECT_DOUBLE_EQ(totals.as<double>()[kExperts * (kExperts + 1)], 2 * (even || pooled ? 1.0 : 4.0));
  }
}

}  // namespace
}  // namespace redline::ops
