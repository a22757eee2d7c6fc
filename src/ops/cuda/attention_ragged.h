// Packed documents for a library: a batch of sequences, each with its length and its offset in each array.
#pragma once

#include "device/cuda/launch.h"
#include "ops/attention.h"

namespace redline::ops::cuda {

// In device memory; offsets in elements, [capacity + 1]. Unused documents have length 0.
struct RaggedOffsets {
  std::int32_t* lengths = nullptr;  // [capacity]
  std::int32_t* qkv = nullptr;
  std::int32_t* out = nullptr;
  std::int32_t* lse = nullptr;

  // Laid out from `memory`, which has room for ragged_offset_bytes.
  RaggedOffsets(std::byte* memory, std::int64_t capacity);
};

// Enqueues one kernel that fills the offsets in from doc_offsets and clears the tail of `rows` [n, width] and, where
// present, of lse [heads, n].
void prepare_ragged(const Tensor& doc_offsets, const HeadLayout& layout, const RaggedOffsets& offsets,
                    const Tensor& rows, const Tensor& lse, const device::cuda::Launch& launch);

// lse [heads, n] of full rows to [rows, heads, length], which libraries want: rows * length = n.
void lse_by_rows(const Tensor& lse, std::int64_t length, float* to, const device::cuda::Launch& launch);

}  // namespace redline::ops::cuda
