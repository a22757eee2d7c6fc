// Casts to and from bf16, and a sum, between a collective and the operands of its op. They are only queued.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace redline::dist {

void cast_to_bf16(const float* from, void* to, std::int64_t n, cudaStream_t stream);    // to = bf16(from), nearest even
void cast_from_bf16(const void* from, float* to, std::int64_t n, cudaStream_t stream);  // to = from
void add_from_bf16(const void* from, float* to, std::int64_t n, cudaStream_t stream);   // to += from
void add(const float* from, float* to, std::int64_t n, cudaStream_t stream);            // to += from

}  // namespace redline::dist
