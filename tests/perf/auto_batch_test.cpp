// train.batch_size = "auto": the steps stay what they were, the numbers are what was measured to be fastest.
#include "perf/auto_batch.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "testing/watched_device.h"
#include "train/tiny_run.h"

namespace redline::perf {
namespace {

config::Config automatic(std::vector<std::string> overrides = {}) {
  overrides.push_back("train.batch_size=auto");
  return testing::tiny_run(overrides);  // 2 rows x 2
}

TEST(AutoBatch, KeepsTheFastestThatWasRunAndTheRowsOfAStep) {
  device::CpuDevice device(1);
  const config::Config asked = automatic({"train.accumulate=4"});
  ASSERT_TRUE(asked.train.automatic_batch_size);
  AutoBatchOptions options;
  std::vector<Setting> told;
  options.progress = [&](const Setting& s, std::size_t number, std::size_t of) {
    told.push_back(s);
    EXPECT_EQ(number, told.size());
    EXPECT_LE(number, of);
  };
  const AutoBatch found = find_batch_size(asked, device, options);
  EXPECT_GT(found.tried.size(), 1u);
  EXPECT_EQ(told.size(), found.tried.size());
  for (const Tried& t : found.tried) {
    EXPECT_EQ(t.setting.rows(), 8);
    ASSERT_TRUE(t.measured.has_value());
    EXPECT_GT(*t.measured, 0);
    EXPECT_LE(*t.measured, *found.tried[0].measured);
  }
  EXPECT_EQ(setting_of(found.config), found.tried[0].setting);
  EXPECT_FALSE(found.config.train.automatic_batch_size);
  EXPECT_EQ(found.config.optim, asked.optim);
  EXPECT_EQ(device.allocated_bytes(), 0);
}

TEST(AutoBatch, TakesThePlansWordWhereNothingMayRun) {
  device::CpuDevice device(1);
  AutoBatchOptions options;
  options.measure = false;
  options.progress = [](const Setting&, std::size_t, std::size_t) { FAIL() << "nothing may run"; };
  const AutoBatch found = find_batch_size(automatic(), device, options);
  EXPECT_FALSE(found.tried[0].measured.has_value());
  EXPECT_EQ(setting_of(found.config).rows(), 4);
}

// In the middle of a step that is timed.
TEST(AutoBatch, ASignalDropsTheStepThatIsTimed) {
  testing::WatchedDevice device(1);
  StopFlag stop = 0;
  device.given = [&](int n) {
    EXPECT_EQ(n, 1) << "went on";
    stop = 15;
  };
  AutoBatchOptions options;
  options.stop = &stop;
  const AutoBatch found = find_batch_size(automatic(), device, options);
  EXPECT_FALSE(found.tried[0].measured.has_value());
}

TEST(AutoBatch, ASignalEndsTheSearchWithWhatIsKnown) {
  device::CpuDevice device(1);
  const std::atomic<int> stop = 15;
  AutoBatchOptions options;
  options.stop = &stop;
  const AutoBatch found = find_batch_size(automatic(), device, options);
  EXPECT_FALSE(found.tried[0].measured.has_value());
  EXPECT_EQ(setting_of(found.config).rows(), 4);
}

TEST(AutoBatch, SaysWhatTheLeastWouldNeed) {
  device::CpuDevice device(1);
  const config::Config c =
      automatic({"model.hidden=65536", "model.ffn=262144", "model.heads=512", "model.head_dim=128"});
  try {
    find_batch_size(c, device, {});
    FAIL() << "2 layers of 69 billion parameters fitted";
  } catch (const UserError& e) {
    const std::string message = e.what();
    EXPECT_NE(message.find("nothing fits"), std::string::npos) << message;
    EXPECT_NE(message.find("train.seq_len"), std::string::npos) << message;
  }
}

TEST(AutoBatch, ARunThatGoesOnTakesItsOwnNumbers) {
  const config::Config asked = automatic();
  const config::Config same = with_setting(asked, {4, 1, "mlp"});
  EXPECT_EQ(adopt_batch_size(asked, same), same);
  const config::Config changed = with_setting(asked, {3, 1, "none"});
  EXPECT_DOUBLE_EQ(changed.optim.lr, asked.optim.lr * std::sqrt(0.75));
  EXPECT_EQ(adopt_batch_size(asked, changed), changed) << "the learning rate to the bit";
  const config::Config insists = automatic({"train.recompute=block"});
  EXPECT_EQ(setting_of(adopt_batch_size(insists, same)), (Setting{4, 1, "block"}));
}

}  // namespace
}  // namespace redline::perf
