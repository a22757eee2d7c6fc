// Documents for the tests of attention, of whatever backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/attention.h"
#include "testing/op_check.h"

namespace redline::ops {

// What attention reads of a batch of documents of the given lengths, with `tail` tokens after them and unused entries
// of doc_offsets at the end.
struct DocumentBatch {
  testing::Memory memory;
  HeadLayout layout;
  std::vector<std::int64_t> offsets{0};
  std::int64_t n = 0;
  float scale = 0;
  Tensor qkv, dout, doc_offsets;

  DocumentBatch(const HeadLayout& l, const std::vector<std::int64_t>& lengths, std::int64_t tail, int unused)
      : layout(l), scale(1.0f / std::sqrt(static_cast<float>(l.head_dim))) {
    for (std::int64_t length : lengths) offsets.push_back(offsets.back() + length);
    offsets.insert(offsets.end(), static_cast<std::size_t>(unused), offsets.back());
    n = offsets.back() + tail;
    qkv = memory.uniform({n, l.qkv_width()}, -2, 2);
    dout = memory.uniform({n, l.heads * l.head_dim});
    doc_offsets = memory.integers(offsets);
  }
  // The bits of one document's rows.
  std::vector<float> rows(const Tensor& t, std::size_t document) const {
    return {t.f32() + offsets[document] * t.columns(), t.f32() + offsets[document + 1] * t.columns()};
  }
  void set_rows(const Tensor& t, std::size_t document, const std::vector<float>& values) const {
    std::copy(values.begin(), values.end(), t.f32() + offsets[document] * t.columns());
  }
};

}  // namespace redline::ops
