// Lays parameters out back to back and draws their start.
#include "model/parameters.h"

#include <algorithm>

#include "base/hash.h"
#include "base/random.h"
#include "base/thread_pool.h"

namespace redline::model {

FlatLayout lay_out(const ParameterTable& table) {
  FlatLayout layout;
  layout.offsets.resize(table.size());
  for (const bool decayed : {true, false}) {
    for (std::size_t i = 0; i < table.size(); ++i) {
      if (table[i].decayed() != decayed) continue;
      layout.offsets[i] = layout.total;
      layout.total += (table[i].shape.elements() + kFlatAlignment - 1) / kFlatAlignment * kFlatAlignment;
    }
    if (decayed) layout.decayed = layout.total;
  }
  for (std::size_t i = 0; i < table.size(); ++i) {
    const ParameterSpec& p = table[i];
    std::int64_t row = 0;
    for (const HfSlice& slice : p.slices) {
      const std::int64_t width = p.decayed() ? p.shape[1] : 1;
      StoredParameter& s = layout.stored.emplace_back();
      s.name = slice.name;
      s.shape = p.decayed() ? std::vector<std::int64_t>{slice.rows, width} : std::vector<std::int64_t>{slice.rows};
      s.offset = layout.offsets[i] + row * width;
      s.elements = slice.rows * width;
      row += slice.rows;
    }
    REDLINE_CHECK(row == p.shape[0], "the slices of {} hold {} rows of {}", p.name, row, p.shape[0]);
  }
  return layout;
}

std::int64_t parameter_count(const ParameterTable& table) {
  std::int64_t n = 0;
  for (const ParameterSpec& p : table) n += p.shape.elements();
  return n;
}

void initialise(const ParameterTable& table, const FlatLayout& layout, std::uint64_t seed, float* flat) {
  ThreadPool pool;  // of this call: a start happens once, and 1.3 G normals took one thread 40 s
  for (std::size_t i = 0; i < table.size(); ++i) {
    const ParameterSpec& p = table[i];
    float* const values = flat + layout.offsets[i];
    const std::int64_t n = p.shape.elements();
    if (p.init == Init::ones) {
      std::fill_n(values, n, 1.0f);
      continue;
    }
    const Random random(seed, hash64(p.name));
    pool.for_ranges((n + 3) / 4, 1 << 14, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t four = begin; four < end; ++four) {
        const std::array<double, 4> drawn = random.normals(static_cast<std::uint64_t>(four));
        for (std::int64_t e = 4 * four; e < std::min(n, 4 * four + 4); ++e)
          values[e] = static_cast<float>(p.std * drawn[static_cast<std::size_t>(e % 4)]);
      }
    });
  }
}

}  // namespace redline::model
