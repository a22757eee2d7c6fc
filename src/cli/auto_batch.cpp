// Runs the search and puts its outcome into words.
#include "cli/auto_batch.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/words.h"
#include "perf/auto_batch.h"
#include "report/figures.h"
#include "report/live_line.h"

namespace redline::cli {
namespace {

std::string rate_of(const perf::Tried& t) {
  if (!t.problem.empty()) return "could not be run: " + t.problem;
  if (t.measured) return report::token_rate(*t.measured) + " measured";
  return report::token_rate(t.expected) + " expected";
}

}  // namespace

std::string in_words(const perf::Setting& s) {
  return fmt::format("{} x {}{}", counted(s.batch_size, "row"), s.accumulate,
                     s.recompute == "none" ? "" : fmt::format(" with recompute {}", s.recompute));
}

std::string resolve_batch_size(config::Config& config, device::Device& device, bool measure,
                               const std::atomic<int>* stop) {
  if (!config.train.automatic_batch_size) return "";
  report::LiveLine line(stderr);
  perf::AutoBatchOptions options;
  options.measure = measure;
  options.stop = stop;
  const double begin = steady_seconds();
  options.progress = [&](const perf::Setting& s, std::size_t number, std::size_t of) {
    const double done = static_cast<double>(number) - 1;
    line.show(fmt::format("train.batch_size = auto: timing {} ({}/{}){}", in_words(s), number, of,
                          report::eta(steady_seconds() - begin, done, static_cast<double>(of))));
  };
  const perf::AutoBatch found = perf::find_batch_size(config, device, options);
  line.clear();

  const perf::Tried& taken = found.tried.front();
  std::string text = fmt::format("train.batch_size = auto: {}, {}", in_words(taken.setting), rate_of(taken));
  for (std::size_t i = 1; i < found.tried.size(); ++i)
    text += fmt::format("; {}, {}", in_words(found.tried[i].setting), rate_of(found.tried[i]));
  if (taken.setting.rows() != found.rows_before)
    text += fmt::format(
        "; a step has {} instead of {}, so optim.lr is {:g} instead of {:g} (by the root of the "
        "ratio)",
        counted(taken.setting.rows(), "row"), found.rows_before, found.config.optim.lr, config.optim.lr);
  config = found.config;
  return text;
}

}  // namespace redline::cli
