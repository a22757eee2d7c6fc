// The tables themselves.
#include "perf/rungs.h"

#include <algorithm>

#include "base/error.h"

namespace redline::perf {
namespace {

constexpr double kUsualDropout = 0.1;
constexpr std::int64_t kMostLogitsRows = 1 << 24;  // that kernels.logits_rows takes

constexpr const char* kOneWay = "the CPU computes in fp32, whatever this key says";
constexpr const char* kOneAttention = "the CPU has one attention, which keeps no scores";
constexpr const char* kNoProposals = "the CPU's library has one way to compute a product";

}  // namespace

std::string key_of(const std::string& pair) { return pair.substr(0, pair.find('=')); }

KeyValues over(KeyValues keys, const KeyValues& others) {
  for (const std::string& pair : others) {
    std::erase_if(keys, [&](const std::string& known) { return key_of(known) == key_of(pair); });
    keys.push_back(pair);
  }
  return keys;
}

KeyValues naive_keys(const config::Config& c, const Setting& base) {
  const double dropout = c.model.dropout > 0 ? c.model.dropout : kUsualDropout;
  return {"precision.matmul=fp32",
          "kernels.attention=reference",
          "kernels.graphs=off",
          "kernels.tuning=off",
          "data.packing=pad",
          fmt::format("kernels.logits_rows={}", std::min(base.batch_size * c.train.seq_len, kMostLogitsRows)),
          fmt::format("model.dropout={}", dropout),
          "optim.moments=fp32",
          "train.recompute=none",
          fmt::format("train.batch_size={}", base.batch_size),
          fmt::format("train.accumulate={}", base.accumulate)};
}

std::vector<Rung> rungs() {
  using enum RungKind;
  return {
      {"tf32 products", speed, {"precision.matmul=tf32"}, "fp32 operands rounded to 10 bits in products", kOneWay},
      {"bf16 products", speed, {"precision.matmul=bf16"}, "activations and working weights in 16 bits", kOneWay},
      {"flash attention", speed, {"kernels.attention=flash"}, "redline's own: scores stay on chip", kOneAttention},
      {"best attention",
       speed,
       {"kernels.attention=auto"},
       "the fastest that can, timed on the first batch",
       kOneAttention},
      {"CUDA graphs",
       speed,
       {"kernels.graphs=auto"},
       "a step is replayed, not launched kernel by kernel",
       "the CPU launches nothing"},
      {"tuned products",
       speed,
       {"kernels.tuning=on"},
       "cuBLASLt's best proposals timed, not its first taken",
       kNoProposals},
      {"all proposals", speed, {"kernels.tuning=max"}, "every algorithm that cuBLASLt proposes is timed", kNoProposals},
      {"buckets", speed, {"data.packing=bucket"}, "documents of similar length share a batch"},
      {"packing", speed, {"data.packing=pack"}, "documents fill rows: next to no padding"},
      {"logits in chunks",
       speed,
       {"kernels.logits_rows=0"},
       "the whole logits never exist",
       "a micro-batch is one chunk"},
      {"no dropout", speed, {"model.dropout=0"}, "one pass less over each branch", "", true},
      {"fp8 products",
       speed,
       {"precision.matmul=fp8", "precision.fp8=auto"},
       "linears in eight bits, where that is faster with its casts",
       "no product takes fp8 here",
       true},
      {"fp8 attention",
       absent,
       {},
       "scores and their sums in eight bits",
       "there is no such kernel here: attention takes bf16 in a run in fp8, as its softmax needs more than three bits"},
      {"bf16 moments", memory, {"optim.moments=bf16"}, "AdamW's moments in 16 bits, rounded at random", "", true},
      {"8-bit moments", memory, {"optim.moments=8bit"}, "AdamW's moments in blocks of 256", "", true},
      {"recompute mlp", memory, {"train.recompute=mlp"}, "SwiGLU's inner values are computed again"},
      {"recompute block", memory, {"train.recompute=block"}, "whole layers are computed again"},
      {"batch size", batch, {}, "rows of a micro-batch as the plan would choose them; a step keeps its rows"},
  };
}

std::span<const Tier> tiers() {
  static const std::vector<Tier> kTiers = {
      {"safe",
       "bf16 and packing, and nothing else that could surprise: bits repeat, kernels are launched one by one",
       {"precision.matmul=bf16", "kernels.attention=auto", "kernels.deterministic=true", "kernels.graphs=off",
        "kernels.tuning=off", "data.packing=pack"}},
      {"fast",
       "what redline does by itself: the fastest attention, tuned products, CUDA graphs; the loss means the same",
       {"precision.matmul=bf16", "kernels.attention=auto", "kernels.deterministic=false", "kernels.graphs=auto",
        "kernels.tuning=on", "data.packing=pack"}},
      {"fastest",
       "products in fp8 where they are faster, every proposal timed, the batch size that the card likes",
       {"precision.matmul=fp8", "precision.fp8=auto", "kernels.attention=auto", "kernels.deterministic=false",
        "kernels.graphs=auto", "kernels.tuning=max", "data.packing=pack", "train.batch_size=auto"}},
  };
  return kTiers;
}

const Tier& tier_called(std::string_view name) {
  const auto it = std::ranges::find(tiers(), name, &Tier::name);
  if (it == tiers().end()) fail_user("--tier {}: the tiers are safe, fast and fastest", name);
  return *it;
}

}  // namespace redline::perf
