// A run that an earlier redline made goes on as that one would have gone on, whatever defaults are now. The fixture
// (tests/fixtures/run_ed7b3dd, whose README.md says how it was made) is a run of 8 steps that is kept as it was after
// step 4; expected.jsonl has the old program's metrics of the steps after that.
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "io/json.h"
#include "testing/paths.h"
#include "testing/temp_folder.h"
#include "train/run_folder.h"
#include "train/tiny_run.h"

namespace redline::train {
namespace {

namespace fs = std::filesystem;

struct OldRun {
  testing::TempFolder temp;
  Path run = temp / "run";
  std::vector<io::Json> expected;

  OldRun() {
    const Path fixture = testing::fixture("run_ed7b3dd");
    fs::copy(fixture / "run", run, fs::copy_options::recursive);
    std::istringstream lines(real_files().read(fixture / "expected.jsonl"));
    for (std::string line; std::getline(lines, line);) expected.push_back(io::Json::parse(line));
  }

  // As `redline train --resume --out RUN data.train=...` has it: the text stands elsewhere than it did.
  config::Config config(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), "data.train=" + testing::fixture("run_ed7b3dd/text.txt"));
    return config::load({.file = (run / kRunConfig).string(), .preset = "", .overrides = more, .of_run = true},
                        model::settle_family);
  }
};

TEST(OldRun, GoesOnAsTheOldProgramWould) {
  const OldRun old;
  const config::Config c = old.config();
  EXPECT_EQ(c.train.eval_tokens, 0);
  EXPECT_EQ(c.checkpoint.minutes, 0);
  EXPECT_EQ(c.model.router_balance, "layer") << "it has no experts";
  const Ran ran = go_on(c, old.run, false, true);
  ASSERT_EQ(old.expected.size(), 4u);
  ASSERT_EQ(ran.seen.steps.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    const StepMetrics& m = ran.seen.steps[i];
    const io::Json& row = old.expected[i];
    EXPECT_EQ(m.step, row.at("step").get<std::int64_t>());
    EXPECT_EQ(m.tokens, row.at("tokens").get<std::int64_t>());
    // The same bits on the same machine; others add in another order.
    const auto near = [&](const char* key, double value) {
      const double was = row.at(key).get<double>();
      EXPECT_NEAR(value, was, 2e-6 * was) << key << " of step " << m.step;
    };
    near("loss", m.loss);
    near("grad_norm", m.grad_norm);
    near("lr", m.lr);
    ASSERT_EQ(m.eval_loss.has_value(), row.contains("eval_loss")) << m.step;
    if (m.eval_loss) near("eval_loss", *m.eval_loss);
  }
  // From here on its files say what it means.
  const config::Config kept = read_run_config(real_files(), old.run);
  EXPECT_EQ(kept.train.eval_tokens, 0);
  EXPECT_EQ(kept.train.eval_batches, c.train.eval_batches);
  EXPECT_TRUE(kept.origins.written("train.eval_tokens"));
}

}  // namespace
}  // namespace redline::train
