// Matrix products on the GPU through cuBLASLt: plans are made and tuned before a program runs, or the first time that a
// shape is seen, and then only launched.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "device/cuda/launch.h"
#include "ops/experts.h"
#include "ops/fp8.h"
#include "ops/how.h"
#include "ops/linear.h"
#include "ops/lm_loss.h"
#include "ops/orthogonalize.h"

namespace redline::ops::cuda {

// C[m, n] = alpha * op(A) * op(B) + beta * D, D another array like C or C itself; row-major and dense with the given
// leading dimensions; a and b bf16 or fp32, c bf16 (of bf16 inputs) or fp32, accumulated in fp32. Or a and b e4m3 and
// e5m2, with the scales that the product is multiplied by: A as it is times B turned over then, all extents multiples
// of 16. A batch is many of them, their operands so many elements apart.
struct Gemm {
  bool transpose_a = false, transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  std::int64_t lda = 0;
  const void* b = nullptr;
  std::int64_t ldb = 0;
  void* c = nullptr;
  std::int64_t ldc = 0;
  DType input = DType::bf16, input_b = DType::bf16, output = DType::bf16;
  const float *a_scale = nullptr, *b_scale = nullptr;  // of fp8 operands
  float beta = 0;
  ProductHow how = {};
  void* workspace = nullptr;  // device memory that the library may use
  std::int64_t workspace_bytes = 0;
  float alpha = 1;
  const void* added = nullptr;  // D; none: C
  const void* bias = nullptr;   // [n] of the output's type, added to every row
  std::int64_t batch = 1, stride_a = 0, stride_b = 0, stride_c = 0;
};

// A large product with an extent of no whole number of 16 bytes, in rows that begin at such, is computed in parts.
void gemm(const Gemm& g, const device::cuda::Launch& launch);

// Makes the plan of a product, which gemm() then finds. It is tuned on operands that overwrite `bench`, memory of the
// card, and without enough of that on memory of their own. The addresses of `g` only give the alignment.
void prepare(const Gemm& g, const device::cuda::Launch& launch, std::span<std::byte> bench);

// The time of a product by itself, as gemm() would launch it, tuned or not. It runs on operands of its own; the
// addresses only give the alignment. Without timing, it only asks whether there is an algorithm.
struct ProductTime {
  double seconds = 0;
  std::string problem = {};  // why it cannot be computed, or not be timed
};
ProductTime time_of(const Gemm& g, const device::cuda::Launch& launch, bool timed = true);

// How the algorithm of each product of a card is found from here on (kernels.tuning). off: cuBLASLt's first proposal;
// on: the fastest of its best ones, by time; max: the fastest of all that it proposes, with more of their variants.
// Each has plans of its own. The environment's REDLINE_TUNING=off wins over all of them.
enum class Tuning : std::uint8_t { off, on, max };
void set_tuning(Tuning tuning, const device::cuda::Launch& launch);
void begin_budgets(const device::cuda::Launch& launch);  // of measuring at a start (start_budgets.h)

// Writes the card's new plans since the last call to the tuning file, for later runs. A file that cannot be written is
// a warning.
void keep_tuning(const device::cuda::Launch& launch);

// The matrix products of ops, as they are launched (linear.cpp).
Gemm product(const Linear<Tensor>& op);
Gemm product(const LinearInputGrad<Tensor>& op);
Gemm product(const LinearWeightGrad<Tensor>& op);
Gemm product(const Fp8Product<Tensor>& op);
Gemm product(const Route<Tensor>& op);

// A router's gradients, one after the other. Beside bf16 operands dlogits are a rounded part and the rest of it, both
// in bf16 and in one row; dx, which is rounded itself, takes the first alone.
std::vector<Gemm> products(const RouteGrad<Tensor>& op);

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
std::vector<Gemm> products(const LmLoss<Tensor>& op);  // of all chunks

std::vector<Gemm> products(const Orthogonalize<Tensor>& op);

// Gives the products of any op in the order of their launch; most have none.
template <class Op, class Take>
void each_product(const Op& op, const Take& take) {
  if constexpr (requires { product(op); })
    take(product(op));
  else if constexpr (requires { products(op); })
    for (const Gemm& g : products(op)) take(g);
}

}  // namespace redline::ops::cuda
