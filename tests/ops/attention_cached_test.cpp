// Decoding by the cache against attention over the whole document: the same tokens, the same outputs.
#include <gtest/gtest.h>

#include "ops/attention.h"
#include "ops/cpu/kernels.h"
#include "testing/op_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

const auto kRun = [](const auto& op, ThreadPool& pool) { cpu::run(op, pool); };

struct CachedCase {
  std::vector<std::int64_t> lengths;  // of the slots' texts, the new token included
  std::int64_t extra_rows;            // behind the slots
  HeadLayout layout;
};
class AttentionCachedTest : public ::testing::TestWithParam<CachedCase> {};

// Documents of all slots, packed, through plain attention; then all but their last token stored and the last one
// decoded.
TEST_P(AttentionCachedTest, IsAttentionOverTheWholeText) {
  const auto& [lengths, extra_rows, l] = GetParam();
  Memory memory;
  const auto slots = static_cast<std::int64_t>(lengths.size());
  std::vector<std::int64_t> offsets = {0}, documents;
  std::int64_t longest = 0;
  for (const std::int64_t length : lengths) {
    documents.push_back(static_cast<std::int64_t>(documents.size()));
    offsets.push_back(offsets.back() + length);
    longest = std::max(longest, length);
  }
  const std::int64_t n = offsets.back(), rows = slots + extra_rows, capacity = longest + 3;
  const float scale = 0.3f;
  const Tensor qkv = memory.uniform({n, l.qkv_width()}), doc_offsets = memory.integers(offsets);
  const Tensor whole = memory.zeros({n, l.heads * l.head_dim}), lse = memory.zeros({l.heads, n});
  run_checked(memory, Attention<Tensor>{qkv, doc_offsets, whole, lse, l, scale, longest}, kRun);

  const Tensor keys = memory.uniform({slots, l.kv_heads, capacity, l.head_dim});
  const Tensor values = memory.uniform({slots, l.kv_heads, capacity, l.head_dim});
  const Values before = values_of(keys);
  run_checked(memory, CacheStore<Tensor>{qkv, doc_offsets, memory.integers(documents), keys, values, l}, kRun);
  // Behind a text its slot keeps what it held.
  for (std::int64_t s = 0; s < slots; ++s)
    for (std::int64_t t = lengths[static_cast<std::size_t>(s)]; t < capacity; ++t)
      for (std::int64_t h = 0; h < l.kv_heads; ++h) {
        const auto at = static_cast<std::size_t>(((s * l.kv_heads + h) * capacity + t) * l.head_dim);
        EXPECT_EQ(static_cast<double>(keys.f32()[at]), before[at]);
      }

  // The last token of each is taken out of the cache again, and decoded.
  const Tensor step = memory.zeros({rows, l.qkv_width()});
  std::vector<std::int64_t> positions(static_cast<std::size_t>(rows), 0);
  Values want(static_cast<std::size_t>(rows * l.heads * l.head_dim), 0.0);
  for (std::int64_t s = 0; s < slots; ++s) {
    const std::int64_t last = offsets[static_cast<std::size_t>(s) + 1] - 1;
    positions[static_cast<std::size_t>(s)] = lengths[static_cast<std::size_t>(s)] - 1;
    std::copy_n(qkv.f32() + last * l.qkv_width(), l.qkv_width(), step.f32() + s * l.qkv_width());
    const std::int64_t width = l.heads * l.head_dim;
    for (std::int64_t e = 0; e < width; ++e)
      want[static_cast<std::size_t>(s * width + e)] = static_cast<double>(whole.f32()[last * width + e]);
    for (std::int64_t h = 0; h < l.kv_heads; ++h) {
      const std::int64_t at = ((s * l.kv_heads + h) * capacity + positions[static_cast<std::size_t>(s)]) * l.head_dim;
      std::fill_n(keys.f32() + at, l.head_dim, 9.0f);
      std::fill_n(values.f32() + at, l.head_dim, 9.0f);
    }
  }
  const Tensor out = memory.zeros({rows, l.heads * l.head_dim});
  const Tensor partial = memory.zeros({slots, l.heads, key_splits(capacity), l.head_dim + 2});
  run_checked(memory, AttentionCached<Tensor>{step, memory.integers(positions), keys, values, out, partial, l, scale},
              kRun);
  expect_close("out", out, want, 2e-5);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionCachedTest,
                         ::testing::Values(CachedCase{{1}, 0, {1, 1, 2}}, CachedCase{{5, 1, 3}, 2, {4, 2, 10}},
                                           CachedCase{{300, 257}, 0, {6, 2, 64}}, CachedCase{{33}, 7, {8, 1, 96}},
                                           CachedCase{{512}, 0, {2, 2, 128}}));

// Several slots may continue one document, and a slot without one is left alone.
TEST(CacheStoreTest, CopiesADocumentToItsSlots) {
  const HeadLayout l{2, 1, 4};
  Memory memory;
  const Tensor qkv = memory.uniform({3, l.qkv_width()}), keys = memory.uniform({3, 1, 4, 4});
  const Tensor values = memory.uniform({3, 1, 4, 4});
  const Values before = values_of(values);
  run_checked(memory, CacheStore<Tensor>{qkv, memory.integers({0, 3}), memory.integers({0, -1, 0}), keys, values, l},
              kRun);
  for (std::int64_t t = 0; t < 3; ++t)
    for (std::int64_t e = 0; e < 4; ++e) {
      const float k = qkv.f32()[t * l.qkv_width() + 8 + e], v = qkv.f32()[t * l.qkv_width() + 12 + e];
      for (const std::int64_t slot : {0, 2}) {
        EXPECT_EQ(keys.f32()[(slot * 4 + t) * 4 + e], k);
        EXPECT_EQ(values.f32()[(slot * 4 + t) * 4 + e], v);
      }
      EXPECT_EQ(static_cast<double>(values.f32()[(4 + t) * 4 + e]), before[static_cast<std::size_t>((4 + t) * 4 + e)]);
    }
}

}  // namespace
}  // namespace redline::ops
