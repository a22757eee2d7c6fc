// The mode of ranks is the fastest that fits, and zero1 where several are.
#include "perf/rank_mode.h"

#include <gtest/gtest.h>

#include "config/load.h"
#include "model/family.h"

namespace redline::perf {
namespace {

config::Config preset(const std::string& name) {
  return config::load({.file = "", .preset = name, .overrides = {}}, model::settle_family);
}

RankMachine cards(int per_node, std::int64_t available) {
  const Card& card = *find_card("NVIDIA H200");
  return {device::Kind::cuda, available,
          RankMachine::Known{machine_of(card), fabric_of(card, network_called(kNoNetwork), per_node, per_node)}};
}

TEST(RankMode, WithoutAPlanItIsZero1WhereThatFits) {
  const config::Config quick = preset("quick");
  EXPECT_EQ(choose_mode(quick, {device::Kind::cpu, std::int64_t{1} << 40, {}}, 2).mode, dist::Mode::zero1);
  EXPECT_EQ(choose_mode(quick, {device::Kind::cpu, 1, {}}, 2).mode, dist::Mode::fsdp) << "nothing fits";
}

TEST(RankMode, ThePlanSaysWhichOfThoseThatFitIsFastest) {
  const config::Config c = preset("llama-1.36b");
  constexpr std::int64_t kGib = std::int64_t{1} << 30;
  const ModeChoice roomy = choose_mode(c, cards(8, 1000 * kGib), 8);
  EXPECT_NE(roomy.mode, dist::Mode::fsdp) << roomy.why;
  EXPECT_NE(roomy.why.find("ddp"), std::string::npos) << roomy.why;
  EXPECT_NE(roomy.why.find("fsdp"), std::string::npos) << roomy.why;
  // Less memory than what does not shrink: only what shares most out is left.
  std::int64_t low = kGib, high = 1000 * kGib;
  while (high - low > kGib) {
    const std::int64_t middle = (low + high) / 2;
    (choose_mode(c, cards(8, middle), 8).why.starts_with("nothing") ? low : high) = middle;
  }
  EXPECT_EQ(choose_mode(c, cards(8, high), 8).mode, dist::Mode::fsdp);
}

}  // namespace
}  // namespace redline::perf
