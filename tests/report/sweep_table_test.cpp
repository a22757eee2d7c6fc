// The table of a sweep: the best run is one that finished, seeds are put together, and every form has the same figures.
#include "report/sweep_table.h"

#include <gtest/gtest.h>

#include <cmath>

#include "io/json.h"
#include "testing/says.h"

namespace redline::report {
namespace {

SweepRow row(const std::string& lr, const std::string& seed, const std::string& state, double eval_loss) {
  SweepRow r;
  r.name = "lr=" + lr + ",seed=" + seed;
  r.folder = "s/" + r.name;
  r.values = {lr, seed};
  r.group = lr;
  r.state = state;
  r.eval_loss = eval_loss;
  if (state == "waiting") return r;
  r.steps = state == "finished" ? 1200 : 300;
  r.of = 1200;
  r.tokens = 1e6;
  r.seconds = 80;
  r.loss = eval_loss - 0.1;
  r.tokens_per_s = 12500;
  r.eval_tokens = 65'000;
  return r;
}

SweepTable table() {
  return {{"optim.lr", "train.seed"},
          {"lr", "seed"},
          {row("0.001", "1", "finished", 3.2), row("0.001", "2", "finished", 3.0), row("0.002", "1", "hopeless", 2.5),
           row("0.002", "2", "waiting", kUnknown)}};
}

TEST(SweepTable, TheBestHasFinished) {
  EXPECT_EQ(table().best(), 1u);
  SweepTable none = table();
  none.rows.erase(none.rows.begin(), none.rows.begin() + 2);
  EXPECT_FALSE(none.best());
}

TEST(SweepTable, SeedsArePutTogether) {
  const std::vector<SweepGroup> groups = seed_groups(table());
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_NEAR(groups[0].mean, 3.1, 1e-12);
  EXPECT_NEAR(groups[0].deviation, std::sqrt(0.02), 1e-12);
  EXPECT_TRUE(std::isnan(groups[1].mean) && std::isnan(groups[1].deviation)) << "none of them finished";
  SweepTable alone = table();
  for (SweepRow& r : alone.rows) r.group = r.name;
  EXPECT_TRUE(seed_groups(alone).empty());
  EXPECT_EQ(groups_to_text(alone), "");
}

TEST(SweepTable, AsText) {
  EXPECT_EQ(to_text(table()),
            "   lr  seed  held out      loss      steps  tokens    time  tok/s  state\n"
            "0.001     1    3.2000    3.1000      1,200  1.00 M  1m 20s  12.5k  finished\n"
            "0.001     2    3.0000 *  2.9000      1,200  1.00 M  1m 20s  12.5k  finished\n"
            "0.002     1    2.5000    2.4000  300/1,200  1.00 M  1m 20s  12.5k  hopeless at step 300\n"
            "0.002     2         -         -          -       -       -      -  waiting\n");
  EXPECT_EQ(groups_to_text(table()),
            "Over seeds, mean ± standard deviation:\n"
            "   lr         held out    seeds that finished\n"
            "0.001  3.1000 ± 0.1414 *  2 of 2\n"
            "0.002                -    0 of 2\n");
}

TEST(SweepTable, AsCsv) {
  SweepTable of = table();
  of.rows.resize(1);
  of.rows[0].why = "a \"word\", and more";
  EXPECT_EQ(
      to_csv(of),
      "run,optim.lr,train.seed,eval_loss,eval_tokens,best,loss,steps,steps_asked,tokens,seconds,tokens_per_s,state,"
      "why\n"
      "\"lr=0.001,seed=1\",0.001,1,3.2,65000,1,3.1,1200,1200,1000000,80,12500,finished,\"a \"\"word\"\", and more\"\n");
}

// Losses after different training, or over different text, rank nothing: the table says so of runs that finished.
TEST(SweepTable, SaysWhereLossesAreNotFoundAlike) {
  SweepTable of = table();
  of.rows[2].tokens = 9e6;  // not finished: it is not ranked
  of.rows[2].eval_tokens = 1;
  EXPECT_TRUE(unlike_in_words(of).empty());
  of.rows[0].tokens = 1.01e6;  // packing
  EXPECT_TRUE(unlike_in_words(of).empty());
  of.rows[0].tokens = 16e6;
  ASSERT_EQ(unlike_in_words(of).size(), 1u);
  EXPECT_TRUE(testing::says(unlike_in_words(of)[0], {"1.00 M", "16.0 M tokens", "not", "train.max_tokens"}));
  of.rows[1].eval_tokens = 4096;
  ASSERT_EQ(unlike_in_words(of).size(), 2u);
  EXPECT_TRUE(testing::says(unlike_in_words(of)[1], {"4,096", "65,000 tokens", "train.eval_tokens"}));
  EXPECT_EQ(to_json(of)["unlike"].size(), 2u);
  EXPECT_EQ(to_json(of)["runs"][1]["eval_tokens"], 4096);
}

// Runs that were evaluated on what they learned from are compared, but nothing calls that held out.
TEST(SweepTable, SaysWhereNothingWasHeldOut) {
  EXPECT_TRUE(testing::says(to_text(table()), "held out"));
  SweepTable of = table();
  of.rows[0].trained_on = true;
  EXPECT_FALSE(testing::says(to_text(of) + groups_to_text(of), "held out"));
  EXPECT_TRUE(testing::says(to_text(of), "evaluated"));
  ASSERT_EQ(unlike_in_words(of).size(), 1u);
  EXPECT_TRUE(testing::says(unlike_in_words(of)[0], {"trained on", "data.eval"}));
  EXPECT_EQ(to_json(of)["runs"][0]["trained_on"], true);
}

TEST(SweepTable, AsJson) {
  const io::Json json = to_json(table());
  EXPECT_EQ(json["best"], "lr=0.001,seed=2");
  EXPECT_EQ(json["runs"][0]["values"]["optim.lr"], 0.001) << "a number";
  EXPECT_EQ(json["runs"][2]["state"], "hopeless");
  EXPECT_EQ(json["groups"][0]["runs"].size(), 2u);
  EXPECT_FALSE(json["groups"][0]["values"].contains("train.seed"));
}

}  // namespace
}  // namespace redline::report
