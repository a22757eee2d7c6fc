// The ways this program can compute attention on a GPU, best first, and the choice among them. A backend takes both
// passes: what one's forward leaves (out, natural-log lse) any other's backward can read.
#pragma once

#include <span>
#include <string_view>

#include "device/cuda/launch.h"
#include "ops/attention.h"

namespace redline::ops::cuda {

using device::cuda::Launch;

// What the choice looks at: the same for forward and backward.
struct AttentionCase {
  DType dtype = DType::bf16;
  HeadLayout layout;
  int major = 0, minor = 0;  // compute capability of the card
};

struct AttentionBackend {
  std::string_view name;
  bool (*supports)(const AttentionCase& c);
  void (*forward)(const Attention<Tensor>& op, const Launch& launch);
  void (*backward)(const AttentionGrad<Tensor>& op, const Launch& launch);
};

// Best first; the last one takes every case that the program can build.
std::span<const AttentionBackend> attention_backends();

// "auto": the first that supports the case. A name that is unknown or cannot take the case is a UserError.
const AttentionBackend& choose_attention(const AttentionCase& c, std::string_view name = "auto");

void run(const Attention<Tensor>& op, const Launch& launch, std::string_view backend);
void run(const AttentionGrad<Tensor>& op, const Launch& launch, std::string_view backend);

// attention_flash.cu and attention_flash_grad.cu: tensor cores, bf16, head_dim 64 or 128, sm_80 and up.
bool flash_supports(const AttentionCase& c);
void flash_forward(const Attention<Tensor>& op, const Launch& launch);
void flash_backward(const AttentionGrad<Tensor>& op, const Launch& launch);

// attention_reference.cu: slow and plain, bf16 and fp32, head_dim up to 256, any card.
bool reference_supports(const AttentionCase& c);
void reference_forward(const Attention<Tensor>& op, const Launch& launch);
void reference_backward(const AttentionGrad<Tensor>& op, const Launch& launch);

}  // namespace redline::ops::cuda
