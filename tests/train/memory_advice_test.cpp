// What does not fit is told what would: the advice names settings that really need no more than there is.
#include "train/memory_advice.h"

#include <gtest/gtest.h>

#include "config/load.h"
#include "testing/says.h"

namespace redline::train {
namespace {

using testing::says;

config::Config config_with(std::vector<std::string> overrides) {
  return config::load({.file = "", .preset = "gqa-180m", .overrides = std::move(overrides)});
}

TEST(MemoryAdvice, NamesTheMilderRecomputeAndTheLargestBatchThatFit) {
  const config::Config c = config_with({"train.batch_size=12", "train.accumulate=2"});
  const std::int64_t all = memory_needed(c, device::Kind::cpu);
  const std::string advice = what_would_fit(c, device::Kind::cpu, all - 1);
  EXPECT_TRUE(says(advice, {"train.recompute = \"mlp\"", "train.batch_size = 6 with train.accumulate = 4"}));
  EXPECT_LE(memory_needed(config_with({"train.batch_size=6", "train.accumulate=4"}), device::Kind::cpu), all - 1);

  const std::int64_t with_mlp =
      memory_needed(config_with({"train.batch_size=12", "train.recompute=mlp"}), device::Kind::cpu);
  EXPECT_LT(with_mlp, all);
  const std::string harder = what_would_fit(c, device::Kind::cpu, with_mlp - 1);
  EXPECT_TRUE(says(harder, {"train.recompute = \"block\""}));
}

TEST(MemoryAdvice, NamesTheBatchThatFitsWithRecomputeWhereNeitherDoesAlone) {
  const auto needed = [](std::int64_t rows, const char* recompute) {
    return memory_needed(
        config_with({fmt::format("train.batch_size={}", rows), fmt::format("train.accumulate={}", 24 / rows),
                     fmt::format("train.recompute={}", recompute)}),
        device::Kind::cpu);
  };
  const std::int64_t available = needed(1, "none") - 1;
  std::int64_t rows = 6;
  while (needed(rows, "block") > available) --rows;
  ASSERT_GE(rows, 2);
  rows = rows == 5 ? 4 : rows;  // 5 does not divide 12
  const std::string advice =
      what_would_fit(config_with({"train.batch_size=12", "train.accumulate=2"}), device::Kind::cpu, available);
  EXPECT_EQ(advice, fmt::format("train.recompute = \"block\" and train.batch_size = {} with train.accumulate = {} "
                                "({:.2f} GiB) would fit",
                                rows, 24 / rows, static_cast<double>(needed(rows, "block")) * 0x1p-30));
}

TEST(MemoryAdvice, SaysWhenNothingWouldHelp) {
  const std::string advice = what_would_fit(config_with({}), device::Kind::cpu, 1 << 20);
  EXPECT_TRUE(says(advice, {"train.seq_len"}));
}

}  // namespace
}  // namespace redline::train
