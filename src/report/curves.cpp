// One pass each.
#include "report/curves.h"

#include <algorithm>
#include <cmath>

namespace redline::report {

std::vector<std::size_t> thinned(const std::vector<double>& values, std::size_t most) {
  std::vector<std::size_t> known;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!std::isnan(values[i])) known.push_back(i);
  if (known.size() <= most) return known;
  const std::size_t stretches = most / 2 - 1;  // two of each, and the ends
  std::vector<std::size_t> kept = {known.front()};
  const auto keep = [&](std::size_t i) {
    if (i > kept.back()) kept.push_back(i);
  };
  for (std::size_t s = 0; s < stretches; ++s) {
    const auto begin = known.begin() + static_cast<std::ptrdiff_t>(s * known.size() / stretches),
               end = known.begin() + static_cast<std::ptrdiff_t>((s + 1) * known.size() / stretches);
    const auto [least, largest] =
        std::minmax_element(begin, end, [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
    keep(std::min(*least, *largest));
    keep(std::max(*least, *largest));
  }
  keep(known.back());
  return kept;
}

std::vector<double> smoothed(const std::vector<double>& values, double window) {
  const double keep = 1 - 1 / std::max(window, 1.0);
  std::vector<double> out;
  out.reserve(values.size());
  double sum = 0, weight = 0;
  for (const double v : values) {
    if (!std::isnan(v)) {
      sum = keep * sum + (1 - keep) * v;
      weight = keep * weight + (1 - keep);
    }
    out.push_back(std::isnan(v) ? v : sum / weight);
  }
  return out;
}

}  // namespace redline::report
