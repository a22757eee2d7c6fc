// The CUDA backend of the optimizer's nodes.
#pragma once

#include "device/cuda/launch.h"
#include "optim/adamw.h"
#include "optim/muon.h"
#include "optim/norms.h"
#include "optim/rounded.h"

namespace redline::optim::cuda {

void run(const SumSquares<Tensor>& op, const device::cuda::Launch& launch);
void run(const GradNorm<Tensor>& op, const device::cuda::Launch& launch);
void run(const AdamW<Tensor>& op, const device::cuda::Launch& launch);
void run(const Refresh<Tensor>& op, const device::cuda::Launch& launch);
void run(const Average<Tensor>& op, const device::cuda::Launch& launch);
void run(const Exchange<Tensor>& op, const device::cuda::Launch& launch);
void run(const TensorSums<Tensor>& op, const device::cuda::Launch& launch);
void run(const RoundAtRandom<Tensor>& op, const device::cuda::Launch& launch);
void run(const Widen<Tensor>& op, const device::cuda::Launch& launch);
void run(const MuonMomentum<Tensor>& op, const device::cuda::Launch& launch);
void run(const Muon<Tensor>& op, const device::cuda::Launch& launch);

}  // namespace redline::optim::cuda
