// The table of what several ranks cannot have: every row of it refuses what it says and nothing else, and whatever no
// row refuses can be lowered.
#include "train/on_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "model/lowering.h"
#include "testing/says.h"
#include "train/tiny_run.h"

namespace redline::train {
namespace {

using dist::Mode;
using testing::error_of;
using testing::says;

constexpr Mode kModes[] = {Mode::ddp, Mode::zero1, Mode::fsdp};

// A configuration that each row is about, by its key.
const std::map<std::string_view, std::vector<std::string>> kExamples = {
    {"parallel.sequence", {"parallel.sequence=4"}},
    {"train.seq_len", {"parallel.sequence=2", "train.seq_len=63"}},
    {"parallel.shards", {"parallel.shards=2"}},
    {"precision.gradients", {"precision.gradients=bf16"}},
    {"precision.masters", {"precision.masters=bf16"}},
    {"model.experts", {"model.family=olmoe", "model.experts=4", "model.experts_per_token=2", "parallel.sequence=2"}},
};

config::Config example_of(std::vector<std::string> keys, std::string_view mode) {
  keys.push_back(fmt::format("parallel.mode={}", mode));
  return testing::tiny_run(keys);
}

TEST(OnRanks, EveryRowRefusesItsModesWithItsSentence) {
  for (const NotOnRanks& row : not_on_ranks()) {
    ASSERT_TRUE(kExamples.contains(row.key)) << row.key << " has no example here";
    const std::vector<std::string>& keys = kExamples.at(row.key);
    const config::Config open = example_of(keys, "auto");
    EXPECT_FALSE(row.has(testing::tiny_run())) << row.setting;
    ASSERT_TRUE(row.has(open)) << row.setting;
    EXPECT_FALSE(row.modes.empty()) << row.setting;
    for (const Mode mode : kModes) {
      const bool refused = std::ranges::find(row.modes, mode) != row.modes.end();
      const config::Config asked = example_of(keys, name_of(mode));
      const std::string name = fmt::format("{} with {}", row.setting, name_of(mode));
      EXPECT_EQ(!refusal(asked, mode).empty(), refused) << name;
      const std::string error = error_of([&] { require_for_ranks(asked, 4); });
      EXPECT_EQ(error, refused ? refusal(asked, mode) : "no error") << name;
      if (refused) {
        EXPECT_TRUE(says(error, {row.setting, row.because, row.instead})) << name;
      }
    }
    const std::vector<Mode> left = modes_for(open, 2);
    EXPECT_EQ(left.size() + row.modes.size(), std::size(kModes)) << row.setting;
    EXPECT_EQ(error_of([&] { require_for_ranks(open, 4); }) == "no error", !left.empty()) << row.setting;
    EXPECT_EQ(modes_for(open, 1).size(), std::size(kModes)) << row.setting << ": one rank may have any";
  }
}

TEST(OnRanks, RowsAreSharedAmongWholeGroups) {
  const config::Config two = testing::tiny_run({"parallel.sequence=2"});
  for (const int ranks : {2, 4, 6}) EXPECT_EQ(error_of([&] { require_for_ranks(two, ranks); }), "no error") << ranks;
  for (const int ranks : {1, 3})
    EXPECT_TRUE(says(error_of([&] { require_for_ranks(two, ranks); }),
                     {"parallel.sequence = 2", "start a multiple of 2", "or set 1"}))
        << ranks;
  EXPECT_TRUE(says(error_of([] { testing::tiny_run({"parallel.sequence=3"}); }), {"a power of two"}));
}

TEST(OnRanks, TheStateIsSharedOutAmongWholeGroups) {
  const config::Config two = testing::tiny_run({"parallel.shards=2"});
  for (const int ranks : {2, 4, 6}) EXPECT_EQ(error_of([&] { require_for_ranks(two, ranks); }), "no error") << ranks;
  for (const int ranks : {1, 3})
    EXPECT_TRUE(says(error_of([&] { require_for_ranks(two, ranks); }),
                     {"parallel.shards = 2", "start a multiple of 2", "or set 0"}))
        << ranks;
  EXPECT_TRUE(says(error_of([] { testing::tiny_run({"parallel.shards=1"}); }), {"parallel.mode = \"ddp\""}));
}

TEST(OnRanks, WhatIsNotRefusedCanBeLowered) {
  std::vector<config::Config> all = {
      testing::tiny_run(),
      testing::tiny_run({"optim.name=muon"}),
      testing::tiny_run({"parallel.sequence=2"}),
      testing::tiny_run({"train.accumulate_from=1", "train.accumulate_ramp_steps=4", "train.max_hours=1"}),
      testing::tiny_run({"precision.matmul=fp8", "precision.head=fp8", "optim.name=muon"}),
      testing::tiny_run({"precision.matmul=fp8", "parallel.sequence=2", "parallel.shards=2"})};
  for (const auto& [key, keys] : kExamples) all.push_back(example_of(keys, "auto"));
  for (const config::Config& c : all)
    for (const Mode mode : modes_for(c, 4))
      for (const device::Kind kind : {device::Kind::cpu, device::Kind::cuda}) {
        model::LoweringOptions options = model::lowering_options(c, kind);
        options.sharing = dist::sharing_of(c.parallel, 1, 4, mode);
        EXPECT_NO_THROW(model::lower(c.model, options)) << name_of(mode);
      }
}

}  // namespace
}  // namespace redline::train
