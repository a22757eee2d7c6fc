// Lowers the configuration again with less to keep, until it fits.
#include "train/memory_advice.h"

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/words.h"
#include "model/lowering.h"

namespace redline::train {
namespace {

// The largest divisor of the batch that fits, which keeps the tokens of a step; nothing where no row does.
std::optional<config::Config> with_smaller_batch(const config::Config& config, device::Kind kind,
                                                 std::int64_t available) {
  for (std::int64_t batch = config.train.batch_size - 1; batch > 0; --batch) {
    if (config.train.batch_size % batch != 0) continue;
    config::Config other = config;
    other.train.batch_size = batch;
    other.train.accumulate = config.train.accumulate * (config.train.batch_size / batch);
    if (memory_needed(other, kind) <= available) return other;
  }
  return {};
}

std::string in_words(const config::Config& smaller, device::Kind kind) {
  return fmt::format("train.batch_size = {} with train.accumulate = {} ({:.2f} GiB)", smaller.train.batch_size,
                     smaller.train.accumulate, gib(memory_needed(smaller, kind)));
}

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
  if (const auto smaller = with_smaller_batch(config, kind, available)) ways.push_back(in_words(*smaller, kind));
  if (!ways.empty()) return fmt::format("{} would fit", fmt::join(ways, " or "));
  config::Config least = config;
  least.train.recompute = "block";
  if (const auto smaller = with_smaller_batch(least, kind, available))
    return fmt::format("train.recompute = \"block\" and {} would fit", in_words(*smaller, kind));
  least.train.batch_size = 1;
  return fmt::format(
      "even one row with train.recompute = \"block\" needs {:.2f} GiB: lower train.seq_len (now {}) or the "
      "model's size",
      gib(memory_needed(least, kind)), config.train.seq_len);
}

std::string memory_problem(const config::Config& config, std::int64_t needed, const device::Device& device) {
  const std::int64_t available = device.available_bytes();
  if (needed <= available) return "";
  return fmt::format("the run needs {:.2f} GiB and {} has {:.2f} GiB free of {:.2f} GiB; {}; see {}", gib(needed),
                     device.name(), gib(available), gib(device.memory_bytes()),
                     what_would_fit(config, device.kind(), available), troubleshooting::kOutOfMemory);
}

void require_memory(const config::Config& config, std::int64_t needed, const device::Device& device) {
  if (const std::string problem = memory_problem(config, needed, device); !problem.empty()) fail_user("{}", problem);
}

}  // namespace redline::train
