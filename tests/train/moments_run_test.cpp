// Runs with optim.moments: they go on to the same bits, and take up checkpoints of another kind where that is allowed.
#include <gtest/gtest.h>

#include <filesystem>

#include "testing/temp_folder.h"
#include "train/run_here.h"

namespace redline::train {
namespace {

config::Config run_with(const std::string& moments) {
  return tiny_run({"optim.moments=\"" + moments + "\"", "train.max_steps=10", "train.eval_every=0"});
}

Ran go_on(const config::Config& config, const Path& folder, bool allow_change = false) {
  testing::WatchedDevice device(2);
  TrainOptions options;
  options.allow_change = allow_change;
  return run_on(device, options, config, folder, true, real_files());
}

// What a run left, but for its last checkpoint.
void copy_half(const Path& from, const Path& to) {
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(to / "checkpoints" / io::checkpoint_name(10));
}

TEST(MomentsRun, StopsAndResumesToTheSameBits) {
  for (const char* moments : {"bf16", "8bit"}) {
    testing::TempFolder temp;
    const Ran whole = run(run_with(moments), temp.path() / "whole");
    copy_half(temp.path() / "whole", temp.path() / "parts");
    const Ran rest = go_on(run_with(moments), temp.path() / "parts");
    const std::vector<double> all = losses(whole.seen);
    EXPECT_EQ(losses(rest.seen), std::vector<double>(all.begin() + 5, all.end())) << moments;
    EXPECT_TRUE(tensors(temp.path() / "whole", 10) == tensors(temp.path() / "parts", 10)) << moments;
  }
}

TEST(MomentsRun, GoesOnFromACheckpointOfAnotherKind) {
  testing::TempFolder temp;
  for (const std::string was : {"fp32", "bf16", "8bit"}) {
    const Path before = temp.path() / was;
    const std::vector<double> all = losses(run(run_with(was), before).seen);
    for (const std::string is : {"fp32", "bf16", "8bit"}) {
      if (is == was) continue;
      const Path after = temp.path() / (was + " to " + is);
      copy_half(before, after);
      EXPECT_TRUE(any_has({error_of([&] { go_on(run_with(is), after); })}, "--allow-change"));
      const Ran rest = go_on(run_with(is), after, true);
      EXPECT_TRUE(any_has(rest.seen.notes, "moments are converted from " + was + " to " + is));
      const std::vector<double> got = losses(rest.seen);
      ASSERT_EQ(got.size(), 5u);
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_NEAR(got[i], all[i + 5], 0.02 * all[i + 5]) << was << " to " << is;
    }
  }
}

}  // namespace
}  // namespace redline::train
