// Lowers the configuration again with less to keep, until it fits.
#include "train/memory_advice.h"

#include <fmt/format.h>

#include <vector>

#include "model/lowering.h"

namespace redline::train {
namespace {

double gib(std::int64_t bytes) { return static_cast<double>(bytes) * 0x1p-30; }

}  // namespace

std::int64_t memory_needed(const config::Config& config, device::Kind kind) {
  return model::lower(config.model, model::lowering_options(config, kind)).set.memory.total;
}

std::string what_would_fit(const config::Config& config, device::Kind kind, std::int64_t available) {
  std::vector<std::string> ways;
  for (const char* recompute : {"mlp", "block"}) {
    if (config.train.recompute == "block" || config.train.recompute == recompute) continue;
    config::Config other = config;
    other.train.recompute = recompute;
    if (const std::int64_t needed = memory_needed(other, kind); needed <= available) {
      ways.push_back(fmt::format("train.recompute = \"{}\" ({:.2f} GiB)", recompute, gib(needed)));
      break;  // the milder of the two
    }
  }
  // The largest divisor keeps the tokens of a step.
  for (std::int64_t batch = config.train.batch_size - 1; batch > 0; --batch) {
    if (config.train.batch_size % batch != 0) continue;
    config::Config other = config;
    other.train.batch_size = batch;
    other.train.accumulate = config.train.accumulate * (config.train.batch_size / batch);
    if (const std::int64_t needed = memory_needed(other, kind); needed <= available) {
      ways.push_back(fmt::format("train.batch_size = {} with train.accumulate = {} ({:.2f} GiB)", batch,
                                 other.train.accumulate, gib(needed)));
      break;
    }
  }
  if (!ways.empty()) return fmt::format("{} would fit", fmt::join(ways, " or "));
  config::Config least = config;
  least.train.batch_size = 1;
  least.train.recompute = "block";
  const std::int64_t needed = memory_needed(least, kind);
  if (needed <= available) return "train.recompute = \"block\" together with a smaller train.batch_size would fit";
  return fmt::format(
      "even one row with train.recompute = \"block\" needs {:.2f} GiB: lower train.seq_len (now {}) or the "
      "model's size",
      gib(needed), config.train.seq_len);
}

}  // namespace redline::train
