// Products of groups on the card: the CPU's for every split of rows into groups, by either kernel. The walk over tiles,
// which those kernels share, is walked on the host: it needs no card.
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "ops/cpu/kernels.h"
#include "ops/cuda/grouped_tiles.h"
#include "ops/fp8_values.h"
#include "testing/card_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

// How rows are split: sizes of groups, which may leave rows over.
std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> offsets(sizes.size() + 1);
  std::partial_sum(sizes.begin(), sizes.end(), offsets.begin() + 1);
  return offsets;
}
std::vector<std::int32_t> small(const std::vector<std::int64_t>& offsets) { return {offsets.begin(), offsets.end()}; }

const std::vector<std::vector<std::int64_t>> kSplits = {
    {1}, {0}, {0, 0, 5}, {128}, {127, 129, 1, 0, 64, 0}, {0, 700, 0}, {3, 5, 8, 13, 21, 34, 55, 89, 144, 233}};

// Every pair of blocks takes every so-manieth tile. Together they have each row of each group in every row of tiles
// once, and nothing else.
TEST(TilesOfRows, CoverEveryRowOnce) {
  constexpr std::int32_t kColumns = 512;
  for (const auto& sizes : kSplits)
    for (const std::int32_t across : {1, 3, 4})
      for (const auto& [blocks, rows_of_tile] : {std::pair{1, 128}, {2, 256}, {7, 256}, {66, 128}}) {
        const std::vector<std::int32_t> offsets = small(offsets_of(sizes));
        const auto groups = static_cast<std::int32_t>(sizes.size());
        std::map<std::pair<std::int32_t, std::int32_t>, int> seen;  // row, column
        for (std::int32_t block = 0; block < blocks; ++block) {
          cuda::TilesOfRows tiles(offsets.data(), groups, rows_of_tile, kColumns, across);
          cuda::GroupTile tile{};
          for (cuda::Turns turns(block, blocks, false); tiles.seek(turns.number(), tile); turns.advance()) {
            ASSERT_EQ(tile.begin, offsets[static_cast<std::size_t>(tile.group)]);
            ASSERT_EQ(tile.end, offsets[static_cast<std::size_t>(tile.group) + 1]);
            ASSERT_EQ((tile.row - tile.begin) % rows_of_tile, 0);
            ASSERT_LT(tile.row, tile.end);
            for (std::int32_t row = tile.row; row < std::min(tile.row + rows_of_tile, tile.end); ++row)
              ++seen[{row, tile.column}];
          }
        }
        ASSERT_EQ(seen.size(), static_cast<std::size_t>(offsets.back()) * static_cast<std::size_t>(across));
        for (const auto& [place, times] : seen) {
          ASSERT_EQ(times, 1);
          ASSERT_TRUE(place.second % kColumns == 0 && place.second < across * kColumns);
        }
      }
}

// The groups with the most rows first.
std::vector<std::uint8_t> order_of(const std::vector<std::int32_t>& offsets) {
  const auto groups = static_cast<std::int32_t>(offsets.size()) - 1;
  std::vector<std::uint8_t> order(static_cast<std::size_t>(groups), 255);
  for (std::int32_t g = 0; g < groups; ++g)
    order[static_cast<std::size_t>(cuda::place_by_rows(offsets.data(), groups, g))] = static_cast<std::uint8_t>(g);
  return order;
}

// Groups without rows have tiles, too: their gradients become zero. In the order of sizes no group has more rows than
// one before it.
TEST(TilesOfMatrices, CoverEveryMatrixOnce) {
  constexpr std::int32_t kRows = 128, kColumns = 512, kDown = 3, kAcross = 2;
  for (const auto& sizes : kSplits) {
    const std::vector<std::int32_t> offsets = small(offsets_of(sizes));
    const std::vector<std::uint8_t> order = order_of(offsets);
    const auto groups = static_cast<std::int32_t>(sizes.size());
    for (const bool ordered : {false, true}) {
      std::map<std::array<std::int32_t, 3>, int> seen;
      for (std::int32_t block = 0; block < 5; ++block) {
        cuda::TilesOfMatrices tiles(offsets.data(), ordered ? order.data() : nullptr, groups, kRows, kColumns, kAcross,
                                    kDown);
        cuda::GroupTile tile{};
        std::int32_t most = std::numeric_limits<std::int32_t>::max();
        for (cuda::Turns turns(block, 5, true); tiles.seek(turns.number(), tile); turns.advance()) {
          ASSERT_LE(ordered ? tile.rows() : 0, most);
          most = tile.rows();
          ASSERT_EQ(tile.rows(), sizes[static_cast<std::size_t>(tile.group)]);
          ASSERT_TRUE(tile.row % kRows == 0 && tile.row < kDown * kRows);
          ASSERT_TRUE(tile.column % kColumns == 0 && tile.column < kAcross * kColumns);
          const std::array place{tile.group, tile.row, tile.column};
          ASSERT_EQ(++seen[place], 1);
        }
      }
      ASSERT_EQ(seen.size(), sizes.size() * kDown * kAcross);
    }
  }
}

// What the busiest pair of blocks has to do, over the mean: with loads up to four times the mean, of OLMoE's down.
TEST(TilesOfMatrices, AreSharedOutEvenlyWhereGroupsAreNot) {
  constexpr std::int32_t kGroups = 64, kWorkers = 66, kAcross = 2, kDown = 16;
  std::vector<std::int64_t> sizes;
  const Random random(7, 1);
  for (std::uint64_t g = 0; g < kGroups; ++g) {
    const double share = -std::log(1 - random.uniform(2 * g)) - std::log(1 - random.uniform(2 * g + 1));
    sizes.push_back(static_cast<std::int64_t>(2048 * share));
  }
  const std::vector<std::int32_t> offsets = small(offsets_of(sizes));
  const std::vector<std::uint8_t> order = order_of(offsets);
  const auto busiest = [&](bool ordered) {
    double most = 0, sum = 0;
    for (std::int32_t worker = 0; worker < kWorkers; ++worker) {
      cuda::TilesOfMatrices tiles(offsets.data(), ordered ? order.data() : nullptr, kGroups, 128, 512, kAcross, kDown);
      cuda::GroupTile tile{};
      double rows = 0;
      for (cuda::Turns turns(worker, kWorkers, ordered); tiles.seek(turns.number(), tile); turns.advance())
        rows += tile.rows();
      most = std::max(most, rows);
      sum += rows;
    }
    return most / (sum / kWorkers);
  };
  EXPECT_LT(busiest(true), 1.05);
  EXPECT_GT(busiest(false), 1.1);
}

class CudaGrouped : public OnCard<> {
 protected:
  // All three products of a split. Rows without a group are NaN in what is read: nothing may come of them.
  void expect_products(const std::vector<std::int64_t>& sizes, std::int64_t left_over, std::int64_t k, std::int64_t m,
                       std::vector<std::int64_t> shifts = {0, 1}) {
    SCOPED_TRACE(fmt::format("{} groups, the first of {} rows, {} left over, {} -> {}", sizes.size(), sizes[0],
                             left_over, k, m));
    const std::vector<std::int64_t> offsets = offsets_of(sizes);
    const std::int64_t n = offsets.back() + left_over, groups = std::ssize(sizes);
    Memory memory;
    const Tensor x = memory.uniform({n, k}), dy = memory.uniform({n, m}), weight = memory.uniform({groups, m, k});
    for (const Tensor& t : {x, dy})
      std::fill(t.f32() + offsets.back() * t.columns(), t.f32() + t.elements(), std::nanf(""));
    const Tensor at = memory.integers(offsets);
    // Sums in fp32, but tensor cores cut off what does not fit: over 1,000 rows some 4e-6.
    const Agreement rows{.shifts = shifts}, sums{.bf16 = 3e-5, .shifts = shifts};
    expect_agreement(card(), GroupedLinear<Tensor>{x, weight, at, memory.zeros({n, m})}, rows);
    for (const bool accumulate : {false, true}) {
      expect_agreement(card(), GroupedLinearInputGrad<Tensor>{dy, weight, at, memory.uniform({n, k}), accumulate},
                       rows);
      expect_agreement(card(), GroupedLinearWeightGrad<Tensor>{x, dy, at, memory.uniform({groups, m, k}), accumulate},
                       sums);
    }
  }
};

TEST_F(CudaGrouped, AgreesWithTheCpu) {
  for (const auto& sizes : kSplits)
    for (const std::int64_t left_over : {0, 3, 130}) {
      if (offsets_of(sizes).back() + left_over == 0) continue;
      expect_products(sizes, left_over, 72, 40);  // edges in every direction, in rows of 16 bytes
      expect_products(sizes, left_over, 33, 21);  // rows that nothing is aligned in
    }
}

// Several tiles in every direction, several rounds of the stages, and a row of tiles whose last pair is half outside.
// Results of 584 columns, three tiles, come from pairs of tiles one above the other.
TEST_F(CudaGrouped, AgreesWithTheCpuOverManyTiles) {
  expect_products({300, 0, 129, 640}, 7, 584, 840, {0});
  expect_products({1100}, 0, 512, 1024, {0});
  expect_products({70, 30, 200, 5}, 0, 2048, 264, {0});
}

// More tiles than the card has blocks: every block comes by several times, with what it left in shared memory.
TEST_F(CudaGrouped, AgreesWithTheCpuOverManyGroups) {
  std::vector<std::int64_t> sizes;
  const Random random(3, 4);
  for (std::uint64_t g = 0; g < 96; ++g) sizes.push_back(static_cast<std::int64_t>(random.below(g, 90)));
  expect_products(sizes, 11, 320, 776, {0});
  sizes.clear();  // more than kMostOrdered: as they come
  for (std::uint64_t g = 0; g < 300; ++g) sizes.push_back(static_cast<std::int64_t>(random.below(g, 5)));
  expect_products(sizes, 11, 64, 72, {0});
}

TEST_F(CudaGrouped, AgreesWithTheCpuOnRandomShapes) {
  struct Case {
    std::vector<std::int64_t> sizes;
    std::int64_t left_over, k, m;
  };
  for (const Case& c : random_cases<Case>(8, [](auto draw) {
         Case made;
         made.sizes.resize(static_cast<std::size_t>(draw(9)));
         for (std::int64_t& size : made.sizes) size = draw(300) - 1;
         made.sizes.back() += 1;
         made.left_over = draw(20) - 1;
         made.k = draw(300);
         made.m = draw(300);
         return made;
       }))
    expect_products(c.sizes, c.left_over, c.k, c.m);
}

class CudaGroupedFp8 : public CudaGrouped {
 protected:
  // Both products of rows, with fast sums and without, and the gradient of weights. Rows without a group are NaN.
  void expect_fp8(const std::vector<std::int64_t>& sizes, std::int64_t left_over, std::int64_t k, std::int64_t m) {
    SCOPED_TRACE(fmt::format("{} groups, the first of {} rows, {} left over, {} -> {}", sizes.size(), sizes[0],
                             left_over, k, m));
    const std::vector<std::int64_t> offsets = offsets_of(sizes);
    const std::int64_t n = offsets.back() + left_over, groups = std::ssize(sizes);
    Memory memory;
    const Tensor at = memory.integers(offsets), x_scale = scale_entry(memory, 0x1p7f);
    const Tensor dy_scale = scale_entry(memory, 0x1p3f), weight_scales = memory.zeros({groups * kScaleFloats});
    for (std::int64_t g = 0; g < groups; ++g) {
      const float scale = std::exp2(static_cast<float>(g % 5) - 2);
      weight_scales.as<Fp8Scale>()[g].scale = scale, weight_scales.as<Fp8Scale>()[g].inverse = 1 / scale;
    }
    const auto cast = [&](DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t end, const Tensor& scale) {
      const Tensor values = memory.uniform({rows, columns});
      std::fill(values.f32() + end * columns, values.f32() + values.elements(), std::nanf(""));
      const Fp8Copies<Tensor> to{
          memory.array(dtype, {rows, columns}), memory.array(dtype, columns_in_blocks(rows, columns)), scale, {}};
      cpu::run(Quantize<Tensor>{values, to}, *all_pools()[1]);
      return to;
    };
    const Fp8Copies<Tensor> x = cast(DType::e4m3, n, k, offsets.back(), x_scale);
    const Fp8Copies<Tensor> dy = cast(DType::e5m2, n, m, offsets.back(), dy_scale);
    Tensor weight = cast(DType::e4m3, groups * m, k, groups * m, x_scale).rows;
    weight.shape = {groups, m, k};
    const auto within = [](double sums) { return Agreement{.bf16 = sums, .types = {DType::bf16}, .shifts = {0}}; };
    for (const bool accumulate : {false, true}) {
      for (const bool fast : {false, true}) {
        GroupedFp8Product<Tensor> y{x.rows, weight, at, x_scale, weight_scales, memory.uniform({n, m}), accumulate};
        y.how.fast_sums = fast;
        expect_agreement(card(), y, within(fast ? 9e-3 : 5e-3));
      }
      Tensor turned = weight;
      turned.shape = {groups, k, m};  // any numbers will do
      expect_agreement(
          card(),
          GroupedFp8Product<Tensor>{dy.rows, turned, at, dy_scale, weight_scales, memory.uniform({n, k}), accumulate},
          within(5e-3));
      const Tensor dweight = memory.uniform({groups, m, k});
      expect_agreement(
          card(), GroupedFp8WeightGrad<Tensor>{dy.columns, x.columns, at, dy_scale, x_scale, dweight, n, accumulate},
          within(1e-3));
    }
  }
};

TEST_F(CudaGroupedFp8, AgreesWithTheCpu) {
  for (const auto& sizes : kSplits)
    for (const std::int64_t left_over : {0, 3, 130}) {
      const std::int64_t rows = offsets_of(sizes).back();
      if (rows + left_over > 0) expect_fp8(sizes, left_over, 80, 48);
      expect_fp8(sizes, 16 - rows % 16, 80, 48);
    }
}

TEST_F(CudaGroupedFp8, AgreesWithTheCpuOverManyTiles) {
  expect_fp8({300, 0, 129, 640}, 11, 592, 848);
  expect_fp8({1100}, 4, 512, 1024);
  expect_fp8({70, 30, 200, 5}, 15, 2048, 272);
  std::vector<std::int64_t> sizes;
  const Random random(3, 4);
  for (std::uint64_t g = 0; g < 96; ++g) sizes.push_back(static_cast<std::int64_t>(random.below(g, 90)));
  expect_fp8(sizes, 16 - offsets_of(sizes).back() % 16, 320, 784);
}

// A product that Hopper's kernel could take and does not is many times slower: the shapes of OLMoE are taken.
TEST_F(CudaGrouped, WarpGroupsTakeTheShapesOfModels) {
  if (card().launch().major != 9) GTEST_SKIP() << "the card is no Hopper";
  const auto tensor = [](DType dtype, const Shape& shape) {
    return Tensor{reinterpret_cast<void*>(std::uintptr_t{1} << 20), dtype, shape};
  };
  const Tensor x = tensor(DType::bf16, {262144, 2048}), y = tensor(DType::bf16, {262144, 2048});
  const Tensor weight = tensor(DType::bf16, {64, 2048, 2048}), dweight = tensor(DType::f32, {64, 2048, 2048});
  const Tensor offsets = tensor(DType::i32, {65});
  EXPECT_EQ(cuda::hopper_why_not(GroupedLinear<Tensor>{x, weight, offsets, y}, card().launch()), "");
  EXPECT_EQ(cuda::hopper_why_not(GroupedLinearInputGrad<Tensor>{y, weight, offsets, x}, card().launch()), "");
  EXPECT_EQ(cuda::hopper_why_not(GroupedLinearWeightGrad<Tensor>{x, y, offsets, dweight}, card().launch()), "");
}

}  // namespace
}  // namespace redline::ops
