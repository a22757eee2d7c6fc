// The CPU backend of the optimizer's nodes.
#pragma once

#include "base/thread_pool.h"
#include "optim/adamw.h"
#include "optim/moments.h"
#include "optim/muon.h"
#include "optim/norms.h"
#include "optim/rounded.h"

namespace redline::optim::cpu {

void run(const SumSquares<Tensor>& op, ThreadPool& pool);
void run(const GradNorm<Tensor>& op, ThreadPool& pool);
void run(const AdamW<Tensor>& op, ThreadPool& pool);
void run(const Refresh<Tensor>& op, ThreadPool& pool);
void run(const Average<Tensor>& op, ThreadPool& pool);
void run(const Exchange<Tensor>& op, ThreadPool& pool);
void run(const TensorSums<Tensor>& op, ThreadPool& pool);
void run(const RoundAtRandom<Tensor>& op, ThreadPool& pool);
void run(const Widen<Tensor>& op, ThreadPool& pool);
void run(const MuonMomentum<Tensor>& op, ThreadPool& pool);
void run(const Muon<Tensor>& op, ThreadPool& pool);

// Moments of a block to codes of eight bits and back (optim/moments.h): for the update, and for checkpoints that kept
// them another way.
void decode_moments(const DynamicMap& map, const std::uint8_t* codes, std::int64_t count, float scale, float* out);
// At most kCutBlock of them; return their scale.
float encode_first_moments(const float* moments, std::int64_t count, std::uint8_t* codes);
float encode_second_moments(const float* moments, std::int64_t count, std::uint8_t* codes);

}  // namespace redline::optim::cpu
