// Linear layers: three products over the same weight, y = x W^T, dx = dy W, dW (+)= dy^T x. All row-major as stored;
// the work is gemm's.
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"

namespace redline::ops::cpu {

void run(const Linear<Tensor>& op, ThreadPool& pool) {
  const std::int64_t n = op.x.rows(), k = op.x.columns(), m = op.y.columns();
  gemm({.ta = Transpose::no,
        .tb = Transpose::yes,
        .m = n,
        .n = m,
        .k = k,
        .a = op.x.f32(),
        .lda = k,
        .b = op.weight.f32(),
        .ldb = k,
        .c = op.y.f32(),
        .ldc = m},
       pool);
}

void run(const LinearInputGrad<Tensor>& op, ThreadPool& pool) {
  const std::int64_t n = op.dy.rows(), m = op.dy.columns(), k = op.dx.columns();
  gemm({.m = n, .n = k, .k = m, .a = op.dy.f32(), .lda = m, .b = op.weight.f32(), .ldb = k, .c = op.dx.f32(), .ldc = k},
       pool);
}

void run(const LinearWeightGrad<Tensor>& op, ThreadPool& pool) {
  const std::int64_t n = op.dy.rows(), m = op.dy.columns(), k = op.x.columns();
  gemm({.ta = Transpose::yes,
        .m = m,
        .n = k,
        .k = n,
        .a = op.dy.f32(),
        .lda = m,
        .b = op.x.f32(),
        .ldb = k,
        .c = op.dweight.f32(),
        .ldc = k,
        .beta = op.accumulate ? 1.0f : 0.0f},
       pool);
}

}  // namespace redline::ops::cpu
