// The steps of a run do not depend on who keeps it: with a keeper that does nothing they are the same, and nothing is left.
#include "train/step_loop.h"

#include <gtest/gtest.h>

#include "testing/temp_folder.h"
#include "train/run_here.h"

namespace redline::train {
namespace {

TrainOptions options_for(const config::Config& config, const Path& folder) {
  TrainOptions options;
  options.config = config;
  options.folder = folder;
  return options;
}

TEST(StepLoop, NeedsNoFolder) {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"train.max_steps=12", "train.sample_every=5", "train.sample_tokens=4"});
  const Ran kept = run(c, temp.path() / "kept");
  const TrainOptions options = options_for(c, temp.path() / "nowhere");
  device::CpuDevice device(2);
  Keeper nobody;
  StepLoop loop(options, device, real_files(), nobody);
  const TrainResult result = loop.run();
  EXPECT_EQ(result.outcome, Outcome::finished);
  EXPECT_EQ(result.steps, 12);
  EXPECT_EQ(loop.step(), 12);
  ASSERT_TRUE(result.eval_loss.has_value());
  EXPECT_EQ(result.eval_loss, kept.result.eval_loss);
  EXPECT_EQ(real_files().list(temp.path()), std::vector<std::string>{"kept"});
}

// What goes to a keeper: every step once and in order, and the state of each that is to be kept.
TEST(StepLoop, GivesItsKeeperEveryStepAndTheStatesToKeep) {
  testing::TempFolder temp;
  struct Listening final : Keeper {
    std::vector<std::int64_t> steps, saves;
    std::int64_t tokens = 0;
    Finished ending;
    void tell(const Event& event) override {
      hear(
          event,
          [&](const Stepped& e) {
            steps.push_back(e.step);
            tokens += e.tokens;
          },
          [&](const Finished& e) { ending = e; });
    }
    void save(model::Engine&, const RunState& state, double) override { saves.push_back(state.step); }
  } keeper;
  const TrainOptions options = options_for(tiny_run({"train.max_steps=7"}), temp.path() / "nowhere");
  device::CpuDevice device(2);
  StepLoop(options, device, real_files(), keeper).run();
  EXPECT_EQ(keeper.steps, (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(keeper.saves, (std::vector<std::int64_t>{5, 7}));
  EXPECT_TRUE(keeper.ending.text.starts_with("7 steps done, held-out loss ")) << keeper.ending.text;
  EXPECT_EQ(keeper.ending.steps, 7);
  EXPECT_EQ(keeper.ending.tokens, keeper.tokens);
  EXPECT_GT(keeper.ending.seconds, 0);
  EXPECT_FALSE(keeper.ending.stopped || keeper.ending.resumed);
}

}  // namespace
}  // namespace redline::train
