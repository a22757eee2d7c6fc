// Lays parameters out back to back and says how they start.
#include "model/parameters.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "base/hash.h"

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
                const DrawPart& draw) {
  for (std::size_t i = 0; i < table.size(); ++i) {
    const ParameterSpec& p = table[i];
    const std::int64_t offset = layout.offsets[i];
    const Range part = intersection({offset, offset + p.shape.elements()}, here);
    if (part.empty()) continue;
    REDLINE_CHECK((part.begin - offset) % 4 == 0, "a part of {} begins at element {}", p.name, part.begin - offset);
    Normals from{Random(seed, hash64(p.name)), static_cast<std::uint64_t>((part.begin - offset) / 4), 0.0f, 0.0f};
    switch (p.init) {
      case Init::normal: from.std = static_cast<float>(p.std); break;
      case Init::ones: from.mean = 1.0f; break;
      case Init::minus_ones: from.mean = -1.0f; break;
      case Init::zeros: break;
    }
    draw(part, from);
  }
}

}  // namespace redline::model
