// Makes matrices orthogonal on the card, by products alone.
#pragma once

#include "device/cuda/launch.h"
#include "ops/orthogonalize.h"

namespace redline::ops::cuda {

void run(const Orthogonalize<Tensor>& op, const device::cuda::Launch& launch);

}  // namespace redline::ops::cuda
