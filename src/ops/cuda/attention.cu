// Chooses who computes attention on the GPU. The kernels are in attention_flash*.cu and attention_reference.cu.
#include <string>

#include "ops/cuda/attention_backends.h"
#include "ops/cuda/kernels.h"

namespace redline::ops::cuda {
namespace {

// Best first: a library's or a Hopper kernel's line goes above flash.
constexpr AttentionBackend kBackends[] = {
    {"flash", flash_supports, flash_forward, flash_backward},
    {"reference", reference_supports, reference_forward, reference_backward},
};

std::string describe(const AttentionCase& c) {
  return fmt::format("{} with {} heads, {} key/value heads and head_dim {} on compute capability {}.{}",
                     name_of(c.dtype), c.layout.heads, c.layout.kv_heads, c.layout.head_dim, c.major, c.minor);
}

template <class Op>
AttentionCase case_of(const Op& op, const Launch& launch) {
  return {.dtype = op.qkv.dtype, .layout = op.layout, .major = launch.major, .minor = launch.minor};
}

}  // namespace

std::span<const AttentionBackend> attention_backends() { return kBackends; }

const AttentionBackend& choose_attention(const AttentionCase& c, std::string_view name) {
  std::string names = "auto";
  for (const AttentionBackend& backend : kBackends) {
    names += fmt::format(", {}", backend.name);
    if (name != "auto" && name != backend.name) continue;
    if (backend.supports(c)) return backend;
    if (name == backend.name) fail_user("attention backend \"{}\" cannot do {}; use \"auto\"", name, describe(c));
  }
  if (name == "auto") fail_user("no attention backend can do {}", describe(c));
  fail_user("there is no attention backend \"{}\"; there are: {}", name, names);
}

void run(const Attention<Tensor>& op, const Launch& launch, std::string_view backend) {
  choose_attention(case_of(op, launch), backend).forward(op, launch);
}
void run(const AttentionGrad<Tensor>& op, const Launch& launch, std::string_view backend) {
  choose_attention(case_of(op, launch), backend).backward(op, launch);
}
void run(const Attention<Tensor>& op, const Launch& launch) { run(op, launch, "auto"); }
void run(const AttentionGrad<Tensor>& op, const Launch& launch) { run(op, launch, "auto"); }

}  // namespace redline::ops::cuda
