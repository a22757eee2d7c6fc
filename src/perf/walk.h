// A step before it runs, walked node by node: the programs that a run lowers, on a clock for each thing that works by
// itself (computing, copies each way, the network). A pair's start puts its work on its clock, its wait is where the
// computing stands still until it is done: so overlap is that of the program. Nothing is sent, no device is touched.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "dist/sharing.h"
#include "perf/cards.h"
#include "perf/filling.h"
#include "perf/roofline.h"

namespace redline::model {
struct LoweredModel;
struct LoweringOptions;
}  // namespace redline::model

namespace redline::perf {

using dist::Mode;
inline constexpr std::array kModes = {Mode::ddp, Mode::zero1, Mode::fsdp};  // each keeps less than those before it

// The deviation of a step's time between ranks, as a share of it. It is the one fitted constant of plans for ranks,
// from published runs of LLMQ and torchtitan in bf16 (tests/perf/scale_test.cpp; docs/ranks.md).
inline constexpr double kStraggler = 0.0228;
// The slowest of so many ranks whose steps spread like a normal distribution: standard deviations above the mean.
double expected_slowest(int ranks);

// The ranks of a run, and what connects them. By itself: one rank alone.
struct Spread {
  Mode mode = Mode::ddp;
  int ranks = 1;
  std::optional<Fabric> fabric = {};  // empty: not known, and collectives take no time
  double straggler = kStraggler;
  bool alone() const { return ranks == 1; }
};

enum class Clock : std::uint8_t { compute, to_host, to_device, network };
inline constexpr std::array<std::string_view, 4> kClocks = {"computing", "copies to the host", "copies to the device",
                                                            "network"};

// The time in which a clock is busy with a node; or, on the computing one, waits for what another clock does for it.
struct ClockSpan {
  Clock clock = Clock::compute;
  const program::Node* node = nullptr;
  double begin = 0, end = 0;  // seconds from the program's beginning
  bool waits = false;
  double seconds() const { return end - begin; }
};

// One run of a program, its spans in the order of its nodes.
struct Timeline {
  std::vector<ClockSpan> spans;
  double end = 0;
};
// `seconds` are those of each node on its own clock, alone. Where ranks do not compute beside collectives
// (Fabric::beside_compute), every collective is waited for at once.
Timeline walk(const program::Program& program, std::span<const double> seconds, const BothWays& both_ways = {},
              bool beside_compute = true);

// Seconds of one run of a program on one rank, on a batch whose rows are one document of `seq_len` tokens each.
double expected_seconds(const program::ProgramSet& set, std::string_view program, double rows, double seq_len,
                        const Machine& machine);

// One use of a collective in a step.
struct CollectiveUse {
  Collective collective = Collective::all_reduce;
  std::string_view of;  // "gradients", "weights, backward pass"
  std::int64_t count = 0;
  double bytes = 0;    // of all arrays that it was used on
  double seconds = 0;  // on the network's clock
  double exposed = 0;  // of them, those that the computing waited for
};

// The time of a step on a rank.
struct RankStep {
  double compute = 0;
  double exposed = 0;     // waiting for collectives,
  double copying = 0;     // for copies between memories,
  double stragglers = 0;  // and for whoever is slowest
  std::vector<CollectiveUse> collectives;
  double total() const { return compute + exposed + copying + stragglers; }
  double bytes_sent() const;  // by a rank, about: an all-reduce sends twice
};

// The programs of a configuration's step, lowered for the rank that owns most, with the time of every node. The update
// is that of the rank for which it takes longest, since all wait for it. The machine must be able to run it
// (as_possible() of perf/plan.h).
class StepWalk {
 public:
  StepWalk(const config::Config& config, const Machine& machine, const Spread& spread = {},
           const Filling& filling = {});
  ~StepWalk();

  const std::shared_ptr<const model::LoweredModel>& lowered() const { return lowered_; }
  const std::shared_ptr<const model::LoweredModel>& of_slowest() const {  // whose update takes longest
    return slowest_ ? slowest_ : lowered_;
  }
  const model::LoweringOptions& options() const { return *options_; }

  // All micro-batches and the update. With `slower`, nodes that compute take so many times as long.
  RankStep times(double slower = 1) const;

  // The runs of programs that make a step, in order; those that are alike stand once.
  struct Run {
    std::string_view program;
    std::int64_t times = 1;
    Timeline timeline;
  };
  std::vector<Run> runs(double slower = 1) const;

 private:
  struct Timed;
  Spread spread_;
  BothWays both_ways_;
  std::unique_ptr<model::LoweringOptions> options_;
  std::shared_ptr<const model::LoweredModel> lowered_, slowest_;  // the latter where it is another rank
  std::vector<Timed> timed_;
};

// A step in Chrome's trace format, a row for each clock. Of runs that are alike the first few are drawn; then one bar
// stands for the others.
std::string chrome_trace(const StepWalk& step, std::string_view title);

}  // namespace redline::perf
