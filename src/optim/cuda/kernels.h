// The CUDA backend of the optimizer's nodes.
#pragma once

#include "device/cuda/launch.h"
#include "optim/adamw.h"
#include "optim/gradients.h"
#include "optim/muon.h"
#include "optim/norms.h"

namespace redline::optim::cuda {

void run(const SumSquares<Tensor>& op, const device::cuda::Launch& launch);
void run(const GradNorm<Tensor>& op, const device::cuda::Launch& launch);
void run(const AdamW<Tensor>& op, const device::cuda::Launch& launch);
void run(const Refresh<Tensor>& op, const device::cuda::Launch& launch);
void run(const Average<Tensor>& op, const device::cuda::Launch& launch);
void run(const Exchange<Tensor>& op, const device::cuda::Launch& launch);
void run(const TensorSums<Tensor>& op, const device::cuda::Launch& launch);
void run(const RoundGradients<Tensor>& op, const device::cuda::Launch& launch);
void run(const WidenGradients<Tensor>& op, const device::cuda::Launch& launch);
void run(const MuonMomentum<Tensor>& op, const device::cuda::Launch& launch);
void run(const Muon<Tensor>& op, const device::cuda::Launch& launch);

}  // namespace redline::optim::cuda
