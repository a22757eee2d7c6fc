// The time of a step of many micro-batches comes from steps of one and of two: all but the first take the same time.
#include "perf/measure.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <new>
#include <vector>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/error.h"
#include "config/load.h"
#include "io/communicator.h"
#include "io/json.h"
#include "model/family.h"
#include "perf/batch_size.h"
#include "perf/fit.h"
#include "perf/fp8_choice.h"
#include "perf/profile.h"
#include "train/memory_advice.h"
#include "train/trainer.h"

namespace redline::perf {
namespace {

constexpr double kSlow = 2;           // times the seconds asked for: one such micro-batch has to do
constexpr double kEnergySeconds = 1;  // the driver's counter moves in steps of a tenth of a second
constexpr double kNoiseOfOne = 0.05;  // of a single step, whose spread is not known
constexpr double kWorthTelling = 0.05;
constexpr double kLeastNoise = 0.003;

double quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

// The amount by which the median of such times may differ from that of as many others: the notch of a box plot.
double noise_of(const std::vector<double>& times) {
  if (times.size() < 2) return kNoiseOfOne;
  const double spread = quantile(times, 0.75) - quantile(times, 0.25);
  return std::max(kLeastNoise, 1.57 * spread / quantile(times, 0.5) / std::sqrt(static_cast<double>(times.size())));
}

bool on_ranks(const train::Team* team) { return team && !team->alone(); }

// Rank 0's words on every rank. Clocks differ, and steps that ranks make together must be as many on each.
std::string of_first(const train::Team* team, const std::string& words) {
  if (!on_ranks(team)) return words;
  team->progress(0);
  return team->communicator->broadcast(words);
}

Measured of_first(const train::Team* team, const Measured& m) {
  if (!on_ranks(team)) return m;
  const io::Json json = io::Json::parse(
      of_first(team, io::Json{{"problem", m.problem},
                              {"note", m.note},
                              {"joules", m.joules_per_token ? io::Json(*m.joules_per_token) : io::Json(nullptr)},
                              {"figures", {m.step_ms, m.tokens_per_s, m.mfu, m.waiting, m.noise}},
                              {"counts", {m.memory, m.steps}}}
                         .dump(-1, ' ', false, io::Json::error_handler_t::replace)));
  Measured first;
  first.problem = json.at("problem");
  first.note = json.at("note");
  if (!json.at("joules").is_null()) first.joules_per_token = json.at("joules").get<double>();
  const io::Json &figures = json.at("figures"), &counts = json.at("counts");
  first.step_ms = figures[0];
  first.tokens_per_s = figures[1];
  first.mfu = figures[2];
  first.waiting = figures[3];
  first.noise = figures[4];
  first.memory = counts[0];
  first.steps = counts[1];
  return first;
}

// Steps of one micro-batch and of two, timed as training runs them.
class Stretch {
 public:
  Stretch(const config::Config& config, device::Device& device, const MeasureOptions& options)
      : all_(config.train.accumulate),
        device_(device),
        options_(options),
        steps_(config, device, options.stop, options.team) {}

  Measured run() {
    if (warm_up()) time_steps();
    Measured m;
    const double seconds = step_seconds();
    const Work work = steps_.work();
    const auto micro_batches = static_cast<double>(all_);
    m.step_ms = 1e3 * seconds;
    const double ranks = on_ranks(options_.team) ? options_.team->sharing.ranks : 1;
    m.tokens_per_s = ranks * work.tokens * micro_batches / seconds;
    if (options_.peak_flops > 0) m.mfu = work.model_flops * micro_batches / seconds / options_.peak_flops;
    m.memory = device_.allocated_bytes();
    m.waiting = waited_ / std::max(timed_, 1e-9);
    if (m.waiting > kWorthTelling) m.note = fmt::format("waited for data {:.0f}% of the time", 100 * m.waiting);
    m.noise = noise_of(times_[times_[1].empty() ? 0 : 1]);
    m.steps = static_cast<std::int64_t>(times_[0].size() + times_[1].size());
    if (watts_) m.joules_per_token = ranks * *watts_ / m.tokens_per_s;
    return m;
  }

 private:
  bool agreed(bool mine) const { return of_first(options_.team, mine ? "yes" : "no") == "yes"; }
  std::int64_t few() const { return std::min<std::int64_t>(all_, 2); }
  // Steps of one or two micro-batches are timed whole.
  bool whole_steps() const { return all_ <= 2; }

  double step_seconds() const {
    if (times_[0].empty()) return quantile(times_[1], 0.5);  // whole steps of two
    const double one = quantile(times_[0], 0.5);
    const double more = times_[1].empty() ? one : std::max(0.0, quantile(times_[1], 0.5) - one);
    return one + static_cast<double>(all_ - 1) * more;
  }

  // Products are tuned, attention is chosen and graphs are captured. False: a micro-batch takes so long that one of
  // them is all there is.
  bool warm_up() {
    const bool slow = agreed(steps_.step(index_++, 1).seconds > kSlow * options_.seconds);
    const double begin = steady_seconds();
    if (slow) {
      const StepTimes again = steps_.step(index_++, 1);
      if (agreed(again.seconds > kSlow * options_.seconds)) {
        waited_ = again.waited;
        times_[0] = {again.seconds};
        timed_ = again.seconds;
        return false;
      }
    }
    if (few() > 1) steps_.step(index_++, few());
    const int rounds = device_.runs_ahead() ? 2 : 0;  // graphs are replayed from here on
    for (int round = 0; round < rounds && agreed(steady_seconds() - begin < options_.seconds); ++round)
      for (std::int64_t n = 1; n <= few(); ++n) steps_.step(index_++, n);
    return true;
  }

  std::optional<double> joules() const {
    const auto sample = options_.gpu ? options_.gpu->latest() : std::nullopt;
    return sample ? sample->energy_j : std::nullopt;
  }

  // Where the device runs ahead, a step's time is from the end of the one before to its own.
  void time_steps() {
    const std::optional<double> energy = joules();
    const bool ahead = device_.runs_ahead();
    const double begin = steady_seconds();
    double last = begin;
    std::int64_t under_way = 0;  // micro-batches of the step that is not over
    const auto next = [&](std::int64_t micro_batches) {
      const StepTimes t = ahead ? steps_.queue(index_++, micro_batches) : steps_.step(index_++, micro_batches);
      waited_ += t.waited;
    };
    const auto over = [&](std::int64_t micro_batches) {
      const double now = steady_seconds();
      times_[static_cast<std::size_t>(micro_batches - 1)].push_back(now - last);
      last = now;
    };
    for (std::int64_t round = 0;; ++round) {
      const std::int64_t micro_batches = whole_steps() ? few() : 1 + round % few();
      next(micro_batches);
      if (!ahead) {
        over(micro_batches);
      } else {
        if (under_way > 0) steps_.take(), over(under_way);
        under_way = micro_batches;
      }
      const bool each = whole_steps() ? round >= 1 : round >= 2 * few() - 1;
      const double took = steady_seconds() - begin;
      if (agreed((each && took >= options_.seconds) || (round >= few() && took >= kSlow * options_.seconds))) break;
    }
    if (under_way > 0) steps_.take(), over(under_way);
    timed_ = last - begin;
    if (const std::optional<double> now = joules(); energy && now && timed_ >= kEnergySeconds)
      watts_ = (*now - *energy) / timed_;
  }

  std::int64_t all_;  // micro-batches of a step
  device::Device& device_;
  const MeasureOptions& options_;
  Steps steps_;
  std::int64_t index_ = 0;
  std::array<std::vector<double>, 2> times_;  // seconds of steps of one micro-batch, and of two
  double waited_ = 0, timed_ = 0;
  std::optional<double> watts_;
};

std::string memory_problem(const config::Config& config, device::Device& device, const train::Team* team) {
  dist::Sharing sharing;
  if (team && !team->alone())
    sharing = dist::sharing_of(config.parallel, team->sharing.rank, team->sharing.ranks,
                               dist::mode_named(config.parallel.mode));
  const std::int64_t needed = train::memory_needed(config, device.kind(), sharing),
                     allowed = train::memory_allowed(config, device);
  if (needed <= allowed) return "";
  return fmt::format(
      "the run needs {}, and {} are {}{}: a smaller train.batch_size needs less", train::enough_in_words(needed),
      train::memory_in_words(allowed), allowed < device.available_bytes() ? "what memory.limit allows" : "free",
      config.memory.fit == "auto" ? "; nothing moves for a measurement, as it would for `redline train`" : "");
}

}  // namespace

Measured measure(const config::Config& asked, device::Device& device, const MeasureOptions& options) {
  Measured m;
  try {
    end_if_asked(options.stop);
    config::Config config = asked;
    if (config.train.automatic_batch_size) config = find_batch_size(config, device, {.measure = false}).config;
    const auto as_it_fits = [&](const config::Config& c) {
      return on_ranks(options.team) || c.precision.matmul != "fp8" ? c : as_it_fits_by_itself(c, machine_now(device));
    };
    m.problem = of_first(options.team, memory_problem(as_it_fits(config), device, options.team));
    if (!m.problem.empty()) return m;
    std::string fp8;
    if (config.precision.matmul == "fp8") {
      const Fp8Choice choice = settle_fp8(config, device, true);
      config = choice.config;
      fp8 = "fp8: " + model::in_words(model::fp8_products(config), choice.reasons);
    }
    if (on_ranks(options.team))  // numbers and lists that rank 0 has found
      config = config::parse(of_first(options.team, config::dump(config)), "rank 0", model::settle_family);
    m = Stretch(as_it_fits(config), device, options).run();
    if (!fp8.empty()) m.note = m.note.empty() ? fp8 : fmt::format("{}; {}", fp8, m.note);
    m = of_first(options.team, m);
  } catch (const UserError& e) {  // on ranks all have it: it is of the configuration
    m.problem = e.what();
  } catch (const std::bad_alloc&) {
    if (on_ranks(options.team)) throw;  // others may wait in a step
    m.problem = "there is not enough memory for it";
  } catch (const std::exception& e) {
    if (on_ranks(options.team)) throw;
    // A MachineError, a library's: the next configuration may run.
    m.problem = e.what();
  }
  return m;
}

}  // namespace redline::perf
