// The CPU backend of the ops: fp32, multi-threaded, the truth for the other backends. One overload of run() an op;
// every result is the same to the bit for any number of threads.
#pragma once

#include "base/thread_pool.h"
#include "ops/add_norm.h"
#include "ops/attention.h"
#include "ops/custom.h"
#include "ops/dropout.h"
#include "ops/embed.h"
#include "ops/experts.h"
#include "ops/fp8.h"
#include "ops/grouped.h"
#include "ops/linear.h"
#include "ops/lm_loss.h"
#include "ops/orthogonalize.h"
#include "ops/rope_qk_norm.h"
#include "ops/split_heads.h"
#include "ops/swiglu.h"

namespace redline::ops::cpu {

void run(const Embed<Tensor>& op, ThreadPool& pool);
void run(const EmbedGrad<Tensor>& op, ThreadPool& pool);
void run(const SortTokens<Tensor>& op, ThreadPool& pool);
void run(const DocumentTiles<Tensor>& op, ThreadPool& pool);
void run(const Add<Tensor>& op, ThreadPool& pool);
void run(const AddNorm<Tensor>& op, ThreadPool& pool);
void run(const AddNormGrad<Tensor>& op, ThreadPool& pool);
void run(const NormAdd<Tensor>& op, ThreadPool& pool);
void run(const Linear<Tensor>& op, ThreadPool& pool);
void run(const LinearInputGrad<Tensor>& op, ThreadPool& pool);
void run(const LinearWeightGrad<Tensor>& op, ThreadPool& pool);
void run(const BiasGrad<Tensor>& op, ThreadPool& pool);
void run(const GroupedLinear<Tensor>& op, ThreadPool& pool);
void run(const GroupedLinearInputGrad<Tensor>& op, ThreadPool& pool);
void run(const GroupedLinearWeightGrad<Tensor>& op, ThreadPool& pool);
void run(const GroupedFp8Product<Tensor>& op, ThreadPool& pool);
void run(const GroupedFp8WeightGrad<Tensor>& op, ThreadPool& pool);
void run(const Route<Tensor>& op, ThreadPool& pool);
void run(const RouteGrad<Tensor>& op, ThreadPool& pool);
void run(const SortByExpert<Tensor>& op, ThreadPool& pool);
void run(const GatherRows<Tensor>& op, ThreadPool& pool);
void run(const Combine<Tensor>& op, ThreadPool& pool);
void run(const CombineGrad<Tensor>& op, ThreadPool& pool);
void run(const RouterLoad<Tensor>& op, ThreadPool& pool);
void run(const BalanceLoss<Tensor>& op, ThreadPool& pool);
void run(const Orthogonalize<Tensor>& op, ThreadPool& pool);
void run(const RopeQkNorm<Tensor>& op, ThreadPool& pool);
void run(const RopeQkNormGrad<Tensor>& op, ThreadPool& pool);
void run(const Attention<Tensor>& op, ThreadPool& pool);
void run(const AttentionGrad<Tensor>& op, ThreadPool& pool);
void run(const SplitHeads<Tensor>& op, ThreadPool& pool);
void run(const SwiGlu<Tensor>& op, ThreadPool& pool);
void run(const SwiGluGrad<Tensor>& op, ThreadPool& pool);
void run(const LmLoss<Tensor>& op, ThreadPool& pool);
void run(const Dropout<Tensor>& op, ThreadPool& pool);
void run(const CacheStore<Tensor>& op, ThreadPool& pool);
void run(const AttentionCached<Tensor>& op, ThreadPool& pool);
void run(const Quantize<Tensor>& op, ThreadPool& pool);
void run(const QuantizeWeight<Tensor>& op, ThreadPool& pool);
void run(const BoundScale<Tensor>& op, ThreadPool& pool);
void run(const Largest<Tensor>& op, ThreadPool& pool);
void run(const SetScales<Tensor>& op, ThreadPool& pool);
void run(const MoveScales<Tensor>& op, ThreadPool& pool);
void run(const Fp8Product<Tensor>& op, ThreadPool& pool);
void run(const CountFp8<Tensor>& op, ThreadPool& pool);
inline void run(const Custom<Tensor>& op, ThreadPool& pool) {
  op.kind->run(std::span(op.operands).first(op.kind->operands.size()), pool);
}

}  // namespace redline::ops::cpu
