// Long curves made light without losing what one looks for: spikes stay, noise becomes a line.
#pragma once

#include <cstddef>
#include <vector>

namespace redline::report {

// Places of at most about `most` values (at least 4) that draw the same picture: the first, the last, and of each equal
// stretch its least and its largest. NaN is passed over. Rising.
std::vector<std::size_t> thinned(const std::vector<double>& values, std::size_t most);

// The mean of the `window` values around each; fewer at the start, where losses fall steeply and a mean would stand above
// them. NaN is passed over and stays.
std::vector<double> smoothed(const std::vector<double>& values, double window);

}  // namespace redline::report
