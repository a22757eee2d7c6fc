// Linear layers: a product each; the work is gemm's.
#include "ops/cuda/kernels.h"
#include "ops/cuda/products.h"

namespace redline::ops::cuda {

void run(const Linear<Tensor>& op, const Launch& launch) { gemm(product(op), launch); }
void run(const LinearInputGrad<Tensor>& op, const Launch& launch) { gemm(product(op), launch); }
void run(const LinearWeightGrad<Tensor>& op, const Launch& launch) { gemm(product(op), launch); }
void run(const Fp8Product<Tensor>& op, const Launch& launch) { gemm(product(op), launch); }

}  // namespace redline::ops::cuda
