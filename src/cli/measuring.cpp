// Opens the device, shows how far a search is, and puts the outcome of the search for a batch size into words.
#include "cli/measuring.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/error.h"
#include "base/words.h"
#include "io/json.h"
#include "perf/batch_size.h"
#include "perf/profile.h"
#include "perf/scale.h"
#include "report/figures.h"
#include "train/on_ranks.h"

namespace redline::cli {
namespace {

constexpr auto kAskForEnergy = std::chrono::milliseconds(100);

std::string rate_of(const perf::Trial& t) {
  if (t.state == perf::TrialState::failed) return "could not be run: " + t.measured.problem;
  if (t.state == perf::TrialState::measured) return report::token_rate(t.measured.tokens_per_s) + " measured";
  return report::token_rate(t.expected) + " expected";
}

// The questions that rank 0 answers for all: what is free on each card may differ.
perf::Bench as_first_says(perf::Bench bench, Ranks& ranks) {
  perf::Bench agreed = bench;
  agreed.measure = [bench, &ranks](const config::Config& config, double seconds) {
    try {
      train::require_for_ranks(config, ranks.count());
    } catch (const UserError& e) {  // the same on all
      perf::Measured none;
      none.problem = e.what();
      return none;
    }
    return bench.measure(config, std::stod(ranks.broadcast(std::to_string(seconds))));
  };
  agreed.fits = [bench, &ranks](const config::Config& config) {
    return ranks.broadcast(ranks.leads() && bench.fits(config) ? "yes" : "no") == "yes";
  };
  agreed.settings = [bench, &ranks](const config::Config& config) {
    io::Json list = io::Json::array();
    if (ranks.leads())
      for (const perf::Setting& s : bench.settings(config)) list.push_back({s.batch_size, s.accumulate, s.recompute});
    std::vector<perf::Setting> settings;
    for (const io::Json& s : io::Json::parse(ranks.broadcast(list.dump())))
      settings.push_back({s[0].get<std::int64_t>(), s[1].get<std::int64_t>(), s[2].get<std::string>()});
    return settings;
  };
  return agreed;
}

}  // namespace

Measuring::Measuring(std::string what, const std::string& device_name, double seconds, Ranks* ranks)
    : what_(std::move(what)),
      seconds_(seconds),
      begin_(steady_seconds()),
      device_(device::open_device(device_name)),
      peak_(perf::find_peak(*device_)),
      line_(stderr) {
  if (device_->kind() == device::Kind::cuda)
    gpu_ = device::GpuMonitor::open(device_->bus_id(), "libnvidia-ml.so.1", kAskForEnergy);
  perf::MeasureOptions options;
  options.peak_flops = peak_.flops;
  options.gpu = gpu_.get();
  const bool several = ranks && !ranks->alone();
  if (several) {
    ranks->connect(*device_, config::Config{}.parallel.timeout);
    team_ = ranks->team(dist::Mode::ddp, {});
    options.team = &team_;
    shows_ = ranks->leads();
  } else {
    signals_.emplace();
    options.stop = stop();
  }
  bench_ = perf::bench_on(*device_, options);
  if (several) bench_ = as_first_says(bench_, *ranks);
}

void Measuring::take(perf::SearchOptions& options) {
  options.stop = stop();
  if (!shows_) return;
  options.progress = [this](const std::string& name, std::size_t number, std::size_t of) { show(name, number, of); };
}

void Measuring::show(const std::string& name, std::size_t number, std::size_t of) {
  const double took = steady_seconds() - begin_, done = static_cast<double>(number) - 1;
  const double rest = static_cast<double>(of) - done;
  const double left = done > 0 ? std::max(took / done * rest, 0.0) : seconds_;
  line_.show(fmt::format("{}: {} ({}/{}), eta {}", what_, name, number, of,
                         report::duration(done > 2 ? left : std::max(left, seconds_ - took))));
}

std::string Measuring::about(const config::Config& c) const {
  return fmt::format("{} of {}{}, data {}; peak {} ({})", counted(c.train.batch_size, "row"),
                     counted(c.train.seq_len, "token"),
                     c.train.accumulate > 1 ? fmt::format(" x {} micro-batches", c.train.accumulate) : "",
                     fmt::join(c.data.train, ", "), report::flop_rate(peak_.flops), peak_.source);
}

perf::LoadConfig with_keys(const config::Sources& sources, std::int64_t ranks) {
  return [sources, ranks](const perf::KeyValues& keys) {
    config::Sources with = sources;
    with.overrides.insert(with.overrides.end(), keys.begin(), keys.end());
    return load_to_measure(with, keys.empty(), ranks);  // a search begins with the configuration as it is
  };
}

perf::Profile profile_on(device::Device& device, perf::ProfileOptions options, std::string_view what) {
  report::LiveLine line(stderr);
  const double begin = steady_seconds();
  options.progress = [&](std::int64_t done, std::int64_t of) {
    line.show(fmt::format("{}, step {}/{}{}", what, done, of,
                          report::eta(steady_seconds() - begin, static_cast<double>(done), static_cast<double>(of))));
  };
  return perf::profile(options, device);
}

std::string resolve_batch_size(config::Config& config, device::Device& device, bool measure, const StopFlag* stop,
                               int ranks, int ranks_on_machine) {
  if (!config.train.automatic_batch_size) return "";
  report::LiveLine line(stderr);
  perf::AutoBatchOptions options;
  options.measure = measure;
  options.search.stop = stop;
  const double begin = steady_seconds();
  options.search.progress = [&](const std::string& name, std::size_t number, std::size_t of) {
    const double done = static_cast<double>(number) - 1;
    line.show(fmt::format("train.batch_size = auto: timing {} ({}/{}){}", name, number, of,
                          report::eta(steady_seconds() - begin, done, static_cast<double>(of))));
  };
  const perf::AutoBatch found = ranks == 1 ? perf::find_batch_size(config, device, options)
                                           : perf::find_batch_size_on_ranks(config, device, ranks, ranks_on_machine);
  line.clear();

  const perf::Trial& taken = found.tried.front();
  std::vector<std::string> rates;
  for (const perf::Trial& t : found.tried) rates.push_back(fmt::format("{}, {}", t.name, rate_of(t)));
  std::string text = fmt::format("train.batch_size = auto: {}", fmt::join(rates, "; "));
  if (taken.setting.rows() != found.rows_before)
    text += fmt::format(
        "; a step has {} instead of {}, so optim.lr is {:g} instead of {:g} (by the root of the "
        "ratio)",
        counted(taken.setting.rows(), "row"), found.rows_before, found.config.optim.lr, config.optim.lr);
  config = found.config;
  return text;
}

}  // namespace redline::cli
