// The sessions of a run as one account: what a crash lost, how long nothing ran, and nothing of it twice.
#include "report/run_goodput.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "report/rows_file.h"
#include "report/run_page.h"
#include "testing/page_data.h"
#include "testing/temp_folder.h"

namespace redline::report {
namespace {

using train::Part;

// One of a session that began at `began`, after `start_up` seconds of start-up and `steps` of steps.
std::string row(double began, std::int64_t first_step, std::int64_t step, double start_up, double steps,
                double saving = 0, const std::string& more = "") {
  return fmt::format(
      "{{\"began\":{},\"first_step\":{},\"step\":{},\"time\":{},\"tokens\":{},\"seconds\":{{\"data\":0,\"done_again\":"
      "0,"
      "\"evaluation\":0,\"sampling\":0,\"saving\":{},\"standing_still\":0,\"start_up\":{},\"steps\":{}}}{}}}\n",
      began, first_step, step, began + start_up + steps + saving, 10 * (step - first_step), saving, start_up, steps,
      more);
}

class RunGoodputTest : public ::testing::Test {
 protected:
  RunGoodput read(std::string_view text) {
    problems_.clear();
    real_files().create(folder_ / "goodput.jsonl")->write(text);
    return read_goodput(real_files(), folder_ / "goodput.jsonl", problems_);
  }
  testing::TempFolder folder_;
  std::vector<std::string> problems_;
};

TEST_F(RunGoodputTest, AStopLosesNothing) {
  const RunGoodput run =
      read(row(1000, 0, 0, 5, 0) + row(1000, 0, 50, 5, 45, 2) + row(1100, 50, 50, 3, 0) + row(1100, 50, 90, 3, 37));
  ASSERT_EQ(run.sessions.size(), 2u);
  EXPECT_EQ(run.sessions[0].until_next, 48);
  EXPECT_EQ(run.sessions[1].until_next, 0);
  const train::Account all = run.account();
  EXPECT_EQ(all.wall(), 1140 - 1000);
  EXPECT_EQ(all.of(Part::steps), 82);
  EXPECT_EQ(all.of(Part::start_up), 8);
  EXPECT_EQ(all.of(Part::saving), 2);
  EXPECT_EQ(all.of(Part::done_again), 0);
  EXPECT_EQ(all.of(Part::standing_still), 48);
  EXPECT_TRUE(problems_.empty());
}

TEST_F(RunGoodputTest, ACrashLosesWhatFollowedTheCheckpoint) {
  const std::string first =
      row(1000, 0, 50, 5, 45) + row(1000, 0, 50, 5, 45, 2) + row(1000, 0, 60, 5, 55, 2) + row(1000, 0, 75, 5, 70, 2);
  RunGoodput run = read(first + row(1200, 50, 55, 3, 5));
  EXPECT_EQ(run.sessions[0].account.of(Part::steps), 45);
  EXPECT_EQ(run.sessions[0].account.of(Part::done_again), 25);
  EXPECT_EQ(run.sessions[0].account.of(Part::saving), 2);
  EXPECT_EQ(run.account().wall(), 208);
  // Before its first checkpoint all of its steps are.
  run = read(row(1000, 0, 0, 5, 0) + row(1000, 0, 9, 5, 20) + row(1200, 0, 5, 3, 5));
  EXPECT_EQ(run.sessions[0].account.of(Part::done_again), 20);
  EXPECT_EQ(run.sessions[0].account.of(Part::start_up), 5);
  // A checkpoint that turned out to be damaged costs two sessions.
  run = read(row(1000, 0, 20, 5, 15) + first + row(1200, 50, 80, 3, 30) + row(1300, 20, 30, 2, 10));
  EXPECT_EQ(run.sessions[0].account.of(Part::steps), 15);
  EXPECT_EQ(run.sessions[0].account.of(Part::done_again), 55);
  EXPECT_EQ(run.sessions[1].account.of(Part::steps), 0);
  EXPECT_EQ(run.sessions[1].account.of(Part::done_again), 30);
  EXPECT_EQ(run.account().wall(), 312);
}

TEST_F(RunGoodputTest, EnergyIsOfTheSessionsThatKnowIt) {
  const RunGoodput run = read(row(1000, 0, 100, 1, 9, 0, ",\"joules\":3600000") + row(1020, 100, 150, 1, 9) +
                              row(1040, 150, 250, 1, 9, 0, ",\"joules\":400000"));
  const io::Json json = to_json(run);
  EXPECT_EQ(json["energy"]["joules"], 4e6);
  EXPECT_DOUBLE_EQ(json["energy"]["kwh"], 4 / 3.6);
  EXPECT_DOUBLE_EQ(json["energy"]["joules_per_token"], 2000);
  EXPECT_FALSE(to_json(read(row(1000, 0, 100, 1, 9))).contains("energy"));
}

TEST_F(RunGoodputTest, DamagedAndTornRowsArePassedOver) {
  const std::string whole = row(1000, 0, 10, 5, 10), next = row(1000, 0, 20, 5, 20);
  for (std::size_t cut = 1; cut < next.size(); ++cut) {
    const RunGoodput run = read(whole + next.substr(0, cut));
    ASSERT_EQ(run.account().wall(), 15) << cut;
    ASSERT_EQ(problems_.size(), 1u) << cut;
  }
  std::string negative = next, none = next, text = next;
  negative.replace(negative.find("\"steps\":20"), 10, "\"steps\":-9");
  none.replace(none.find("\"saving\""), 8, "\"having\"");
  text.replace(text.find("\"step\":20"), 9, "\"step\":\"\"");
  const RunGoodput run = read(whole + negative + none + text + "garbage\n[]\n{}\n" + next);
  EXPECT_EQ(run.account().wall(), 25);
  EXPECT_EQ(run.sessions.size(), 1u);
  ASSERT_EQ(problems_.size(), 1u);
  EXPECT_NE(problems_[0].find("goodput.jsonl: 6 lines that are not"), std::string::npos) << problems_[0];
  EXPECT_TRUE(to_json(read("")).empty());
}

// A clock that was set back makes no time negative.
TEST_F(RunGoodputTest, AClockThatWasSet) {
  const RunGoodput run = read(row(1000, 0, 10, 5, 10) + row(500, 10, 20, 5, 10));
  EXPECT_EQ(run.account().wall(), 30);
  EXPECT_EQ(run.account().of(Part::standing_still), 0);
}

TEST_F(RunGoodputTest, ThePageAndTheFiguresHaveIt) {
  read(row(1000, 0, 50, 5, 45) + row(1100, 50, 90, 3, 37, 0, ",\"joules\":7200000"));
  real_files().create(folder_ / "config.toml")->write("");
  const RunRecord record = read_run(real_files(), folder_.path());
  const RunSummary summary = summarise(record, {});
  for (const io::Json& json :
       {to_json(record, summary), testing::page_data(run_page({record}, {summary}, {}))["runs"][0]}) {
    const io::Json& goodput = json["goodput"];
    EXPECT_EQ(goodput["wall_seconds"], 140);
    EXPECT_DOUBLE_EQ(goodput["share"], 82.0 / 140);
    double sum = 0;
    for (const train::PartName& part : train::kParts) sum += goodput["seconds"][std::string(part.key)].get<double>();
    EXPECT_EQ(sum, 140);
    ASSERT_EQ(goodput["sessions"].size(), 2u);
    EXPECT_EQ(goodput["sessions"][0]["seconds_until_next"], 50);
    EXPECT_EQ(goodput["sessions"][1]["first_step"], 50);
    EXPECT_EQ(json["energy"]["kwh"], 2);
  }
}

// As a run writes it.
double steady_now = 0;
const train::Goodput::Clocks kByHand = {[] { return steady_now; }, [] { return 0.0; }, [] { return 1e9 + steady_now; }};

class GoodputFileTest : public ::testing::Test {
 protected:
  void start(std::int64_t first_step) {
    goodput_ = std::make_shared<train::Goodput>(std::nullopt, kByHand);
    train::RunHeader header;
    header.steps = 100;
    header.first_step = first_step;
    header.goodput = goodput_;
    file_.emplace(goodput_file(real_files(), path_));
    file_->on(train::Started{header});
    goodput_->turn_to(Part::steps);
  }
  void step(std::int64_t step, double seconds) {
    steady_now += seconds;
    train::StepMetrics m;
    m.step = step;
    m.tokens = 10;
    goodput_->stepped(m);
    file_->on(train::Stepped{m});
  }
  std::int64_t rows() {
    if (!real_files().exists(path_)) return 0;
    const std::string text = real_files().read(path_);
    return std::count(text.begin(), text.end(), '\n');
  }
  testing::TempFolder folder_;
  const Path path_ = folder_ / "goodput.jsonl";
  std::shared_ptr<train::Goodput> goodput_;
  std::optional<RowsFile> file_;
};

TEST_F(GoodputFileTest, RowsComeNowAndThenAndAroundCheckpoints) {
  start(0);
  EXPECT_EQ(rows(), 1);
  step(1, 0.5);
  EXPECT_EQ(rows(), 1) << "too early";
  step(2, 0.6);
  EXPECT_EQ(rows(), 2);
  file_->on(train::BeforeCheckpoint{});
  file_->on(train::Saved{2, "step_2", 1});
  EXPECT_EQ(rows(), 4);
  step(3, 3000);
  EXPECT_EQ(rows(), 5);
  step(4, 50);
  EXPECT_EQ(rows(), 5) << "a minute between two of an old session";
  steady_now += 11;
  file_->on(train::Evaluating{1, 2});
  EXPECT_EQ(rows(), 6) << "anything is a sign of life";
  file_->on(train::Finished{"done"});
  EXPECT_EQ(rows(), 7);
  file_->on(train::Note{"later"});
  steady_now += 1000;
  file_->on(train::Note{"much later"});
  EXPECT_EQ(rows(), 7);
  std::vector<std::string> problems;
  const RunGoodput run = read_goodput(real_files(), path_, problems);
  ASSERT_EQ(run.sessions.size(), 1u);
  EXPECT_NEAR(run.account().wall(), 3062.1, 1e-3);
  EXPECT_NEAR(run.account().of(Part::steps), 3062.1, 1e-3);
}

TEST_F(GoodputFileTest, AResumeAddsBehindWhatAKillLeft) {
  start(0);
  step(10, 10);
  file_.reset();
  real_files().append(path_)->write("{\"time\":12,\"ste");
  steady_now += 100;
  start(0);
  step(5, 5);
  std::vector<std::string> problems;
  const RunGoodput run = read_goodput(real_files(), path_, problems);
  EXPECT_TRUE(problems.empty());
  ASSERT_EQ(run.sessions.size(), 2u);
  EXPECT_NEAR(run.sessions[0].account.of(Part::done_again), 10, 1e-3);
  EXPECT_NEAR(run.sessions[1].account.of(Part::steps), 5, 1e-3);
}

TEST_F(GoodputFileTest, ARunWithNothingLeftToDoLeavesNoRow) {
  start(100);
  file_->on(train::Finished{"nothing is left to do"});
  EXPECT_EQ(rows(), 0);
}

}  // namespace
}  // namespace redline::report
