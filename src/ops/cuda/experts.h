// The CUDA backend of experts: their ops as ops/cuda/kernels.h has those of all models. They stand apart, so that only
// who runs them is compiled anew where they change.
#pragma once

#include "device/cuda/launch.h"
#include "ops/experts.h"

namespace redline::ops::cuda {

using device::cuda::Launch;

void run(const Route<Tensor>& op, const Launch& launch);
void run(const RouteGrad<Tensor>& op, const Launch& launch);
void run(const SortByExpert<Tensor>& op, const Launch& launch);
void run(const GatherRows<Tensor>& op, const Launch& launch);
void run(const Combine<Tensor>& op, const Launch& launch);
void run(const CombineGrad<Tensor>& op, const Launch& launch);
void run(const RouterLoad<Tensor>& op, const Launch& launch);
void run(const BalanceLoss<Tensor>& op, const Launch& launch);

}  // namespace redline::ops::cuda
