// A permutation of [0, n) that needs no memory: a Feistel network over the next even power of two, walked along its
// cycle until it lands inside. At most four in the mean, since the power is below 4n.
#include "data/order.h"

#include <bit>

#include "base/random.h"

namespace redline::data {
namespace {

constexpr std::uint64_t kOrderStreams = 0x6F72646572ull;  // "order": keeps these numbers apart from others of the seed
constexpr std::uint64_t kWindowStreams = 0x77696E646F77ull;  // "window"
constexpr int kRounds = 8;

std::uint64_t permuted(std::uint64_t index, std::uint64_t n, const Random& random) {
  const int half = (std::bit_width(n - 1) + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  do {
    std::uint64_t left = index >> half, right = index & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t next = left ^ (random.bits(right << 3 | round) & mask);
      left = right;
      right = next;
    }
    index = left << half | right;
  } while (index >= n);
  return index;
}

}  // namespace

std::int64_t shuffled_in_window(std::int64_t position, std::int64_t count, std::uint64_t seed, std::int64_t epoch,
                                std::int64_t window) {
  if (count <= 1) return 0;
  const std::uint64_t epoch_seed = Random(seed ^ kWindowStreams, static_cast<std::uint64_t>(epoch)).bits(0);
  const Random random(epoch_seed, static_cast<std::uint64_t>(window));
  return static_cast<std::int64_t>(
      permuted(static_cast<std::uint64_t>(position), static_cast<std::uint64_t>(count), random));
}

std::int64_t shuffled_at(std::int64_t position, std::int64_t count, std::uint64_t seed) {
  if (count == 1) return 0;
  const auto epoch = static_cast<std::uint64_t>(position / count);
  const Random random(seed ^ kOrderStreams, epoch);
  return static_cast<std::int64_t>(
      permuted(static_cast<std::uint64_t>(position % count), static_cast<std::uint64_t>(count), random));
}

}  // namespace redline::data
