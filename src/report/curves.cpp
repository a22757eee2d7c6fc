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
  std::vector<double> sums = {0}, counts = {0};
  for (const double v : values) {
    const bool known = !std::isnan(v);
    sums.push_back(sums.back() + (known ? v : 0));
    counts.push_back(counts.back() + (known ? 1 : 0));
  }
  std::vector<double> out;
  out.reserve(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t half = std::min(static_cast<std::size_t>(window / 2), i / 4);
    const std::size_t begin = i - half, end = std::min(i + half + 1, values.size());
    out.push_back(std::isnan(values[i]) ? values[i] : (sums[end] - sums[begin]) / (counts[end] - counts[begin]));
  }
  return out;
}

}  // namespace redline::report
