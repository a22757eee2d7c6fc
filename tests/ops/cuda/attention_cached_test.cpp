// The cache on the card against the CPU: storing documents, and decoding over texts of several lengths, with splits
// that are empty, whole and cut.
#include "ops/cuda/both_backends.h"

namespace redline::ops {
namespace {

struct CachedCase {
  std::vector<std::int64_t> positions;
  std::int64_t slots, capacity;
  HeadLayout layout;
};
class CudaAttentionCachedTest : public OnCard<::testing::TestWithParam<CachedCase>> {};

TEST_P(CudaAttentionCachedTest, AgreesWithTheCpu) {
  const auto& [positions, slots, capacity, l] = GetParam();
  const auto rows = static_cast<std::int64_t>(positions.size());
  Memory memory;
  const Shape cache{slots, l.kv_heads, capacity, l.head_dim};
  const auto results = expect_agreement(
      card(),
      AttentionCached<Tensor>{memory.uniform({rows, l.qkv_width()}), memory.integers(positions), memory.uniform(cache),
                              memory.uniform(cache), memory.zeros({rows, l.heads * l.head_dim}),
                              memory.zeros({slots, l.heads, key_splits(capacity), l.head_dim + 2}), l, 0.3f},
      kOnCpu, kOnCard);
  for (const auto& written : results) {  // rows without a slot
    const Values& out = written.at("out");
    for (std::size_t i = static_cast<std::size_t>(slots * l.heads * l.head_dim); i < out.size(); ++i)
      EXPECT_EQ(out[i], 0.0);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaAttentionCachedTest,
                         ::testing::Values(CachedCase{{0}, 1, 1, {1, 1, 2}},
                                           CachedCase{{0, 4, 63, 64, 65, 0, 0, 0}, 5, 66, {4, 2, 10}},
                                           CachedCase{{127, 128, 700, 3}, 4, 900, {6, 2, 64}},
                                           CachedCase{{4099, 4095}, 2, 5000, {8, 2, 128}},
                                           CachedCase{{300, 0, 0}, 1, 512, {10, 2, 256}},
                                           CachedCase{{1000}, 1, 1024, {7, 7, 96}}));
INSTANTIATE_TEST_SUITE_P(RandomShapes, CudaAttentionCachedTest,
                         ::testing::ValuesIn(random_cases<CachedCase>(6, [](auto draw) {
                           const std::int64_t slots = draw(5), capacity = draw(1500), kv_heads = draw(4),
                                              group = draw(6);
                           std::vector<std::int64_t> positions;
                           for (std::int64_t s = 0; s < slots; ++s) positions.push_back(draw(capacity) - 1);
                           positions.resize(static_cast<std::size_t>(slots + draw(3) - 1));
                           return CachedCase{positions, slots, capacity, {kv_heads * group, kv_heads, 2 * draw(128)}};
                         })));

class CudaCacheStoreTest : public OnCard<> {};

TEST_F(CudaCacheStoreTest, AgreesWithTheCpu) {
  for (const HeadLayout l : {HeadLayout{1, 1, 2}, HeadLayout{6, 2, 64}, HeadLayout{4, 4, 10}}) {
    Memory memory;
    const Shape cache{4, l.kv_heads, 40, l.head_dim};
    expect_agreement(
        card(),
        CacheStore<Tensor>{memory.uniform({64, l.qkv_width()}), memory.integers({0, 33, 40, 40}),
                           memory.integers({1, -1, 0, 1}), memory.uniform(cache), memory.uniform(cache), l},
        kOnCpu, kOnCard);
  }
}

}  // namespace
}  // namespace redline::ops
