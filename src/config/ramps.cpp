// Straight lines, rounded to whole numbers: all in integers, so that every machine counts alike.
#include "config/ramps.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace redline::config {
namespace {

constexpr std::int64_t kLengthStep = 64;                           // tokens
constexpr std::int64_t kMostMicroBatches = std::int64_t{1} << 62;  // of a run: what a count can hold

// The sum of floor((a i + b) / m) over i in [0, n), as Euclid would have it: the quotients first, then the same with m
// and a changed about. Ramps have at most 2^30 steps and 2^20 micro-batches, so that no product here overflows.
std::int64_t sum_of_floors(std::int64_t n, std::int64_t m, std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  for (;;) {
    sum += n * (n - 1) / 2 * (a / m) + n * (b / m);
    a %= m, b %= m;
    const std::int64_t top = a * n + b;
    if (top < m) return sum;
    n = top / m;
    b = top % m;
    std::swap(m, a);
  }
}

bool grows(const Train& t) { return t.accumulate_from > 0 && t.accumulate_from < t.accumulate; }
std::int64_t ramp_steps(const Train& t) { return grows(t) ? t.accumulate_ramp_steps : 0; }

}  // namespace

std::int64_t micro_batches(const Train& t, std::int64_t step) {
  const std::int64_t ramp = ramp_steps(t);
  if (ramp == 0 || step >= ramp) return t.accumulate;
  return t.accumulate_from + (2 * (t.accumulate - t.accumulate_from) * step + ramp) / (2 * ramp);
}

std::int64_t micro_batches_before(const Train& t, std::int64_t step) {
  const std::int64_t ramp = ramp_steps(t), on_it = std::min(step, ramp);
  if (step - on_it > kMostMicroBatches / t.accumulate) return kMostMicroBatches;
  std::int64_t count = (step - on_it) * t.accumulate;
  if (on_it > 0)
    count += on_it * t.accumulate_from + sum_of_floors(on_it, 2 * ramp, 2 * (t.accumulate - t.accumulate_from), ramp);
  return count;
}

std::int64_t steps_within(const Train& t, double micro_batches) {
  const auto count = static_cast<std::int64_t>(std::clamp(micro_batches, 0.0, static_cast<double>(kMostMicroBatches)));
  const std::int64_t ramp = ramp_steps(t), of_ramp = micro_batches_before(t, ramp);
  if (count >= of_ramp) return ramp + (count - of_ramp) / t.accumulate;
  std::int64_t low = 0, high = ramp;  // before(low) <= count < before(high)
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (micro_batches_before(t, middle) <= count ? low : high) = middle;
  }
  return low;
}

std::int64_t nearest_steps(const Train& t, double micro_batches) {
  const std::int64_t steps = steps_within(t, micro_batches);
  const double left = micro_batches - static_cast<double>(micro_batches_before(t, steps));
  return 2 * left >= static_cast<double>(config::micro_batches(t, steps)) ? steps + 1 : steps;
}

std::int64_t longest_document(const Train& t, std::int64_t step) {
  const std::int64_t from = t.seq_len_from, ramp = t.seq_len_ramp_steps;
  if (from == 0 || step >= ramp) return t.seq_len;
  const std::int64_t unit = from % kLengthStep == 0 ? kLengthStep : from;
  const std::int64_t length = from * ramp + (t.seq_len - from) * step;  // in shares of a token: one over ramp
  return std::clamp((2 * length + unit * ramp) / (2 * unit * ramp) * unit, from, t.seq_len);
}

std::string ramps_in_words(const Train& t) {
  std::string words;
  if (grows(t))
    words = fmt::format("; a step grows from {} to {} micro-batches over {} steps", t.accumulate_from, t.accumulate,
                        t.accumulate_ramp_steps);
  if (t.seq_len_from > 0)
    words += fmt::format("; documents grow from {} to {} tokens over {} steps", t.seq_len_from, t.seq_len,
                         t.seq_len_ramp_steps);
  return words;
}

}  // namespace redline::config
