// redline doctor on a card: the step is timed there, recompute without need is found, and leaving it out
// is measured to pay.
#include "cli/program.h"
#include "io/json.h"
#include "testing/on_card.h"

namespace redline::cli {
namespace {

class DoctorCuda : public testing::OnCard<ProgramTest> {};

TEST_F(DoctorCuda, RecomputeIsFoundAndItsCureMeasured) {
  const Ran ran = run({"doctor", "gqa-180m", "--device", "cuda", "--steps", "3", "--try", "--seconds", "1", "--json",
                       "train.batch_size=16", "train.accumulate=1", "train.recompute=block", "train.eval_every=0",
                       "checkpoint.every=0"});
  ASSERT_EQ(ran.status, 1) << ran.err;
  const io::Json told = io::parse_json(ran.out, "stdout");
  ASSERT_FALSE(told["findings"].empty()) << ran.out;
  EXPECT_EQ(told["findings"][0]["illness"], "recompute") << ran.out;
  EXPECT_GT(told["findings"][0]["gain_measured"], 1.08) << ran.out;
  EXPECT_NEAR(told["findings"][0]["gain_measured"], told["findings"][0]["gain"], 0.25) << ran.out;
  double sum = 0;
  for (const io::Json& part : told["parts"]) {
    sum += part["ms"].get<double>();
    EXPECT_LE(part["floor_ms"], part["ms"]) << ran.out;
  }
  EXPECT_NEAR(sum, told["step_ms"], 0.02 * told["step_ms"].get<double>());
}

// Forty steps are too few for a model of this size, which is told and is true; nothing of the step is to mend.
TEST_F(DoctorCuda, ARunThatIsHealthyHasNothingOfItsStepToMend) {
  const Ran trained = run({"train", "gqa-180m", "data.train=ping", "--device", "cuda", "--out", "a",
                           "train.batch_size=64", "train.accumulate=1", "train.max_steps=40", "train.eval_every=0",
                           "checkpoint.every=0", "optim.warmup_steps=2"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  const Ran ran = run({"doctor", "a", "--json"});
  const io::Json told = io::parse_json(ran.out, "stdout");
  ASSERT_EQ(told["findings"].size(), 1) << ran.out;
  EXPECT_EQ(told["findings"][0]["illness"], "few_tokens") << ran.out;
}

}  // namespace
}  // namespace redline::cli
