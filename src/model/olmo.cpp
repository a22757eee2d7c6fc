// OLMo-2: a norm after each branch instead of before it, and an RMSNorm over all queries and one over all keys. OLMo-3:
// the same with a window in all but every fourth layer; the others alone have their RoPE stretched.
#include "model/family.h"

namespace redline::model {
namespace {

constexpr DecoderDescription kOlmo{.qk_norm = ops::NormOver::projection,
                                   .attention_norm = "post_attention_layernorm.weight",
                                   .mlp_norm = "post_feedforward_layernorm.weight",
                                   .norm_after = true,
                                   .attention_bias = true};

constexpr DecoderDescription with_windows(DecoderDescription d) {
  d.windows = WindowedLayers::by_layer;
  d.full_every = 4;
  d.local_rope = true;
  return d;
}

}  // namespace

extern const Family kOlmo2{.name = "olmo2",
                           .hf_architecture = "Olmo2ForCausalLM",
                           .hf_model_type = "olmo2",
                           .decoder = kOlmo,
                           .hf_defaults = {.norm_eps = 1e-5, .pad_token = 1},
                           .table = decoder_table,
                           .constants = rope_table,
                           .forward = post_norm_forward};

extern const Family kOlmo3{
    .name = "olmo3",
    .hf_architecture = "Olmo3ForCausalLM",
    .hf_model_type = "olmo3",
    .decoder = with_windows(kOlmo),
    .hf_defaults = {.norm_eps = 1e-5, .pad_token = 1, .rope_theta = 5e5, .rope_local_theta = 5e5, .window = 4096},
    .table = decoder_table,
    .constants = rope_table,
    .forward = post_norm_forward,
    .write_hf = write_windows};

}  // namespace redline::model
