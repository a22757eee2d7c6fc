// Head and cross entropy, chunk by chunk of rows:  logits = x W^T;  loss = logsumexp(logits) - logits[target];
//   dlogits = (1 + 2 z_loss logsumexp) softmax(logits) - onehot(target), over the logits;
//   dx = dlogits W;  dW (+)= dlogits^T x.
// The products are gemm's, a chunk at a time; between them a task is a range of the chunk's rows. Losses are added up
// last, in the order of the rows, in double. With gradients in eight bits dlogits are cast by columns, and both
// products are of what the casts left.
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/small_floats.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/math.h"
#include "ops/cpu/row_ranges.h"

namespace redline::ops::cpu {
namespace {

// The loss of one row; with `gradient` the row becomes its dlogits.
float row_loss(float* logits, std::int64_t vocab, std::int32_t target, bool gradient, float z_loss) {
  if (target < 0) {
    if (gradient) std::fill_n(logits, vocab, 0.0f);
    return 0.0f;
  }
  const float top = lane_max(vocab, logits), at_target = logits[target];
  float sum;
  if (gradient) {
    sum = lane_sum(vocab, [=](std::int64_t j) { return logits[j] = exp(logits[j] - top); });
    const float z = z_loss != 0.0f ? 2.0f * z_loss * (std::log(sum) + top) : 0.0f;
    const float scale = (1.0f + z) / sum;
#pragma omp simd
    for (std::int64_t j = 0; j < vocab; ++j) logits[j] *= scale;
    logits[target] -= 1.0f;
  } else {
    sum = lane_sum(vocab, [=](std::int64_t j) { return exp(logits[j] - top); });
  }
  return std::log(sum) + (top - at_target);
}

void round_to_bf16(float* x, std::int64_t n) {
  for (std::int64_t j = 0; j < n; ++j) x[j] = f32_from_bf16(bf16_from_f32(x[j]));
}

// The two gradients of a head from a chunk's dlogits, with operands in eight bits.
class GradientsInFp8 {
 public:
  GradientsInFp8(const LmLoss<Tensor>& op, ThreadPool& pool)
      : op_(op), pool_(pool), x_(numbers_of(op.fp8.x, pool)), weight_(numbers_of(op.fp8.weight, pool)) {}

  void add(std::int64_t first, std::int64_t rows) const {
    const std::int64_t n = op_.x.rows(), d = op_.x.columns(), vocab = op_.weight.rows();
    const auto& scale = *op_.fp8.dlogits_scale.as<Fp8Scale>();
    const Tensor columns{op_.fp8.dlogits.data, op_.fp8.dlogits.dtype, {vocab, rows}};
    cast({op_.logits.data, DType::f32, {rows, vocab}}, {}, columns, scale.scale, pool_);
    const std::vector<float> dlogits = numbers_of(columns, pool_);
    const Matrix by_columns{dlogits.data(), vocab, rows, rows};
    gemm(product(turned(by_columns), turned({weight_.data(), d, vocab, vocab}), op_.dx.f32() + first * d, d,
                 scale.inverse * op_.fp8.weight_scale.as<Fp8Scale>()->inverse),
         pool_);
    gemm(product(by_columns, turned({x_.data() + first, d, rows, n}), op_.dweight.f32(), d,
                 scale.inverse * op_.fp8.x_scale.as<Fp8Scale>()->inverse,
                 first > 0 || op_.accumulate_weight ? 1.0f : 0.0f),
         pool_);
  }

 private:
  const LmLoss<Tensor>& op_;
  ThreadPool& pool_;
  std::vector<float> x_, weight_;
};

}  // namespace

void run(const LmLoss<Tensor>& op, ThreadPool& pool) {
  const std::int64_t n = op.x.rows(), d = op.x.columns(), vocab = op.weight.rows(), chunk = op.logits.rows();
  const bool gradient = op.dx.present();
  float* logits = op.logits.f32();
  std::optional<GradientsInFp8> in_fp8;
  if (gradient && op.fp8.present()) in_fp8.emplace(op, pool);
  for (std::int64_t first = 0; first < n; first += chunk) {
    const std::int64_t rows = std::min(chunk, n - first);
    const Matrix x{op.x.f32() + first * d, rows, d, d}, weight = matrix(op.weight), dlogits{logits, rows, vocab, vocab};
    gemm(product(x, turned(weight), logits, vocab), pool);
    for_rows(pool, rows, vocab, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        float* const row = logits + i * vocab;
        if (op.stored == DType::bf16) round_to_bf16(row, vocab);
        op.losses.f32()[first + i] = row_loss(row, vocab, op.targets.i32()[first + i], gradient, op.z_loss);
        if (gradient && op.stored == DType::bf16) round_to_bf16(row, vocab);
      }
    });
    if (!gradient) continue;
    if (in_fp8) {
      in_fp8->add(first, rows);
      continue;
    }
    gemm(product(dlogits, weight, op.dx.f32() + first * d, d), pool);
    const float beta = first > 0 || op.accumulate_weight ? 1.0f : 0.0f;
    gemm(product(turned(dlogits), x, op.dweight.f32(), d, 1, beta), pool);
  }
  double sum = op.accumulate_loss ? *op.loss_sum.as<double>() : 0.0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(op.losses.f32()[i]);
  *op.loss_sum.as<double>() = sum;
}

}  // namespace redline::ops::cpu
