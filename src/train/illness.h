// The table of common illnesses of a training run: name, remedy, and where to read on. The warnings of a run
// (report/watch) and redline doctor (perf/doctor) use it.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "base/words.h"
#include "device/gpu_monitor.h"

namespace redline::train {

enum class Illness {
  padding,
  starving_loader,
  slow_disk,
  small_batch,
  vocabulary,
  ffn,
  head_dim,
  reference_attention,
  throttled,
  frequent_evaluation,
  frequent_samples,
  frequent_saves,
  recompute,
  no_graphs,
  slow_rank,
  communication,
  precision,
  fp8_off,
  gradient_spike,
  rate,
  all_warm_up,
  plateau,
  overfitting,
  few_tokens,
  starving_expert,
  collapsed_router,
  thin_experts,
};

struct IllnessRow {
  Illness illness;
  std::string_view key;      // in JSON
  std::string_view name;     // for people
  std::string_view mend;     // a clause about the settings that help
  std::string_view section;  // of the documentation
  // A run warns above this share: of token slots for padding, medians for a spike, else of the time; 0: never.
  double warn_at = 0;
  bool optional = false;  // the cure changes the results, so that going without it is no illness
};

inline constexpr auto kIllnesses = [] {
  using enum Illness;
  using namespace troubleshooting;
  return std::to_array<IllnessRow>({
      {padding, "padding", "padding", "data.packing = \"pack\" fills most of them, \"stream\" all", kPadding, 0.10},
      {starving_loader, "starving_loader", "a starving loader",
       "more data.workers, a larger data.prefetch or prepared data help", kSlowData, 0.02},
      {slow_disk, "slow_disk", "a slow disk",
       "a faster disk, or a larger checkpoint.every or checkpoint.minutes, mends that", kFrequent},
      {small_batch, "small_batch", "a small batch", "a larger train.batch_size or less train.recompute may be faster",
       kUnusedMemory},
      {vocabulary, "vocabulary", "an odd vocabulary",
       "a model.vocab that is a multiple of 128 has rows that no token uses, and a head that fp8 can take", kShapes},
      {ffn, "ffn", "an odd width of the MLP", "a model.ffn that is a multiple of 128 has fast products", kShapes},
      {head_dim, "head_dim", "a head_dim off the fast kernels", "a model.head_dim of 64 or 128 has them", kShapes},
      {reference_attention, "reference_attention", "reference attention",
       "kernels.attention = \"auto\" takes the fastest that can", kShapes},
      {throttled, "throttled", "a card that holds its clocks down",
       "air flow, a cooler room or a higher power limit (nvidia-smi -q -d POWER) mend that", kThrottling},
      {frequent_evaluation, "frequent_evaluation", "frequent evaluation",
       "a larger train.eval_every or fewer train.eval_tokens cost less", kFrequent, 0.10},
      {frequent_samples, "frequent_samples", "frequent samples",
       "a larger train.sample_every or fewer train.sample_tokens cost less", kFrequent, 0.10},
      {frequent_saves, "frequent_saves", "frequent saves", "a larger checkpoint.every or checkpoint.minutes costs less",
       kFrequent, 0.10},
      {recompute, "recompute", "recompute without need", "train.recompute = \"none\" keeps what there is room for",
       kUnusedMemory},
      {no_graphs, "no_graphs", "no CUDA graphs",
       "kernels.graphs = \"auto\", and a driver as new as the CUDA built with", kGraphs},
      {slow_rank, "slow_rank", "a slow rank",
       "its machine is worth a look: its clocks, its data, and what else runs there", kSlowRank, 0.10},
      {communication, "communication", "waiting for the network",
       "parallel.wire = \"bf16\", more train.accumulate or a larger train.batch_size hide more of it", kSlowRank},
      {precision, "precision", "products in tf32 or fp32", "precision.matmul = \"bf16\" is what a card is built for",
       kLowMfu, 0, true},
      {fp8_off, "fp8_off", "products that could be in fp8", "precision.matmul = \"fp8\" (docs/fp8.md)", kLowMfu, 0,
       true},
      {gradient_spike, "gradient_spike", "a spike of the gradient's norm",
       "a lower optim.lr or a longer warm-up make them rarer, guard.spike = 10 leaves such updates out", kSpikes, 20},
      {rate, "rate", "a rate that does not teach", "an optim.lr as its optimizer bears it (docs/training.md)",
       kDeadModel},
      {all_warm_up, "all_warm_up", "nothing but warm-up", "a shorter warm-up, or a longer run, reaches optim.lr",
       kDeadModel},
      {plateau, "plateau", "a loss that stands still",
       "a rate that falls by now (optim.schedule), a higher or a lower optim.lr, or an end here", kDeadModel},
      {overfitting, "overfitting", "a text learned by heart",
       "train.patience ends such a run and keeps its best weights; more text, fewer train.epochs or model.dropout mend "
       "it",
       kOverfitting},
      {few_tokens, "few_tokens", "too few tokens", "more train.max_steps, or a smaller model", kDeadModel},
      {starving_expert, "starving_expert", "experts that starve",
       "model.router_balance=layer where it is model, or a higher model.router_aux shares tokens out more evenly",
       kExperts},
      {collapsed_router, "collapsed_router", "a router that has collapsed",
       "model.router_balance=layer where it is model, else a higher model.router_aux, a lower optim.lr or a longer "
       "warm-up from the start on; a router seldom recovers",
       kExperts},
      {thin_experts, "thin_experts", "few rows for each expert",
       "a larger train.batch_size, at the cost of fewer train.accumulate, gives every expert more rows", kExperts},
  });
}();

constexpr const IllnessRow& row_of(Illness illness) { return kIllnesses[static_cast<std::size_t>(illness)]; }
static_assert([] {
  for (const IllnessRow& row : kIllnesses)
    if (&row_of(row.illness) != &row) return false;
  return true;
}());

inline constexpr double kLowClock = 0.70;   // of the highest; a busy H200 at its power cap keeps kBusyClock
inline constexpr double kBusyClock = 0.76;  // 1500 of 1980 MHz

// Whether low clocks deserve a warning. A card at its power cap is just busy; the cap alone deserves one only where it
// costs much.
constexpr bool clocks_are_held_down(std::string_view throttle, std::optional<double> mhz, std::optional<double> most) {
  if (throttle.empty()) return false;
  return throttle != device::kPowerCap || (mhz && most && *mhz < kLowClock * *most);
}

}  // namespace redline::train
