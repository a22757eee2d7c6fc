// Tune keeps what a step means, and never writes what is slower than the start.
#include "perf/tune.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "config/load.h"
#include "config/toml.h"
#include "perf/machines.h"
#include "testing/says.h"
#include "train/tiny_run.h"

namespace redline::perf {
namespace {

using testing::says;

config::Config sixteen_rows(const KeyValues& keys) {
  std::vector<std::string> overrides = {"train.batch_size=8", "train.accumulate=2", "train.seq_len=512"};
  overrides.insert(overrides.end(), keys.begin(), keys.end());
  return testing::tiny_run(overrides);
}

Bench card_bench(std::function<double(const config::Config&)> rate) {
  return bench_of(device::Kind::cuda, std::move(rate),
                  {{16, 1, "none"}, {8, 2, "none"}, {4, 4, "none"}, {16, 1, "mlp"}});
}

TEST(Tune, FindsTheFastestOfEachSettingAndKeepsTheRowsOfAStep) {
  const Bench bench = card_bench([](const config::Config& c) {
    EXPECT_EQ(setting_of(c).rows(), 16);
    EXPECT_EQ(c.precision.matmul, "bf16") << "fp8 was not allowed";
    double rate = 1000;
    if (c.train.batch_size == 16 && c.train.recompute == "none") rate *= 1.2;
    if (c.kernels.tuning == "max") rate *= 1.1;
    if (c.kernels.attention == "flash") rate = 0;
    if (c.kernels.graphs == "off") rate *= 0.5;
    return rate;
  });
  const Tuned tuned = tune(sixteen_rows, bench, {});
  EXPECT_TRUE(tuned.faster);
  EXPECT_EQ(setting_of(tuned.best), (Setting{16, 1, "none"}));
  EXPECT_EQ(tuned.best.kernels.tuning, "max");
  EXPECT_EQ(tuned.best.kernels.graphs, "auto");
  EXPECT_EQ(tuned.best.optim, tuned.start.optim);
  const std::vector<std::string> changed = config::differing_keys(tuned.start, tuned.best);
  EXPECT_EQ(changed, (std::vector<std::string>{"train.batch_size", "train.accumulate", "kernels.tuning"}));
}

TEST(Tune, AnOverlayIsTomlWithTheTableInItsComments) {
  const Bench bench = card_bench([](const config::Config& c) { return c.train.batch_size == 16 ? 1200.0 : 1000.0; });
  const Tuned tuned = tune(sixteen_rows, bench, {});
  const std::string text = overlay_of(tuned, "a card", "redline tune x");
  EXPECT_TRUE(says(text, {"# * the start", "x1.200"}));
  std::map<std::string, config::Value> keys;
  for (const config::Setting& s : config::read_toml(text, "x.tuned.toml"))
    if (!s.table) keys[s.name] = s.value;
  EXPECT_EQ(keys, (std::map<std::string, config::Value>{{"train.batch_size", std::int64_t{16}},
                                                        {"train.accumulate", std::int64_t{1}}}));
}

TEST(Tune, AWinnerThatDoesNotWinAgainIsNotWritten) {
  int measured = 0;
  const Bench bench = card_bench([&](const config::Config& c) {
    const bool first_look = ++measured <= 3;  // luck
    return c.train.batch_size == 16 && first_look ? 2000.0 : 1000.0;
  });
  const Tuned tuned = tune(sixteen_rows, bench, {});
  EXPECT_FALSE(tuned.faster);
  EXPECT_EQ(tuned.best, tuned.start);
  const std::string text = overlay_of(tuned, "a card", "redline tune x");
  EXPECT_EQ(text.find('['), text.npos) << text;
  EXPECT_TRUE(says(text, {"no key is changed"}));
}

TEST(Tune, OtherRowsAndFp8OnlyWhereTheyAreAllowed) {
  const Bench bench = card_bench([](const config::Config& c) {
    return 1000.0 * (c.precision.matmul == "fp8" ? 1.3 : 1) * (setting_of(c).rows() == 32 ? 1.3 : 1);
  });
  TuneOptions options;
  EXPECT_FALSE(tune(sixteen_rows, bench, options).faster);
  options.allow_fp8 = options.allow_batch = true;
  const Tuned tuned = tune(sixteen_rows, bench, options);
  EXPECT_TRUE(tuned.faster);
  EXPECT_EQ(tuned.best.precision.matmul, "fp8");
  EXPECT_EQ(setting_of(tuned.best).rows(), 32);
  EXPECT_GT(tuned.best.optim.lr, tuned.start.optim.lr);
}

// The best so far is doubled: the start, where nothing beats it, and not the setting that came second by the plan.
TEST(Tune, TwiceTheRowsOfTheBestSoFar) {
  for (const bool start_is_best : {true, false}) {
    std::vector<Setting> larger;
    const Bench bench = card_bench([&](const config::Config& c) {
      const Setting s = setting_of(c);
      if (s.rows() == 32 && std::ranges::find(larger, s) == larger.end()) larger.push_back(s);
      return s.batch_size == 4 && !start_is_best ? 2000.0 : s.batch_size == 8 ? 1000.0 : 900.0;
    });
    TuneOptions options;
    options.allow_batch = true;
    tune(sixteen_rows, bench, options);
    const std::vector<Setting> wanted = start_is_best ? std::vector<Setting>{{8, 4, "none"}, {16, 2, "none"}}
                                                      : std::vector<Setting>{{4, 8, "none"}, {8, 4, "none"}};
    EXPECT_EQ(larger, wanted);
  }
}

TEST(Tune, AStartThatCannotRunIsAnError) {
  EXPECT_THROW(tune(sixteen_rows, card_bench([](const config::Config&) { return 0.0; }), {}), UserError);
}

TEST(Tune, ASignalEndsItWithoutAWinner) {
  StopFlag stop = 0;
  int measured = 0;
  const Bench bench = card_bench([&](const config::Config&) {
    if (++measured == 2) stop = 2;
    return 1000.0 * measured;
  });
  TuneOptions options;
  options.stop = &stop;
  const Tuned tuned = tune(sixteen_rows, bench, options);
  EXPECT_TRUE(tuned.stopped);
  EXPECT_EQ(tuned.rows.size(), 2u);
  EXPECT_EQ(tuned.best, tuned.start);
}

// On the CPU itself: whatever it finds, the start is not faster in the turns at the end.
TEST(Tune, OnADeviceItsOverlayIsNotSlowerThanTheStart) {
  device::CpuDevice device(1);
  const auto load = [](const KeyValues& keys) {
    std::vector<std::string> overrides = {"train.accumulate=4"};
    overrides.insert(overrides.end(), keys.begin(), keys.end());
    return testing::tiny_run(overrides);
  };
  TuneOptions options;
  options.seconds = 1;
  const Tuned tuned = tune(load, bench_on(device, {}), options);
  EXPECT_GT(tuned.rows.size(), 1u);
  EXPECT_EQ(setting_of(tuned.best).rows(), 8);
  EXPECT_TRUE(tuned.faster ? tuned.best_again.tokens_per_s > tuned.start_again.tokens_per_s
                           : tuned.best == tuned.start);
  EXPECT_EQ(device.allocated_bytes(), 0);
}

}  // namespace
}  // namespace redline::perf
