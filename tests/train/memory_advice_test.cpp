// What does not fit is told what would: the advice names settings that really need no more than there is.
#include "train/memory_advice.h"

#include <gtest/gtest.h>

#include "config/load.h"

namespace redline::train {
namespace {

config::Config config_with(std::vector<std::string> overrides) {
  return config::load({.file = "", .preset = "gqa-180m", .overrides = std::move(overrides)});
}

TEST(MemoryAdvice, NamesTheMilderRecomputeAndTheLargestBatchThatFit) {
  const config::Config c = config_with({"train.batch_size=12", "train.accumulate=2"});
  const std::int64_t all = memory_needed(c, device::Kind::cpu);
  const std::string advice = what_would_fit(c, device::Kind::cpu, all - 1);
  EXPECT_NE(advice.find("train.recompute = \"mlp\""), std::string::npos) << advice;
  EXPECT_NE(advice.find("train.batch_size = 6 with train.accumulate = 4"), std::string::npos) << advice;
  EXPECT_LE(memory_needed(config_with({"train.batch_size=6", "train.accumulate=4"}), device::Kind::cpu), all - 1);

  const std::int64_t with_mlp =
      memory_needed(config_with({"train.batch_size=12", "train.recompute=mlp"}), device::Kind::cpu);
  EXPECT_LT(with_mlp, all);
  const std::string harder = what_would_fit(c, device::Kind::cpu, with_mlp - 1);
  EXPECT_NE(harder.find("train.recompute = \"block\""), std::string::npos) << harder;
}

TEST(MemoryAdvice, SaysWhenNothingWouldHelp) {
  const std::string advice = what_would_fit(config_with({}), device::Kind::cpu, 1 << 20);
  EXPECT_NE(advice.find("train.seq_len"), std::string::npos) << advice;
}

}  // namespace
}  // namespace redline::train
