// The CPU backend of the optimizer's nodes.
#pragma once

#include "base/thread_pool.h"
#include "optim/adamw.h"
#include "optim/average.h"
#include "optim/muon.h"
#include "optim/tensor_sums.h"

namespace redline::optim::cpu {

void run(const SumSquares<Tensor>& op, ThreadPool& pool);
void run(const GradNorm<Tensor>& op, ThreadPool& pool);
void run(const AdamW<Tensor>& op, ThreadPool& pool);
void run(const Refresh<Tensor>& op, ThreadPool& pool);
void run(const Average<Tensor>& op, ThreadPool& pool);
void run(const Exchange<Tensor>& op, ThreadPool& pool);
void run(const TensorSums<Tensor>& op, ThreadPool& pool);
void run(const MuonMomentum<Tensor>& op, ThreadPool& pool);
void run(const Muon<Tensor>& op, ThreadPool& pool);

}  // namespace redline::optim::cpu
