// Rates and shares from counters, and which stage the others wait for.
#include "data/pipeline_stats.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/words.h"

namespace redline::data {
namespace {

constexpr double kHardlyWaits = 0.05;  // of the time: training is then what everything else waits for

std::string rate(double per_s) {
  if (per_s >= 1e6) return fmt::format("{:.1f}M", per_s * 1e-6);
  if (per_s >= 1e4) return fmt::format("{:.0f}k", per_s * 1e-3);
  return fmt::format("{:.0f}", per_s);
}

}  // namespace

PipelineReporter::PipelineReporter(const PipelineCounters& counters, std::string_view maker_stage, std::int64_t workers)
    : counters_(counters), maker_stage_(maker_stage), workers_(workers) {}

StageStats PipelineReporter::stage(std::string name, const StageCounters& counters, Sums& before, std::int64_t threads,
                                   double seconds) const {
  const Sums now{counters.items, counters.tokens, counters.busy_ns, counters.waiting_ns};
  const auto share = [&](std::int64_t ns) {
    return std::clamp(1e-9 * static_cast<double>(ns) / seconds / static_cast<double>(threads), 0.0, 1.0);
  };
  StageStats f{std::move(name),
               threads,
               static_cast<double>(now.items - before.items) / seconds,
               static_cast<double>(now.tokens - before.tokens) / seconds,
               share(now.busy_ns - before.busy_ns),
               share(now.waiting_ns - before.waiting_ns)};
  before = now;
  return f;
}

PipelineStats PipelineReporter::take() {
  PipelineStats out;
  const double now = steady_seconds();
  out.seconds = std::max(now - start_, 1e-9);
  start_ = now;
  const std::int64_t workers = std::max<std::int64_t>(workers_, 1);
  StageStats read = stage("read", counters_.read, read_, 1, out.seconds);
  if (maker_stage_ != "read") out.stages.push_back(std::move(read));
  out.stages.push_back(stage(maker_stage_, counters_.tokenize, tokenize_, workers, out.seconds));
  out.stages.push_back(stage("pack", counters_.pack, pack_, 1, out.seconds));
  StageStats train = stage("train", counters_.train, train_, 1, out.seconds);
  train.busy = 1 - train.waiting;
  const auto busiest = std::ranges::max_element(out.stages, {}, &StageStats::busy);
  out.slowest = train.waiting < kHardlyWaits ? train.name : busiest->name;
  out.stages.push_back(std::move(train));
  return out;
}

std::vector<std::string> in_words(const PipelineStats& figures) {
  std::vector<std::string> lines = {
      fmt::format("data pipeline, {:.1f} s: {} is the slowest; {} of {} and {} ready, {:.0f} MiB", figures.seconds,
                  figures.slowest, figures.batches_ready, counted(figures.batches_room, "batch"),
                  counted(figures.chunks_ready, "chunk"), figures.held_mib)};
  for (const StageStats& s : figures.stages)
    lines.push_back(fmt::format("  {:<12}{:>6} {:<11} {:>7} tokens/s  busy {:>3.0f}%  waiting {:>3.0f}%",
                                s.threads > 1 ? fmt::format("{} x{}", s.name, s.threads) : s.name, rate(s.items_per_s),
                                s.name == "train" ? "batches/s" : "documents/s", rate(s.tokens_per_s), 100 * s.busy,
                                100 * s.waiting));
  return lines;
}

}  // namespace redline::data
