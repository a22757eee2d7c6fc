// The ladder and tune on a card: every rung runs or says why, products are tuned as their key says, and nothing stays.
#include "perf/ladder.h"

#include <cstdlib>
#include <map>
#include <regex>

#include "base/files.h"
#include "perf/tune.h"
#include "testing/on_card.h"
#include "testing/temp_folder.h"
#include "train/tiny_run.h"

namespace redline::perf {
namespace {

// The tuning cache of this process, set before the first product reads it.
const testing::TempFolder kCache;
[[maybe_unused]] const int kCacheIsSet = ::setenv("XDG_CACHE_HOME", kCache.path().c_str(), 1);

// Products of it are worth tuning.
config::Config small(const KeyValues& keys) {
  std::vector<std::string> overrides = {"model.hidden=512",    "model.heads=8",      "model.head_dim=64",
                                        "model.ffn=1536",      "model.vocab=8192",   "train.seq_len=512",
                                        "train.batch_size=64", "train.accumulate=4", "data.max_segments=32"};
  overrides.insert(overrides.end(), keys.begin(), keys.end());
  return testing::tiny_run(overrides);
}

class LadderCuda : public testing::OnCard<> {
 protected:
  Measured run(const KeyValues& keys) {
    MeasureOptions options;
    options.seconds = 0.2;
    options.peak_flops = 1e15;
    return measure(small(keys), card(), options);
  }
  std::string tuning_file() const {
    const Path file = kCache / "redline/tuning.json";
    return real_files().exists(file) ? real_files().read(file) : "";
  }
};

TEST_F(LadderCuda, EveryRungRunsOrSaysWhy) {
  const std::int64_t held = card().allocated_bytes();
  LadderOptions options;
  options.seconds = 8;
  MeasureOptions measuring;
  measuring.peak_flops = 1e15;
  const Ladder ladder = climb(small, bench_on(card(), measuring), options);
  EXPECT_EQ(card().allocated_bytes(), held);
  for (const Trial& row : ladder.rows) {
    EXPECT_TRUE(row.state != TrialState::failed || row.name == "fp8 products") << row.name << ": " << row.reason;
    if (row.state != TrialState::measured) continue;
    EXPECT_GT(row.measured.tokens_per_s, 0) << row.name;
    EXPECT_GT(row.measured.memory, 0) << row.name;
  }
  EXPECT_GT(ladder.rows.size(), 18u);
}

// In shapes that no other test here has: they share the cache.
TEST_F(LadderCuda, TuningIsOffOnOrMaxAndEachHasItsOwnEntries) {
  const auto tuned = [&](const std::string& how) {
    EXPECT_TRUE(run({"train.batch_size=96", "kernels.tuning=" + how}).done());
    return tuning_file();
  };
  const std::string off = tuned("off"), on = tuned("on"), max = tuned("max");
  const std::regex any("49152x"), of_max("49152x[^\"]* max\"");
  EXPECT_FALSE(std::regex_search(off, any)) << "nothing is tuned";
  EXPECT_TRUE(std::regex_search(on, any));
  EXPECT_FALSE(std::regex_search(on, of_max));
  EXPECT_TRUE(std::regex_search(max, of_max));
}

TEST_F(LadderCuda, RowsOfLogitsTakeMemory) {
  const Measured few = run({"kernels.logits_rows=1000"}), all = run({"kernels.logits_rows=32768"});
  ASSERT_TRUE(few.done() && all.done()) << few.problem << all.problem;
  EXPECT_LT(few.memory, all.memory);
}

TEST_F(LadderCuda, WhatDoesNotFitIsAProblemAndTheNextOneRuns) {
  const Measured large = run({"train.batch_size=1000000"});
  EXPECT_NE(large.problem.find("GiB are free"), large.problem.npos) << large.problem;
  EXPECT_TRUE(run({}).done());
}

TEST_F(LadderCuda, TuneKeepsTheRowsOfAStepAndIsNotSlower) {
  TuneOptions options;
  options.seconds = 8;
  const Tuned tuned = tune(small, bench_on(card(), {}), options);
  EXPECT_GT(tuned.rows.size(), 4u);
  EXPECT_EQ(setting_of(tuned.best).rows(), 256);
  EXPECT_TRUE(!tuned.faster || tuned.best_again.tokens_per_s > tuned.start_again.tokens_per_s);
}

}  // namespace
}  // namespace redline::perf
