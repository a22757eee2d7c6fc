// Experts on the CPU. Routes, gathers and sums share out tokens or rows, so nothing is written by two threads; counting
// sort and balance are short and run on one.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/math.h"
#include "ops/cpu/row_ranges.h"

namespace redline::ops::cpu {
namespace {

std::int64_t tokens_of(const Tensor& doc_offsets, std::int64_t rows) {
  if (!doc_offsets.present()) return rows;
  const std::int32_t end = doc_offsets.i32()[doc_offsets.elements() - 1];
  REDLINE_CHECK(end >= 0 && end <= rows, "documents end at row {} of {}", end, rows);
  return end;
}

// Softmax in place; returns logsumexp.
float softmax(float* row, std::int64_t n) {
  const float most = lane_max(n, row);
  float sum = 0;
  for (std::int64_t e = 0; e < n; ++e) sum += row[e] = std::exp(row[e] - most);
  for (std::int64_t e = 0; e < n; ++e) row[e] /= sum;
  return most + std::log(sum);
}

// The k largest by insertion: a later expert goes before an earlier one only where it is larger. A NaN is never larger,
// but the list is always full, so that every choice is an expert.
void choose(const float* probs, std::int64_t experts, std::int64_t k, std::int32_t* choices) {
  std::int64_t found = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    std::int64_t at = found < k ? found++ : k;
    while (at > 0 && probs[e] > probs[choices[at - 1]]) {
      if (at < k) choices[at] = choices[at - 1];
      --at;
    }
    if (at < k) choices[at] = static_cast<std::int32_t>(e);
  }
}

}  // namespace

void run(const Route<Tensor>& op, ThreadPool& pool) {
  const std::int64_t n = op.x.rows(), experts = op.weight.rows(), k = op.choices.columns();
  REDLINE_CHECK(k >= 1 && k <= experts, "{} of {} experts", k, experts);
  const std::int64_t tokens = tokens_of(op.doc_offsets, n);
  gemm(product(matrix(op.x), turned(matrix(op.weight)), op.probs.f32(), experts), pool);
  for_rows(pool, n, experts, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      float *const probs = op.probs.f32() + i * experts, *const weights = op.weights.f32() + i * k;
      std::int32_t* const choices = op.choices.i32() + i * k;
      if (i >= tokens) {
        std::fill_n(probs, experts, 0.0f);
        std::fill_n(weights, k, 0.0f);
        std::fill_n(choices, k, kNowhere);
        op.lse.f32()[i] = 0;
        continue;
      }
      op.lse.f32()[i] = softmax(probs, experts);
      choose(probs, experts, k, choices);
      float sum = 0;
      for (std::int64_t j = 0; j < k; ++j) sum += weights[j] = probs[choices[j]];
      if (op.normalise)
        for (std::int64_t j = 0; j < k; ++j) weights[j] /= sum;
    }
  });
}

void run(const RouteGrad<Tensor>& op, ThreadPool& pool) {
  const std::int64_t n = op.x.rows(), d = op.x.columns(), experts = op.weight.rows(), k = op.choices.columns();
  const float* const balance = op.own_balance();
  for_rows(pool, n, experts, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float *const probs = op.probs.f32() + i * experts, *const dweights = op.dweights.f32() + i * k;
      const float* const weights = op.weights.f32() + i * k;
      const std::int32_t* const choices = op.choices.i32() + i * k;
      float* const dlogits = op.dlogits.f32() + i * experts;  // first dprobs
      std::fill_n(dlogits, experts, 0.0f);
      if (choices[0] == kNowhere) continue;
      if (balance) std::copy_n(balance, experts, dlogits);
      float chosen = 0, shared = 0;
      for (std::int64_t j = 0; j < k; ++j) {
        chosen += probs[choices[j]];
        shared += dweights[j] * weights[j];
      }
      for (std::int64_t j = 0; j < k; ++j)
        dlogits[choices[j]] += op.normalise ? (dweights[j] - shared) / chosen : dweights[j];
      float mean = 0;
      for (std::int64_t e = 0; e < experts; ++e) mean += probs[e] * dlogits[e];
      const float of_lse = balance ? balance[experts] * op.lse.f32()[i] : 0;
      for (std::int64_t e = 0; e < experts; ++e) dlogits[e] = probs[e] * (dlogits[e] - mean + of_lse);
    }
  });
  const Matrix dlogits = matrix(op.dlogits);
  gemm(product(dlogits, matrix(op.weight), op.dx.f32(), d, 1, op.accumulate ? 1.0f : 0.0f), pool);
  gemm(product(turned(dlogits), matrix(op.x), op.dweight.f32(), d, 1, op.accumulate_weight ? 1.0f : 0.0f), pool);
}

void run(const SortByExpert<Tensor>& op, ThreadPool&) {
  const std::int64_t all = op.choices.elements(), experts = op.counts.elements(), m = op.rows.elements();
  const std::int32_t* const choices = op.choices.i32();
  std::int32_t *const offsets = op.offsets.i32(), *const counts = op.counts.i32(), *const places = op.places.i32();
  std::fill_n(counts, experts, 0);
  for (std::int64_t i = 0; i < all; ++i) {
    if (choices[i] == kNowhere) continue;
    REDLINE_CHECK(choices[i] >= 0 && choices[i] < experts, "expert {} of {}", choices[i], experts);
    ++counts[choices[i]];
  }
  offsets[0] = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t filled = (counts[e] + op.align - 1) / op.align * op.align;
    offsets[e + 1] = offsets[e] + static_cast<std::int32_t>(filled);
  }
  REDLINE_CHECK(offsets[experts] <= m, "experts have {} rows, and there is room for {}", offsets[experts], m);
  std::fill_n(op.rows.i32(), m, kNowhere);
  std::vector<std::int32_t> next(offsets, offsets + experts);
  for (std::int64_t i = 0; i < all; ++i) {
    places[i] = choices[i] == kNowhere ? kNowhere : next[static_cast<std::size_t>(choices[i])]++;
    if (places[i] != kNowhere) op.rows.i32()[places[i]] = static_cast<std::int32_t>(i);
  }
}

void run(const GatherRows<Tensor>& op, ThreadPool& pool) {
  REDLINE_CHECK(!op.fp8.present(), "{} does not cast here", op.kName);
  const std::int64_t m = op.y.rows(), d = op.y.columns(), k = op.places.columns();
  for_rows(pool, m, d, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t s = begin; s < end; ++s) {
      const std::int32_t row = op.rows.i32()[s];
      float* const y = op.y.f32() + s * d;
      if (row == kNowhere)
        std::fill_n(y, d, 0.0f);
      else
        std::copy_n(op.x.f32() + row / k * d, d, y);
    }
  });
}

void run(const Combine<Tensor>& op, ThreadPool& pool) {
  const std::int64_t n = op.out.rows(), d = op.out.columns(), k = op.places.columns();
  for_rows(pool, n, d * k, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      float* const out = op.out.f32() + t * d;
      if (!op.accumulate) std::fill_n(out, d, 0.0f);
      for (std::int64_t j = 0; j < k; ++j) {
        const std::int32_t place = op.places.i32()[t * k + j];
        if (place == kNowhere) continue;
        const float weight = op.weights.present() ? op.weights.f32()[t * k + j] : 1.0f;
        const float* const y = op.y.f32() + place * d;
#pragma omp simd
        for (std::int64_t c = 0; c < d; ++c) out[c] += weight * y[c];
      }
    }
  });
}

void run(const CombineGrad<Tensor>& op, ThreadPool& pool) {
  REDLINE_CHECK(!op.fp8.present(), "{} does not cast here", op.kName);
  const std::int64_t m = op.dy.rows(), d = op.dy.columns(), k = op.places.columns();
  for (std::int64_t i = 0; i < op.places.elements(); ++i)
    if (op.places.i32()[i] == kNowhere) op.dweights.f32()[i] = 0;
  for_rows(pool, m, d, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t s = begin; s < end; ++s) {
      const std::int32_t row = op.rows.i32()[s];
      float* const dy = op.dy.f32() + s * d;
      if (row == kNowhere) {
        std::fill_n(dy, d, 0.0f);
        continue;
      }
      const float *const dout = op.dout.f32() + row / k * d, *const y = op.y.f32() + s * d;
      const float weight = op.weights.f32()[row];
      op.dweights.f32()[row] = lane_sum(d, [&](std::int64_t c) { return dout[c] * y[c]; });
#pragma omp simd
      for (std::int64_t c = 0; c < d; ++c) dy[c] = weight * dout[c];
    }
  });
}

void run(const RouterLoad<Tensor>& op, ThreadPool& pool) {
  const std::int64_t n = op.probs.rows(), experts = op.probs.columns(), columns = experts + 2;
  double* const partial = op.partial.as<double>();
  run_tasks(pool, kRowGroups, [&](std::int64_t g) {
    double* const sums = partial + g * columns;
    std::fill_n(sums, columns, 0.0);
    for (std::int64_t i = g * n / kRowGroups; i < (g + 1) * n / kRowGroups; ++i) {
      const float* const probs = op.probs.f32() + i * experts;
      for (std::int64_t e = 0; e < experts; ++e) {
        const double p = static_cast<double>(probs[e]);
        sums[e] += p;
        if (p > 0) sums[experts] -= p * std::log(p);
      }
      const double lse = static_cast<double>(op.lse.f32()[i]);
      sums[experts + 1] += lse * lse;
    }
  });
  double* const load = op.load.as<double>() + op.layer * load_columns(experts);
  for (std::int64_t e = 0; e < experts; ++e) load[e] = op.counts.i32()[e];
  std::fill_n(load + experts, columns, 0.0);
  for (std::int64_t g = 0; g < kRowGroups; ++g)
    for (std::int64_t c = 0; c < columns; ++c) load[experts + c] += partial[g * columns + c];
}

void run(const BalanceLoss<Tensor>& op, ThreadPool&) {
  const std::int64_t layers = op.load.rows(), experts = op.totals.columns() - 1;
  const auto e_count = static_cast<double>(experts);
  const double* const load = op.load.as<double>();
  std::vector<double> counts(static_cast<std::size_t>(experts)), probs(counts.size());  // over layers
  double routed = 0, z = 0, products = 0;
  for (std::int64_t l = 0; l < layers; ++l) {
    const double* const row = load + l * load_columns(experts);
    for (std::int64_t e = 0; e < experts; ++e) {
      routed += row[e];
      counts[static_cast<std::size_t>(e)] += row[e];
      probs[static_cast<std::size_t>(e)] += row[experts + e];
      if (!op.pooled) products += row[e] * row[experts + e];
    }
    z += row[2 * experts + 1];
  }
  if (op.pooled) products = std::inner_product(counts.begin(), counts.end(), probs.begin(), 0.0);
  const double rows = routed / static_cast<double>(op.per_token);  // layers x tokens
  const auto pairs = static_cast<double>(
      std::count_if(op.targets.i32(), op.targets.i32() + op.targets.elements(), [](std::int32_t t) { return t >= 0; }));
  const double share = rows > 0 ? e_count * (op.pooled ? 1 : static_cast<double>(layers)) / (rows * rows) : 0;
  const double balance = share * products;
  const double z_loss = rows > 0 ? z / rows : 0;
  if (op.gradient.present()) {
    const double coefficient = static_cast<double>(op.coefficient), of_z = static_cast<double>(op.z_coefficient);
    for (std::int64_t l = 0; l < layers; ++l) {
      const double* const own = op.pooled ? counts.data() : load + l * load_columns(experts);
      float* const gradient = op.gradient.f32() + l * (experts + 1);
      for (std::int64_t e = 0; e < experts; ++e) gradient[e] = static_cast<float>(coefficient * pairs * share * own[e]);
      gradient[experts] = static_cast<float>(rows > 0 ? of_z * pairs * 2 / rows : 0);
    }
  }
  double* const totals = op.totals.as<double>();
  if (!op.accumulate) std::fill_n(totals, op.totals.elements(), 0.0);
  for (std::int64_t l = 0; l < layers; ++l) {
    const double* const row = load + l * load_columns(experts);
    for (std::int64_t e = 0; e < experts; ++e) totals[l * (experts + 1) + e] += row[e];
    totals[l * (experts + 1) + experts] += row[2 * experts];
  }
  totals[layers * (experts + 1)] += balance * pairs;
  totals[layers * (experts + 1) + 1] += z_loss * pairs;
}

}  // namespace redline::ops::cpu
