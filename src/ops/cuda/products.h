// The matrix products of ops, as they are launched.
#pragma once

#include "ops/cuda/gemm.h"
#include "ops/fp8.h"
#include "ops/linear.h"
#include "ops/lm_loss.h"

namespace redline::ops::cuda {

Gemm product(const Linear<Tensor>& op);
Gemm product(const LinearInputGrad<Tensor>& op);
Gemm product(const LinearWeightGrad<Tensor>& op);
Gemm product(const Fp8Product<Tensor>& op);

// A head's rows of logits exist in chunks. Where rows of the vocabulary's length would not be aligned, which costs
// products and loads alike several times over, fewer rows stand a little further apart.
struct LogitsChunk {
  std::int64_t rows, stride;
};
LogitsChunk logits_chunk(const Tensor& logits);

// The products of one chunk, from row `first` on; the last two where there is a gradient. In eight bits dlogits take
// the front of the row of their logits, and stand once more by columns.
struct HeadProducts {
  Gemm logits, dx, dweight;
};
HeadProducts head_products(const LmLoss<Tensor>& op, std::int64_t first);

}  // namespace redline::ops::cuda
