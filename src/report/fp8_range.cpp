// One figure for the ways in which a tensor and its scale do not fit.
#include "report/fp8_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/small_floats.h"
#include "report/figures.h"

namespace redline::report {
namespace {

constexpr double kMostSaturated = 1e-3, kMostZero = 0.5;

double largest_of(DType format) { return static_cast<double>(fp8_format(format).largest); }

// Above 1 where it is too large.
double too_large(const model::Fp8Seen& t) {
  const double beyond = t.amax * t.scale / largest_of(t.format);  // up to 1 is as it should be
  return std::max(beyond > 1 ? beyond : 0, t.saturated / kMostSaturated);
}

}  // namespace

double fp8_trouble(const model::Fp8Seen& t, double padding) {
  if (!std::isfinite(t.amax)) return std::numeric_limits<double>::infinity();
  const double exact = padding < 1 ? padding : 0, small = (t.zero - exact) / (1 - exact);
  return std::max(too_large(t), t.amax > 0 ? small / kMostZero : 0);  // a tensor of nothing but zeros loses nothing
}

std::string fp8_trouble_in_words(const model::Fp8Seen& t) {
  const std::string_view format = name_of(t.format);
  if (!std::isfinite(t.amax)) return "is not finite";
  if (too_large(t) > 1)
    return fmt::format(
        "leaves the range of {}: its largest magnitude {:.3g} times its scale {:g} is {:.4g}, of at most {:g}, "
        "and {:.2g}% of it are cut off",
        format, t.amax, t.scale, t.amax * t.scale, largest_of(t.format), 100 * t.saturated);
  return fmt::format("is too small for {}: {} of it are zero at its scale of {:g}, its largest magnitude being {:.3g}",
                     format, percent(t.zero), t.scale, t.amax);
}

}  // namespace redline::report
