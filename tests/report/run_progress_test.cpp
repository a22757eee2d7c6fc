// A run followed while it writes: whole lines, each once, and anew where the file was cut back.
#include "report/run_progress.h"

#include <gtest/gtest.h>

#include <cmath>

#include "testing/temp_folder.h"

namespace redline::report {
namespace {

class RunProgressTest : public ::testing::Test {
 protected:
  void add(const std::string& file, std::string_view text) { real_files().append(folder_ / file)->write(text); }
  testing::TempFolder folder_;
  RunProgress run_{folder_.path()};
};

TEST_F(RunProgressTest, NothingIsThereYet) {
  run_.look();
  EXPECT_EQ(run_.step(), 0);
  EXPECT_TRUE(run_.evaluations().empty());
  EXPECT_TRUE(std::isnan(run_.loss()) && std::isnan(run_.seconds_a_step()));
}

TEST_F(RunProgressTest, LinesAreTakenOnceTheyAreWhole) {
  add("events.jsonl", "{\"time\":100,\"kind\":\"started\",\"first_step\":0,\"steps\":40}\n");
  add("metrics.jsonl", "{\"step\":0,\"eval_loss\":5}\n{\"step\":1,\"time\":102,\"loss\":4}\n{\"step\":2,\"ti");
  run_.look();
  EXPECT_EQ(run_.step(), 1);
  EXPECT_EQ(run_.steps(), 40);
  EXPECT_TRUE(run_.evaluations().empty()) << "that before the first step is of no run's making";
  add("metrics.jsonl",
      "me\":104,\"loss\":3,\"eval_loss\":3.5}\n{\"step\":3,\"time\":106,\"loss\":null,\"eval_loss\":null}\n");
  run_.look();
  EXPECT_EQ(run_.step(), 3);
  EXPECT_TRUE(std::isnan(run_.loss()));
  EXPECT_EQ(run_.seconds_a_step(), 2);
  EXPECT_EQ(run_.evaluations().at(2), 3.5);
  EXPECT_TRUE(std::isinf(run_.evaluations().at(3)));
}

TEST_F(RunProgressTest, ARunThatGoesBackLosesItsLaterEvaluations) {
  const std::string first = "{\"step\":1,\"loss\":4,\"eval_loss\":4}\n",
                    second = "{\"step\":2,\"loss\":3,\"eval_loss\":3}\n";
  add("metrics.jsonl", first + second);
  run_.look();
  EXPECT_EQ(run_.evaluations().size(), 2u);
  real_files().truncate(folder_ / "metrics.jsonl", first.size());
  run_.look();
  EXPECT_EQ(run_.step(), 1);
  EXPECT_EQ(run_.evaluations().size(), 1u);
  // Cut back and longer again by the next look.
  add("metrics.jsonl", second);
  run_.look();
  real_files().truncate(folder_ / "metrics.jsonl", first.size());
  add("metrics.jsonl",
      "{\"step\":2,\"loss\":2.5}\n{\"step\":3,\"loss\":2,\"eval_loss\":2,\"lr\":0.5,\"grad_norm\":1}\n");
  run_.look();
  EXPECT_EQ(run_.step(), 3);
  EXPECT_EQ(run_.evaluations().count(2), 0u);
  EXPECT_EQ(run_.evaluations().at(3), 2);
}

}  // namespace
}  // namespace redline::report
