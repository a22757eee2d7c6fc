// Attention within packed documents: forward and backward against doubles, documents that neither see nor shift each
// other by a single bit, and decoding by the cache, which has the outputs of attention over the whole document.
#include "ops/attention_batch.h"
#include "ops/cpu/kernels.h"
#include "testing/op_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

struct AttentionReference {
  Values out, lse;
};

// Straight from the definition.
AttentionReference reference(const Values& qkv, const std::vector<std::int64_t>& offsets, const HeadLayout& l,
                             std::int64_t n, double scale, std::int64_t window = kNoWindow) {
  AttentionReference r{Values(static_cast<std::size_t>(n * l.heads * l.head_dim)),
                       Values(static_cast<std::size_t>(l.heads * n))};
  const std::int64_t hd = l.head_dim, group = l.heads / l.kv_heads;
  const auto row = [&](std::int64_t token, std::int64_t head) {
    return qkv.data() + token * l.qkv_width() + head * hd;
  };
  Values p;
  for (std::size_t d = 0; d + 1 < offsets.size(); ++d) {
    for (std::int64_t h = 0; h < l.heads; ++h) {
      for (std::int64_t i = offsets[d]; i < offsets[d + 1]; ++i) {
        p.clear();
        double sum = 0;
        const std::int64_t first = window == kNoWindow ? offsets[d] : std::max(offsets[d], i + 1 - window);
        for (std::int64_t j = first; j <= i; ++j) {
          const double *q = row(i, h), *k = row(j, l.heads + h / group);
          double score = 0;
          for (std::int64_t c = 0; c < hd; ++c) score += q[c] * k[c];
          p.push_back(std::exp(scale * score));
          sum += p.back();
        }
        double* out = r.out.data() + i * l.heads * hd + h * hd;
        for (std::int64_t j = first; j <= i; ++j) {
          const double* v = row(j, l.heads + l.kv_heads + h / group);
          for (std::int64_t c = 0; c < hd; ++c) out[c] += p[static_cast<std::size_t>(j - first)] / sum * v[c];
        }
        r.lse[static_cast<std::size_t>(h * n + i)] = std::log(sum);
      }
    }
  }
  return r;
}

// And what attention writes.
struct Batch : DocumentBatch {
  Tensor out, lse, dqkv, delta;
  std::int64_t window;

  Batch(const HeadLayout& l, const std::vector<std::int64_t>& lengths, std::int64_t tail, int unused,
        std::int64_t w = kNoWindow)
      : DocumentBatch(l, lengths, tail, unused),
        out(memory.zeros(dout.shape)),
        lse(memory.zeros({l.heads, n})),
        dqkv(memory.zeros(qkv.shape)),
        delta(memory.zeros({l.heads, n})),
        window(w) {}
  void run_forward() {
    Attention<Tensor> op{qkv, doc_offsets, out, lse, layout, scale};
    op.window = window;
    run_checked(memory, op);
  }
  void run_backward() {
    AttentionGrad<Tensor> op{qkv, doc_offsets, out, lse, dout, dqkv, delta, {}, layout, scale};
    op.window = window;
    run_checked(memory, op);
  }
};

struct AttentionCase {
  HeadLayout layout;
  std::vector<std::int64_t> lengths;
  std::int64_t tail;
  int unused;
  std::int64_t window = kNoWindow;
};
class AttentionTest : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(AttentionTest, MatchesTheReferenceAndItsSlopes) {
  const AttentionCase& c = GetParam();
  Batch b(c.layout, c.lengths, c.tail, c.unused, c.window);
  b.run_forward();
  Values qkv = values_of(b.qkv);
  const auto in_doubles = [&] {
    return reference(qkv, b.offsets, c.layout, b.n, static_cast<double>(b.scale), c.window);
  };
  const AttentionReference want = in_doubles();
  expect_close("out", b.out, want.out, 1e-5);
  expect_close("lse", b.lse, want.lse, 1e-5);
  b.run_backward();
  const Values upstream = values_of(b.dout);
  const auto loss = [&] { return dot(in_doubles().out, upstream); };
  expect_gradient("dqkv", b.dqkv, qkv, loss, 5e-5);
  const std::int64_t end = b.offsets.back();
  for (std::int64_t i = end * c.layout.qkv_width(); i < b.dqkv.elements(); ++i)
    ASSERT_EQ(b.dqkv.f32()[i], 0.0f) << "tail";
  for (std::int64_t i = end * b.out.columns(); i < b.out.elements(); ++i) ASSERT_EQ(b.out.f32()[i], 0.0f) << "tail";
}

INSTANTIATE_TEST_SUITE_P(
    Batches, AttentionTest,
    ::testing::Values(AttentionCase{{1, 1, 16}, {1}, 0, 0}, AttentionCase{{2, 2, 32}, {2, 0, 1, 65}, 3, 2},
                      AttentionCase{{3, 1, 16}, {64, 63, 1, 128, 129}, 0, 3},
                      AttentionCase{{6, 2, 64}, {0, 40, 70}, 1, 0}, AttentionCase{{1, 1, 80}, {200}, 7, 1},
                      AttentionCase{{2, 1, 128}, {90, 30}, 0, 0}, AttentionCase{{3, 3, 16}, {333, 5}, 2, 1},
                      AttentionCase{{1, 1, 256}, {66}, 0, 0}, AttentionCase{{2, 2, 16}, {}, 4, 2},
                      AttentionCase{{1, 1, 8}, {600}, 0, 0}));

// Windows of one key, of a tile, around tiles, and of more keys than a document has.
INSTANTIATE_TEST_SUITE_P(
    Windows, AttentionTest,
    ::testing::Values(AttentionCase{{2, 1, 16}, {5, 0, 70}, 3, 2, 1}, AttentionCase{{2, 2, 16}, {3, 200}, 1, 0, 2},
                      AttentionCase{{3, 1, 16}, {64, 63, 1, 129}, 0, 3, 24}, AttentionCase{{1, 1, 32}, {330}, 0, 0, 64},
                      AttentionCase{{2, 1, 16}, {300, 66}, 2, 1, 65}, AttentionCase{{1, 1, 8}, {600}, 0, 0, 100},
                      AttentionCase{{1, 1, 8}, {700}, 0, 0, 257}, AttentionCase{{2, 1, 64}, {90, 30}, 0, 0, 512}));

// A window that reaches beyond every document has the bits of none, so it costs nothing but what it masks.
TEST(Attention, AWideWindowHasTheBitsOfNone) {
  Batch none({3, 1, 16}, {64, 300, 1, 129}, 2, 1), wide({3, 1, 16}, {64, 300, 1, 129}, 2, 1, 300);
  for (Batch* b : {&none, &wide}) b->run_forward(), b->run_backward();
  EXPECT_EQ(values_of(none.out), values_of(wide.out));
  EXPECT_EQ(values_of(none.dqkv), values_of(wide.dqkv));
}

TEST(Attention, MatchesOnRandomBatches) {
  const HeadLayout layouts[] = {{1, 1, 16}, {2, 2, 32}, {3, 1, 64}, {6, 2, 16}, {1, 1, 80}, {3, 1, 128}};
  const std::int64_t lengths[] = {0, 1, 2, 3, 17, 63, 64, 65, 100, 127, 128, 140};
  const Random random(21, 1);
  for (std::uint64_t i = 0; i < 12; ++i) {
    AttentionCase c{layouts[i % std::size(layouts)],
                    {},
                    static_cast<std::int64_t>(random.below(100 + i, 4)),
                    static_cast<int>(i % 3)};
    for (std::uint64_t d = 0; d < 1 + i % 5; ++d)
      c.lengths.push_back(lengths[random.below(8 * i + d, std::size(lengths))]);
    c.lengths.push_back(5);
    Batch b(c.layout, c.lengths, c.tail, c.unused);
    b.run_forward();
    b.run_backward();
    Values qkv = values_of(b.qkv);
    const auto out = [&] { return reference(qkv, b.offsets, c.layout, b.n, static_cast<double>(b.scale)).out; };
    const Values upstream = values_of(b.dout);
    expect_close("out", b.out, out(), 1e-5);
    expect_gradient(
        "dqkv", b.dqkv, qkv, [&] { return dot(out(), upstream); }, 5e-5);
  }
}

TEST(Attention, LeavesNeighboursAlone) {
  const HeadLayout layout{3, 1, 32};
  const std::vector<std::int64_t> lengths{70, 300, 1, 129};
  for (std::size_t changed = 0; changed < lengths.size(); ++changed) {
    Batch plain(layout, lengths, 5, 2), other(layout, lengths, 5, 2);
    std::vector<float> rows = other.rows(other.qkv, changed);
    for (float& x : rows) x = 3 - x;
    other.set_rows(other.qkv, changed, rows);
    for (Batch* b : {&plain, &other}) b->run_forward(), b->run_backward();
    for (std::size_t d = 0; d < lengths.size(); ++d) {
      EXPECT_EQ(plain.rows(plain.out, d) == other.rows(other.out, d), d != changed) << d;
      EXPECT_EQ(plain.rows(plain.dqkv, d) == other.rows(other.dqkv, d), d != changed) << d;
    }
  }
}

TEST(Attention, KeepsADocumentsBitsWhereverItStands) {
  const HeadLayout layout{2, 2, 80};
  const std::vector<std::int64_t> lengths{70, 300, 131, 1};
  const std::vector<std::size_t> order{3, 2, 0, 1};
  std::vector<std::int64_t> moved_lengths;
  for (std::size_t d : order) moved_lengths.push_back(lengths[d]);
  Batch plain(layout, lengths, 0, 0), moved(layout, moved_lengths, 9, 4);
  for (std::size_t to = 0; to < order.size(); ++to) {
    moved.set_rows(moved.qkv, to, plain.rows(plain.qkv, order[to]));
    moved.set_rows(moved.dout, to, plain.rows(plain.dout, order[to]));
  }
  for (Batch* b : {&plain, &moved}) b->run_forward(), b->run_backward();
  for (std::size_t to = 0; to < order.size(); ++to) {
    EXPECT_EQ(plain.rows(plain.out, order[to]), moved.rows(moved.out, to));
    EXPECT_EQ(plain.rows(plain.dqkv, order[to]), moved.rows(moved.dqkv, to));
  }
}

TEST(Attention, HoldsWithScoresThatExpWouldOverflow) {
  Batch b({1, 1, 16}, {300}, 0, 0);
  b.scale = 40;
  b.run_forward();
  b.run_backward();
  for (const Tensor& t : {b.out, b.lse, b.dqkv}) {
    for (double v : values_of(t)) ASSERT_TRUE(std::isfinite(v));
  }
}

struct CachedCase {
  std::vector<std::int64_t> lengths;  // of the slots' texts, the new token included
  std::int64_t extra_rows;            // after the slots
  HeadLayout layout;
  std::int64_t window = kNoWindow;
};
class AttentionCachedTest : public ::testing::TestWithParam<CachedCase> {};

// Documents of all slots, packed, through plain attention; then all but their last token stored and the last one
// decoded.
TEST_P(AttentionCachedTest, IsAttentionOverTheWholeText) {
  const auto& [lengths, extra_rows, l, window] = GetParam();
  Memory memory;
  const auto slots = static_cast<std::int64_t>(lengths.size());
  std::vector<std::int64_t> offsets = {0}, documents;
  std::int64_t longest = 0;
  for (const std::int64_t length : lengths) {
    documents.push_back(static_cast<std::int64_t>(documents.size()));
    offsets.push_back(offsets.back() + length);
    longest = std::max(longest, length);
  }
  const std::int64_t n = offsets.back(), rows = slots + extra_rows;
  const std::int64_t capacity = window == kNoWindow ? longest + 3 : window;  // a ring
  const float scale = 0.3f;
  const Tensor qkv = memory.uniform({n, l.qkv_width()}), doc_offsets = memory.integers(offsets);
  const Tensor whole = memory.zeros({n, l.heads * l.head_dim}), lse = memory.zeros({l.heads, n});
  Attention<Tensor> op{qkv, doc_offsets, whole, lse, l, scale, longest};
  op.window = window;
  run_checked(memory, op);

  const Tensor keys = memory.uniform({slots, l.kv_heads, capacity, l.head_dim});
  const Tensor values = memory.uniform({slots, l.kv_heads, capacity, l.head_dim});
  const Values before = values_of(keys);
  run_checked(memory, CacheStore<Tensor>{qkv, doc_offsets, memory.integers(documents), keys, values, l, window});
  // After a text its slot keeps what it held.
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
      const std::int64_t at =
          ((s * l.kv_heads + h) * capacity + positions[static_cast<std::size_t>(s)] % capacity) * l.head_dim;
      std::fill_n(keys.f32() + at, l.head_dim, 9.0f);
      std::fill_n(values.f32() + at, l.head_dim, 9.0f);
    }
  }
  const Tensor out = memory.zeros({rows, l.heads * l.head_dim});
  const Tensor partial = memory.zeros({slots, l.heads, key_splits(capacity), l.head_dim + 2});
  run_checked(memory,
              AttentionCached<Tensor>{step, memory.integers(positions), keys, values, out, partial, l, scale, window});
  expect_close("out", out, want, 2e-5);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionCachedTest,
                         ::testing::Values(CachedCase{{1}, 0, {1, 1, 2}}, CachedCase{{5, 1, 3}, 2, {4, 2, 10}},
                                           CachedCase{{300, 257}, 0, {6, 2, 64}}, CachedCase{{33}, 7, {8, 1, 96}},
                                           CachedCase{{512}, 0, {2, 2, 128}}));
INSTANTIATE_TEST_SUITE_P(Rings, AttentionCachedTest,
                         ::testing::Values(CachedCase{{5, 1, 3}, 2, {4, 2, 10}, 1},
                                           CachedCase{{5, 1, 3}, 0, {4, 2, 10}, 3},
                                           CachedCase{{300, 7, 257}, 0, {6, 2, 64}, 100}));

// Several slots may continue one document, and a slot without one is left alone.
TEST(CacheStoreTest, CopiesADocumentToItsSlots) {
  const HeadLayout l{2, 1, 4};
  Memory memory;
  const Tensor qkv = memory.uniform({3, l.qkv_width()}), keys = memory.uniform({3, 1, 4, 4});
  const Tensor values = memory.uniform({3, 1, 4, 4});
  const Values before = values_of(values);
  run_checked(memory, CacheStore<Tensor>{qkv, memory.integers({0, 3}), memory.integers({0, -1, 0}), keys, values, l});
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
