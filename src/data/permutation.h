// The order in which pieces of documents are read, as arithmetic: no list of them, nothing to save but a position.
#pragma once

#include <cstdint>

namespace redline::data {

// The element at `position`, which counts on over epochs: another permutation of [0, count) each epoch.
std::int64_t shuffled_at(std::int64_t position, std::int64_t count, std::uint64_t seed);

// The element of a window at `position` < `count`: a permutation of its own for each (seed, epoch, window).
std::int64_t shuffled_in_window(std::int64_t position, std::int64_t count, std::uint64_t seed, std::int64_t epoch,
                                std::int64_t window);

}  // namespace redline::data
