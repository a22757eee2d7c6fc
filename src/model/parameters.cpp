// Lays parameters out back to back and draws their start.
#include "model/parameters.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <span>
#include <vector>

#include "base/hash.h"
#include "base/random.h"
#include "base/thread_pool.h"

namespace redline::model {
namespace {

std::int64_t with_gap(const ParameterSpec& p) {
  return (p.shape.elements() + kFlatAlignment - 1) / kFlatAlignment * kFlatAlignment;
}

}  // namespace

FlatLayout lay_out(const ParameterTable& table) {
  FlatLayout layout;
  layout.offsets.resize(table.size());
  for (const bool decayed : {true, false}) {
    for (std::size_t i = 0; i < table.size(); ++i) {
      if (table[i].decayed != decayed) continue;
      layout.offsets[i] = layout.total;
      layout.total += with_gap(table[i]);
    }
  }
  for (std::size_t i = 0; i < table.size(); ++i) {
    std::int64_t at = layout.offsets[i];
    for (const HfSlice& slice : table[i].slices) {
      const std::int64_t elements =
          std::accumulate(slice.shape.begin(), slice.shape.end(), std::int64_t{1}, std::multiplies<>());
      layout.stored.push_back({slice.name, slice.shape, at, elements});
      at += elements;
    }
    REDLINE_CHECK(at - layout.offsets[i] == table[i].shape.elements(), "the slices of {} hold {} elements of {}",
                  table[i].name, at - layout.offsets[i], table[i].shape.elements());
  }
  return layout;
}

std::vector<Range> ranges_where(const ParameterTable& table, const FlatLayout& layout,
                                const std::function<bool(const ParameterSpec&)>& holds) {
  std::map<std::int64_t, std::int64_t> found;  // begin to end
  for (std::size_t i = 0; i < table.size(); ++i)
    if (holds(table[i])) found[layout.offsets[i]] = layout.offsets[i] + with_gap(table[i]);
  std::vector<Range> ranges;
  for (const auto& [begin, end] : found) {
    if (ranges.empty() || ranges.back().end != begin) ranges.push_back({begin, begin});
    ranges.back().end = end;
  }
  return ranges;
}

std::int64_t parameter_count(const ParameterTable& table) {
  std::int64_t n = 0;
  for (const ParameterSpec& p : table) n += p.shape.elements();
  return n;
}

std::int64_t active_count(const ParameterTable& table) {
  double n = 0;
  for (const ParameterSpec& p : table) n += p.active * static_cast<double>(p.shape.elements());
  return std::llround(n);
}

void initialise(const ParameterTable& table, const FlatLayout& layout, std::uint64_t seed, const Range& here,
                const PlaceFloats& place, const std::function<void()>& placed) {
  ThreadPool pool;  // of this call: a start happens once
  for (std::size_t i = 0; i < table.size(); ++i) {
    const ParameterSpec& p = table[i];
    const Random random(seed, hash64(p.name));
    const std::int64_t offset = layout.offsets[i];
    const Range part = intersection({offset, offset + p.shape.elements()}, here);
    REDLINE_CHECK((part.begin - offset) % 4 == 0, "a part of {} begins at element {}", p.name, part.begin - offset);
    for (std::int64_t begin = part.begin; begin < part.end; begin += kInitPiece) {
      const std::int64_t count = std::min(kInitPiece, part.end - begin);
      const std::span<float> values(place(begin, count), static_cast<std::size_t>(count));
      pool.for_ranges(count, 1 << 16, [&](std::int64_t from, std::int64_t to) {
        const auto some = values.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from));
        if (p.init != Init::normal) {
          std::ranges::fill(some, p.init == Init::ones ? 1.0f : p.init == Init::zeros ? 0.0f : -1.0f);
          return;
        }
        random.fill_normals(static_cast<std::uint64_t>((begin - offset + from) / 4), some);
        for (float& value : some) value *= static_cast<float>(p.std);
      });
      placed();
    }
  }
}

}  // namespace redline::model
