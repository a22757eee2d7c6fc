// Linear layers: three products over the same weight, y = x W^T, dx = dy W, dW (+)= dy^T x. All row-major as stored;
// the work is gemm's.
#include "ops/cuda/gemm.h"
#include "ops/cuda/kernels.h"

namespace redline::ops::cuda {

void run(const Linear<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.x.rows(), k = op.x.columns(), m = op.y.columns();
  gemm({.transpose_b = true,
        .m = n,
        .n = m,
        .k = k,
        .a = op.x.data,
        .lda = k,
        .b = op.weight.data,
        .ldb = k,
        .c = op.y.data,
        .ldc = m,
        .input = op.x.dtype,
        .output = op.y.dtype},
       launch);
}

void run(const LinearInputGrad<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.dy.rows(), m = op.dy.columns(), k = op.dx.columns();
  gemm({.m = n,
        .n = k,
        .k = m,
        .a = op.dy.data,
        .lda = m,
        .b = op.weight.data,
        .ldb = k,
        .c = op.dx.data,
        .ldc = k,
        .input = op.dy.dtype,
        .output = op.dx.dtype},
       launch);
}

void run(const LinearWeightGrad<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.dy.rows(), m = op.dy.columns(), k = op.x.columns();
  gemm({.transpose_a = true,
        .m = m,
        .n = k,
        .k = n,
        .a = op.dy.data,
        .lda = m,
        .b = op.x.data,
        .ldb = k,
        .c = op.dweight.data,
        .ldc = k,
        .input = op.x.dtype,
        .output = op.dweight.dtype,
        .beta = op.accumulate ? 1.0f : 0.0f},
       launch);
}

}  // namespace redline::ops::cuda
