// Casts to eight bits and back on the CPU, for whoever makes products of them.
#pragma once

#include <vector>

#include "base/tensor.h"
#include "base/thread_pool.h"

namespace redline::ops::cpu {

// x [n, d] in fp32, as bf16 keeps it, times the scale: to rows [n, d] and to columns [d, n], whichever is there.
void cast(const Tensor& x, const Tensor& rows, const Tensor& columns, float scale, ThreadPool& pool);

// The values of an fp8 tensor, before its scale, in memory of their own. The reference need not save memory.
std::vector<float> numbers_of(const Tensor& t, ThreadPool& pool);

}  // namespace redline::ops::cpu
