// The ways to compute attention on a GPU. A node names one, or leaves the choice to the card. Then run() of kernels.h
// takes the fastest that can, measured on the operands of the first run, or the first that can where bits must repeat.
// The reference takes the cases that flash cannot, with a note. Any backward pass can read the results of any forward
// pass (out, natural-log lse), so the two passes are chosen apart.
#pragma once

#include <compare>
#include <span>
#include <string>

#include "device/cuda/card_objects.h"
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

// attention_hopper.cu and attention_hopper_grad.cu: products of warp groups, bf16, head_dim 64 or 128, sm_90a.
std::string hopper_why_not(const AttentionCase& c);
void hopper_forward(const Attention<Tensor>& op, const Launch& launch);
void hopper_backward(const AttentionGrad<Tensor>& op, const Launch& launch);

// attention_flash.cu and attention_flash_grad.cu: tensor cores, bf16, tf32 and fp32, head_dim 64 or 128, sm_80 and up.
std::string flash_why_not(const AttentionCase& c);
void flash_forward(const Attention<Tensor>& op, const Launch& launch);
void flash_backward(const AttentionGrad<Tensor>& op, const Launch& launch);

// attention_reference.cu: slow and plain, bf16 and fp32, head_dim up to 256, any card.
std::string reference_why_not(const AttentionCase& c);
void reference_forward(const Attention<Tensor>& op, const Launch& launch);
void reference_backward(const AttentionGrad<Tensor>& op, const Launch& launch);

}  // namespace redline::ops::cuda
