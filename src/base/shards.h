// Flat arrays cut into parts by size alone. Groups are summed in a fixed order, and the shards of ranks are whole
// groups, so a sum over groups has the same bits for any number of ranks. Where an optimizer needs whole matrices, a
// shard boundary inside a matrix moves to the nearer end of the matrix, and the group there is summed in two
// parts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace redline {

inline constexpr std::int64_t kCutBlock = 256;    // elements: no part cuts a block
inline constexpr std::int64_t kCutGroups = 1024;  // of an array; the most ranks that can share one

// Where group `g` of an array of n elements begins; the last one ends with the array.
constexpr std::int64_t group_begin(std::int64_t g, std::int64_t n) {
  return g == kCutGroups ? n : g * (n / kCutBlock) / kCutGroups * kCutBlock;
}

// Elements [begin, end) of an array.
struct Range {
  std::int64_t begin = 0, end = 0;
  constexpr std::int64_t elements() const { return end - begin; }
  constexpr bool empty() const { return begin >= end; }
  bool operator==(const Range&) const = default;
};

// The part of `a` that lies in `b`, too. An empty part begins where `a` does.
constexpr Range intersection(const Range& a, const Range& b) {
  const std::int64_t begin = std::max(a.begin, b.begin), end = std::min(a.end, b.end);
  return begin < end ? Range{begin, end} : Range{a.begin, a.begin};
}

// An array of `elements` shared out among ranks, each of which owns one range of it.
struct Shards {
  std::int64_t elements = 0;
  int ranks = 1;
  std::vector<Range> whole = {};  // ranges that no two ranks share, in order

  std::int64_t first_group(int rank) const { return rank * kCutGroups / ranks; }
  std::int64_t begin(int rank) const {
    const std::int64_t at = group_begin(first_group(rank), elements);
    const auto next = std::ranges::upper_bound(whole, at, {}, &Range::end);  // the first that ends after it
    if (next == whole.end() || next->begin >= at) return at;
    return at - next->begin <= next->end - at ? next->begin : next->end;
  }
  std::int64_t end(int rank) const { return begin(rank + 1); }
  Range part(int rank) const { return {begin(rank), end(rank)}; }
  bool operator==(const Shards&) const = default;
};

// The part of [begin, end) that a rank owns.
inline Range owned_part(const Shards& shards, int rank, std::int64_t begin, std::int64_t end) {
  return intersection({begin, end}, shards.part(rank));
}

}  // namespace redline
