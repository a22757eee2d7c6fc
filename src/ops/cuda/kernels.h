// The CUDA backend of the ops. Activations and weights are bf16 or fp32 (the operands' dtypes say which; all of one op
// agree), statistics, losses and gradients of weights are fp32. One overload of run() an op: it only enqueues on the
// launch's stream, allocates nothing and waits for nothing, so that a program can be captured.
#pragma once

#include "device/cuda/launch.h"
#include "ops/add_norm.h"
#include "ops/attention.h"
#include "ops/custom.h"
#include "ops/dropout.h"
#include "ops/embed.h"
#include "ops/fp8.h"
#include "ops/grouped.h"
#include "ops/linear.h"
#include "ops/lm_loss.h"
#include "ops/orthogonalize.h"
#include "ops/rope_qk_norm.h"
#include "ops/split_heads.h"
#include "ops/swiglu.h"

namespace redline::ops::cuda {

using device::cuda::Launch;

void run(const Embed<Tensor>& op, const Launch& launch);
void run(const EmbedGrad<Tensor>& op, const Launch& launch);
void run(const SortTokens<Tensor>& op, const Launch& launch);
void run(const DocumentTiles<Tensor>& op, const Launch& launch);
void run(const Add<Tensor>& op, const Launch& launch);
void run(const AddNorm<Tensor>& op, const Launch& launch);
void run(const AddNormGrad<Tensor>& op, const Launch& launch);
void run(const NormAdd<Tensor>& op, const Launch& launch);
void run(const Linear<Tensor>& op, const Launch& launch);
void run(const LinearInputGrad<Tensor>& op, const Launch& launch);
void run(const LinearWeightGrad<Tensor>& op, const Launch& launch);
void run(const BiasGrad<Tensor>& op, const Launch& launch);
void run(const GroupedLinear<Tensor>& op, const Launch& launch);
void run(const GroupedLinearInputGrad<Tensor>& op, const Launch& launch);
void run(const GroupedLinearWeightGrad<Tensor>& op, const Launch& launch);
void run(const GroupedFp8Product<Tensor>& op, const Launch& launch);
void run(const GroupedFp8WeightGrad<Tensor>& op, const Launch& launch);
void run(const Orthogonalize<Tensor>& op, const Launch& launch);
void run(const RopeQkNorm<Tensor>& op, const Launch& launch);
void run(const RopeQkNormGrad<Tensor>& op, const Launch& launch);
void run(const Attention<Tensor>& op, const Launch& launch);
void run(const AttentionGrad<Tensor>& op, const Launch& launch);
void run(const SplitHeads<Tensor>& op, const Launch& launch);
void run(const SwiGlu<Tensor>& op, const Launch& launch);
void run(const SwiGluGrad<Tensor>& op, const Launch& launch);
void run(const LmLoss<Tensor>& op, const Launch& launch);
void run(const Dropout<Tensor>& op, const Launch& launch);
void run(const CacheStore<Tensor>& op, const Launch& launch);
void run(const AttentionCached<Tensor>& op, const Launch& launch);
void run(const Quantize<Tensor>& op, const Launch& launch);
void run(const QuantizeWeight<Tensor>& op, const Launch& launch);
void run(const BoundScale<Tensor>& op, const Launch& launch);
void run(const Largest<Tensor>& op, const Launch& launch);
void run(const SetScales<Tensor>& op, const Launch& launch);
void run(const MoveScales<Tensor>& op, const Launch& launch);
void run(const Fp8Product<Tensor>& op, const Launch& launch);
void run(const CountFp8<Tensor>& op, const Launch& launch);
void run(const Custom<Tensor>& op, const Launch& launch);

}  // namespace redline::ops::cuda
