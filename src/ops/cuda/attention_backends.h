// The ways to compute attention on a GPU. A node names one, or leaves the choice to the card. Then run() of kernels.h
// takes the fastest that can, measured on the operands of the first run, or the first that can where bits must repeat.
// The reference takes the cases that flash cannot, with a note. Any backward pass can read the results of any forward
// pass (out, natural-log lse), so the two passes are chosen apart.
#pragma once

#include <compare>
#include <span>
#include <string>

#include "device/cuda/launch.h"
#include "ops/attention.h"

namespace redline::ops::cuda {

using device::cuda::Launch;

// The case that a choice is made for.
struct AttentionCase {
  bool backward = false;
  DType dtype = DType::bf16;
  HeadLayout layout;
  float scale = 0;
  int major = 0, minor = 0;                       // compute capability of the card
  std::int64_t n = 0, capacity = 0, longest = 0;  // tokens, documents there is room for, tokens of the longest
  std::int64_t window = kNoWindow;
  AttentionHow how = {};
  std::int64_t workspace_bytes = 0;          // that the pass may use
  device::cuda::CardObjects* own = nullptr;  // the card's
  auto operator<=>(const AttentionCase&) const = default;

  bool full_rows() const { return how.documents == Documents::full_rows; }
};

struct AttentionBackend {
  AttentionBy by;
  std::string (*why_not)(const AttentionCase& c);  // why it cannot do the case; empty: it can
  void (*forward)(const Attention<Tensor>& op, const Launch& launch);
  void (*backward)(const AttentionGrad<Tensor>& op, const Launch& launch);
};

AttentionCase case_of(const Attention<Tensor>& op, const Launch& launch);
AttentionCase case_of(const AttentionGrad<Tensor>& op, const Launch& launch);

// All backends. The last one takes every case, and is the slowest by far.
std::span<const AttentionBackend> attention_backends();

// The backend that is asked for by name. One that cannot take the case is a UserError.
const AttentionBackend& find_attention(const AttentionCase& c, AttentionBy by);

// cudnn/attention_cudnn.cpp, or no_cudnn.cpp where it was not built: NVIDIA's library, loaded at its first use.
std::string cudnn_version();  // empty: there is none, and cudnn_problem() says why
std::string cudnn_problem();
std::string cudnn_why_not(const AttentionCase& c);
void cudnn_forward(const Attention<Tensor>& op, const Launch& launch);
void cudnn_backward(const AttentionGrad<Tensor>& op, const Launch& launch);

// attention_hopper.cu: products of warp groups, bf16, head_dim 64 or 128, sm_90a.
std::string hopper_why_not(const AttentionCase& c);
void hopper_forward(const Attention<Tensor>& op, const Launch& launch);
void hopper_backward(const AttentionGrad<Tensor>& op, const Launch& launch);

// attention_flash.cu: tensor cores, bf16, tf32 and fp32, head_dim 64 or 128, sm_80 and up.
std::string flash_why_not(const AttentionCase& c);
void flash_forward(const Attention<Tensor>& op, const Launch& launch);
void flash_backward(const AttentionGrad<Tensor>& op, const Launch& launch);

// attention_reference.cu: slow and plain, bf16 and fp32, head_dim up to 256, any card.
std::string reference_why_not(const AttentionCase& c);
void reference_forward(const Attention<Tensor>& op, const Launch& launch);
void reference_backward(const AttentionGrad<Tensor>& op, const Launch& launch);

// attention_documents.cu: packed documents for a library, as a batch of sequences, each with its length and its offset
// in each array.
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
                    const Tensor& rows, const Tensor& lse, const Launch& launch);

// lse [heads, n] of full rows to [rows, heads, length], which libraries want: rows * length = n.
void lse_by_rows(const Tensor& lse, std::int64_t length, float* to, const Launch& launch);

}  // namespace redline::ops::cuda
