// A permutation of [0, n) that needs no memory: a Feistel network over the next power of two, walked along its cycle
// until it lands inside. At most two rounds of it in the mean, since the power is below 2n.
#include "data/permutation.h"

#include <bit>

#include "base/random.h"

namespace redline::data {
namespace {

constexpr std::uint64_t kOrderStreams = 0x6F72646572ull;  // "order": keeps these numbers apart from others of the seed
constexpr std::uint64_t kWindowStreams = 0x77696E646F77ull;  // "window"
constexpr int kRounds = 8;

// The halves of an odd number of bits differ by one, and change sides with each round: an even number of rounds brings
// both back.
std::uint64_t permuted(std::uint64_t index, std::uint64_t n, const Random& random) {
  const int bits = std::bit_width(n - 1), low = (bits + 1) / 2, high = bits - low;
  const auto ones = [](int count) { return (std::uint64_t{1} << count) - 1; };
  const std::uint64_t masks[] = {ones(high), ones(low)};
  static_assert(kRounds % 2 == 0);
  do {
    std::uint64_t left = index >> low, right = index & masks[1];
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t next = left ^ (random.bits(right << 3 | round) & masks[round % 2]);
      left = right;
      right = next;
    }
    index = left << low | right;
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
