// A run's folder is read for all that it has: what is torn, missing or of another version costs a sentence. Its
// sessions are one account, and a run can be followed while it writes.
#include "report/run_record.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "io/json.h"
#include "report/page.h"
#include "report/rows_file.h"
#include "report/run_summary.h"
#include "testing/page_data.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::report {
namespace {

using testing::one_says;
using testing::says;

std::string row(int step, const std::string& more = "") {
  return fmt::format(
      "{{\"step\":{},\"time\":{},\"loss\":{},\"grad_norm\":1,\"lr\":0.001,\"step_ms\":100,\"tokens\":1000,"
      "\"tokens_per_s\":10000,\"padding\":0.1,\"tflops\":2,\"mfu\":{},\"mfu_palm\":0.6,\"data_wait_ms\":1,"
      "\"memory_gib\":2{}}}\n",
      step, 1e9 + 0.1 * step, 5.0 / step, step == 7 ? 0.75 : 0.5, more);
}

std::string rows(int from, int to) {
  std::string text;
  for (int step = from; step <= to; ++step) text += row(step);
  return text;
}

// With another value of a key than the row has.
std::string changed(std::string row, const std::string& key, const std::string& value) {
  const std::size_t begin = row.find("\"" + key + "\":") + key.size() + 3;
  return row.replace(begin, row.find_first_of(",}", begin) - begin, value);
}

// What the page draws of a run.
io::Json page_of(const RunRecord& run) {
  return testing::page_data(run_page({run}, {summarise(run, {})}, {}))["runs"][0];
}

class RunRecordTest : public ::testing::Test {
 protected:
  RunRecordTest() { write("config.toml", ""); }
  void write(const char* name, std::string_view text) { real_files().create(folder_ / name)->write(text); }
  RunRecord read() { return read_run(real_files(), folder_.path()); }
  testing::TempFolder folder_;
};

TEST_F(RunRecordTest, ANoteMayCountTheStepsAnew) {
  write("events.jsonl",
        "{\"time\":1e9,\"step\":0,\"kind\":\"started\",\"version\":1,\"steps\":0,\"first_step\":0,\"device\":\"CPU\"}\n"
        "{\"time\":1e9,\"step\":20,\"kind\":\"note\",\"text\":\"room for 30 steps\",\"steps\":30}\n");
  write("metrics.jsonl", rows(1, 20));
  const RunSummary s = summarise(read(), {});
  EXPECT_EQ(s.of, 30);
  EXPECT_EQ(s.state, "not finished");
}

TEST_F(RunRecordTest, AWholeRun) {
  write("config.toml", "[train]\nbatch_size = 8\n[data]\ntrain = [\"ping\"]\n");
  write("events.jsonl",
        "{\"time\":1e9,\"step\":0,\"kind\":\"started\",\"version\":1,\"steps\":20,\"first_step\":0,\"device\":\"CPU\","
        "\"memory\":{\"parameters\":100,\"total\":150}}\n"
        "{\"time\":1e9,\"step\":20,\"kind\":\"warning\",\"text\":\"slow\"}\n");
  write("metrics.jsonl", rows(1, 19) + row(20, ",\"eval_loss\":1.5"));
  const RunRecord run = read();
  EXPECT_TRUE(run.problems.empty()) << run.problems[0];
  ASSERT_EQ(run.rows(), 20u);
  EXPECT_EQ(run.tokens_so_far.back(), 20000);
  EXPECT_NEAR(run.seconds_so_far.back(), 2.0, 1e-6);
  const RunSummary s = summarise(run, {1e6});
  EXPECT_EQ(s.state, "finished");
  EXPECT_DOUBLE_EQ(s.last_eval, 1.5);
  EXPECT_NEAR(s.figure("mean_mfu"), (16 * 0.5 + 0.75) / 17, 1e-12) << "all but the first three";
  EXPECT_EQ(s.figure("peak_mfu"), 0.75);
  EXPECT_NEAR(s.extrapolations[0].seconds, 100, 1e-4) << "1e6 tokens at 10000 a second";
  const io::Json json = to_json(run, s);
  EXPECT_EQ(json["memory_bytes"]["parameters"], 100);
  EXPECT_EQ(json["warnings"][0]["text"], "slow");
  const std::vector<std::pair<std::string, std::string>> settings = {{"train.batch_size", "8"},
                                                                     {"data.train", "[\"ping\"]"}};
  EXPECT_EQ(run.settings, settings);
}

// An evaluation before the first step is no step: a run of three has its own figures, though they are its first.
TEST_F(RunRecordTest, AShortRunIsJudgedByTheStepsThatItHas) {
  write("metrics.jsonl", "{\"step\":0,\"time\":1e9,\"eval_loss\":5.5}\n" + rows(1, 3));
  const RunRecord run = read();
  ASSERT_EQ(run.rows(), 4u);
  EXPECT_EQ(steady_rows(run), (std::vector<std::size_t>{1, 2, 3}));
  EXPECT_GT(summarise(run, {}).figure("mean_tokens_per_s"), 0);
}

TEST_F(RunRecordTest, SetsThatAreTrainedOnReachThePage) {
  for (const bool trained_on : {true, false}) {
    write("events.jsonl", fmt::format("{{\"time\":1e9,\"step\":0,\"kind\":\"started\",\"version\":1,\"first_step\":0,"
                                      "\"trained_on\":[{}]}}\n",
                                      trained_on ? "\"eval\"" : ""));
    write("metrics.jsonl", rows(1, 3));
    const RunRecord run = read();
    const io::Json page = testing::page_data(run_page({run}, {summarise(run, {})}, {}))["runs"][0];
    EXPECT_EQ(page["trained_on"], trained_on);
  }
}

TEST_F(RunRecordTest, AnotherSetThatIsTrainedOnLeavesTheLossHeldOut) {
  write("events.jsonl",
        "{\"time\":1e9,\"step\":0,\"kind\":\"started\",\"version\":1,\"first_step\":0,"
        "\"trained_on\":[\"own\"],\"loss_trained_on\":false}\n");
  write("metrics.jsonl", rows(1, 3));
  EXPECT_FALSE(read().sessions.back().trained_on);
}

// Skipped at 4 and 9, gone back from 10 to 8, skipped at 9 again, killed, resumed after 6.
TEST_F(RunRecordTest, UpdatesThatWereNotMade) {
  const auto event = [](const char* kind, int step, const std::string& more) {
    return fmt::format("{{\"time\":1e9,\"step\":{},\"kind\":\"{}\",{}}}\n", step, kind, more);
  };
  write("events.jsonl", event("started", 0, "\"version\":1,\"first_step\":0") + event("skipped", 4, "\"text\":\"a\"") +
                            event("skipped", 9, "\"text\":\"b\"") + event("rolled_back", 8, "\"from\":10,\"to\":8") +
                            event("skipped", 9, "\"text\":\"c\"") +
                            event("started", 6, "\"version\":1,\"first_step\":6") +
                            event("skipped", 7, "\"text\":\"d\"") + event("skipped", 99, "\"text\":\"e\""));
  write("metrics.jsonl", rows(1, 11) + row(12, ",\"skipped\":5,\"rollbacks\":1"));
  const RunRecord run = read();
  const RunSummary s = summarise(run, {});
  EXPECT_EQ(s.updates_skipped, 5);
  EXPECT_EQ(s.rollbacks, 1);
  const io::Json page = testing::page_data(run_page({run}, {s}, {}))["runs"][0];
  EXPECT_EQ(page["skips"]["step"], io::Json({4, 7, 9, 12})) << "after all rows it stands at the last";
  EXPECT_EQ(page["skips"]["tokens"], io::Json({4000, 7000, 9000, 12000}));
  EXPECT_EQ(page["skips"]["n"], io::Json({1, 1, 2, 1}));
  EXPECT_EQ(page["skips"]["gone"], io::Json({false, false, true, false}));
  EXPECT_EQ(page["skips"]["text"], io::Json({"a", "d", "c", "e"}));
  EXPECT_EQ(page["went_back"]["to"]["step"], io::Json({8}));
  EXPECT_EQ(page["went_back"]["from"]["step"], io::Json({10}));
  EXPECT_EQ(page["went_back"]["from_step"], io::Json({10}));
  EXPECT_EQ(page["updates_skipped"], 5);
}

TEST_F(RunRecordTest, ThousandsOfSkippedUpdatesAreAMarkAStretch) {
  std::string events, metrics;
  for (int step = 1; step <= 5000; ++step) {
    events += fmt::format("{{\"time\":1e9,\"step\":{},\"kind\":\"skipped\",\"text\":\"{}\"}}\n", step, step);
    metrics += row(step);
  }
  write("events.jsonl", events);
  write("metrics.jsonl", metrics);
  const RunRecord run = read();
  const io::Json page = page_of(run);
  ASSERT_EQ(page["skips"]["n"].size(), 1000u);
  for (const io::Json& n : page["skips"]["n"]) EXPECT_EQ(n, 5);
  EXPECT_EQ(page["skips"]["text"][999], "5000");
  write("metrics.jsonl", "");
  const RunRecord none = read();
  EXPECT_TRUE(page_of(none)["skips"]["n"].empty());
}

TEST_F(RunRecordTest, TimeBetweenSessionsIsNotTrained) {
  write(
      "events.jsonl",
      "{\"kind\":\"started\",\"first_step\":0,\"steps\":20}\n{\"kind\":\"started\",\"first_step\":10,\"steps\":20}\n");
  std::string later;
  for (int step = 11; step <= 20; ++step)
    later += changed(row(step), "time", fmt::format("{}", 1e9 + 86400 + 0.1 * step));
  write("metrics.jsonl", rows(1, 10) + later);
  EXPECT_NEAR(read().seconds_so_far.back(), 2.0, 1e-3);
}

TEST_F(RunRecordTest, HalfALineAtTheEnd) {
  const std::string last = row(6);
  for (std::size_t cut = 1; cut < last.size(); ++cut) {
    write("metrics.jsonl", rows(1, 5) + last.substr(0, cut));
    const RunRecord run = read();
    ASSERT_EQ(run.rows(), 5u) << cut;
    ASSERT_TRUE(one_says(run.problems, {"metrics.jsonl", "half a line"})) << cut;
  }
}

TEST_F(RunRecordTest, LinesThatAreNotOursArePassedOver) {
  const std::pair<std::string, const char*> cases[] = {{"garbage\n[1]\n{\"no\":1}\n", "3 lines"},
                                                       {std::string(40 << 20, ' ') + "\n", "1 line"}};
  for (const auto& [lines, count] : cases) {
    write("metrics.jsonl", rows(1, 3) + lines + rows(4, 5));
    const RunRecord run = read();
    EXPECT_EQ(run.rows(), 5u);
    EXPECT_TRUE(one_says(run.problems, {count, "line 4"}));
  }
}

// A step without its row still was made.
TEST_F(RunRecordTest, TotalsCountTheStepsWhoseRowsAreLost) {
  write("events.jsonl",
        "{\"kind\":\"started\",\"first_step\":0,\"steps\":20}\n"
        "{\"kind\":\"started\",\"first_step\":10,\"steps\":20}\n");
  std::string later;  // the day after; the first row of the session is lost
  for (int step = 12; step <= 20; ++step)
    later += changed(row(step), "time", fmt::format("{}", 1e9 + 86400 + 0.1 * step));
  write("metrics.jsonl", rows(1, 4) + "\1\n" + rows(6, 10) + "?\n" + later);
  const RunRecord run = read();
  EXPECT_EQ(run.rows(), 18u);
  EXPECT_EQ(run.tokens_so_far.back(), 20000);
  EXPECT_NEAR(run.seconds_so_far.back(), 2.0, 1e-3);
  EXPECT_TRUE(one_says(run.problems, {"2 lines", "line 5"}));
  EXPECT_TRUE(one_says(run.problems, {"metrics.jsonl", "2 steps", "step 5"}));
}

TEST_F(RunRecordTest, ADamagedNumberOfAStepIsNoResume) {
  for (const int wrong : {2, 9, 70}) {
    write("metrics.jsonl", rows(1, 4) + changed(row(5), "step", std::to_string(wrong)) + rows(6, 10));
    const RunRecord run = read();
    EXPECT_EQ(run.steps, (std::vector<std::int64_t>{1, 2, 3, 4, 6, 7, 8, 9, 10})) << wrong;
    EXPECT_EQ(run.tokens_so_far.back(), 10000) << wrong;
    EXPECT_FALSE(run.problems.empty()) << wrong;
  }
}

TEST_F(RunRecordTest, ADamagedTimeIsNotTrained) {
  for (const char* wrong : {"900000000", "1900000000", "null"}) {
    write("metrics.jsonl", rows(1, 4) + changed(row(5), "time", wrong) + rows(6, 10));
    EXPECT_NEAR(read().seconds_so_far.back(), 1.0, 1e-3) << wrong;
  }
}

TEST_F(RunRecordTest, TheEvaluationBeforeTheFirstStepIsARow) {
  write("metrics.jsonl", "{\"step\":0,\"time\":1e9,\"eval_loss\":5.5}\n" + rows(1, 9) + row(10, ",\"eval_loss\":1.5"));
  const RunRecord run = read();
  EXPECT_TRUE(run.problems.empty()) << run.problems[0];
  ASSERT_EQ(run.rows(), 11u);
  EXPECT_EQ(run.steps[0], 0);
  EXPECT_EQ(run.column("eval_loss")[0], 5.5);
  EXPECT_EQ(run.tokens_so_far.back(), 10000);
  EXPECT_NEAR(run.seconds_so_far.back(), 1.0, 1e-6);
  const RunSummary s = summarise(run, {});
  EXPECT_EQ(s.first_loss, 5.0);
  EXPECT_EQ(s.best_eval, 1.5);
  const io::Json page = page_of(run);
  EXPECT_EQ(page["held_out"]["step"], io::Json({0, 10}));
  EXPECT_EQ(page["held_out"]["y"], io::Json({5.5, 1.5}));
  EXPECT_TRUE(page["curves"]["loss"]["y"][0].is_null());
}

TEST_F(RunRecordTest, AnotherVersionsFile) {
  write("config.toml", "[from]\nfuture = 2030-01-01\n");
  write("events.jsonl",
        "{\"kind\":\"started\",\"version\":9,\"memory\":7,\"header\":{},\"steps\":\"many\"}\n{\"kind\":\"new\"}\n");
  write("metrics.jsonl", "{\"step\":1,\"loss\":2.5,\"entropy\":{\"deep\":1}}\n{\"step\":2,\"loss\":\"?\"}\n");
  const RunRecord run = read();
  EXPECT_EQ(run.rows(), 2u);
  EXPECT_TRUE(std::isnan(run.column("loss")[1]));
  EXPECT_TRUE(one_says(run.problems, {"metrics.jsonl", "time, grad_norm, lr, step_ms, tokens, tokens_per_s, mfu"}));
  EXPECT_TRUE(one_says(run.problems, {"events.jsonl", "version 9"}));
  EXPECT_FALSE(run_page({run}, {summarise(run, {1e9})}, {}).empty());
}

TEST_F(RunRecordTest, WhateverTheNumbersThePageHoldsNumbersOnly) {
  std::string text;
  std::int64_t step = 0;
  for (const char* v : {"1e308", "-1e308", "0", "5e-324", "null", "1e99", "-7", "1e999"})
    text += fmt::format(
        "{{\"step\":{},\"time\":{},\"loss\":{},\"grad_norm\":{},\"lr\":{},\"step_ms\":{},\"tokens\":{},\"mfu\":{},"
        "\"eval_loss\":{},\"gpu_power_w\":{}}}\n",
        ++step * 1'000'000'000'000, v, v, v, v, v, v, v, v, v);
  write("metrics.jsonl", text);
  write("events.jsonl",
        "{\"kind\":\"started\",\"time\":1e300,\"device_memory\":-1,\"memory\":{\"parameters\":-5,\"total\":1e308}}\n");
  const RunRecord run = read();
  EXPECT_EQ(run.rows(), 7u) << "1e999 is no number that a double holds";
  const std::string page = run_page({run}, {summarise(run, {1e9})}, {});
  const io::Json data = testing::page_data(page)["runs"][0];  // which is no JSON where a NaN or an infinity is in it
  EXPECT_EQ(data["curves"]["loss"]["y"], io::Json({nullptr, nullptr, 0, 0, nullptr, 1e99, -7}));
}

TEST_F(RunRecordTest, ALongCurveKeepsItsMeansAndItsSpikes) {
  RunRecord run;
  for (std::int64_t step = 1; step <= 50'000; ++step) run.steps.push_back(step);
  for (auto& column : run.columns) column.assign(run.rows(), NAN);
  run.tokens_so_far = run.seconds_so_far = std::vector<double>(run.rows(), 1.0);
  std::vector<double>& loss = run.columns[Column("loss").index];
  for (std::size_t i = 0; i < loss.size(); ++i) loss[i] = i % 2 ? 3 : 1;
  loss[12'345] = 100;
  loss[12'346] = NAN;
  const io::Json data = page_of(run);
  const io::Json& curve = data["curves"]["loss"];
  ASSERT_EQ(curve["y"].size(), 1000u);
  EXPECT_EQ(data["x"]["step"].size(), 1000u);
  EXPECT_EQ(data["x"]["step"].back(), 50'000);
  EXPECT_EQ(curve["y"][0], 2);
  EXPECT_EQ(curve["low"][0], 1);
  EXPECT_EQ(curve["high"][0], 3);
  EXPECT_EQ(curve["high"][246], 100);
  EXPECT_FALSE(data["curves"].contains("mfu")) << "no row has one";
}

TEST_F(RunRecordTest, WithoutMetricsTheRestIsThere) {
  write("config.toml", "[train]\nbatch_size = 8\n");
  const RunRecord run = read();
  EXPECT_EQ(run.rows(), 0u);
  EXPECT_TRUE(one_says(run.problems, {"no metrics.jsonl"}));
  const std::string page = run_page({run}, {summarise(run, {1e9})}, {});
  EXPECT_TRUE(says(page, {"no metrics.jsonl", "batch_size = 8"}));
  EXPECT_TRUE(testing::page_data(page)["runs"][0]["curves"].empty());
}

TEST_F(RunRecordTest, SamplesByStep) {
  write("metrics.jsonl", rows(1, 3));
  const auto row = [](int step, const std::string& text) {
    return fmt::format("{{\"step\":{},\"samples\":[{{\"prompt\":\"p\",\"text\":\"{}\"}},{{\"text\":\"b\"}}]}}\n", step,
                       text);
  };
  write("samples.jsonl", row(10, "a") + row(20, "gone") + "{\"step\":5}\n" + row(20, "again") + "{\"step\":3");
  const RunRecord run = read();
  ASSERT_EQ(run.samples.size(), 4u);
  EXPECT_EQ(run.samples[2].step, 20);
  EXPECT_EQ(run.samples[2].prompt, "p");
  EXPECT_EQ(run.samples[2].text, "again") << "a later row of a step is the one that holds";
  EXPECT_TRUE(one_says(run.problems, {"samples.jsonl", "1 line", "line 3"}));
  EXPECT_TRUE(one_says(run.problems, {"samples.jsonl", "half a line"}));

  std::string many;
  for (int step = 1; step <= 500; ++step) many += row(step, "t");
  write("samples.jsonl", many);
  const RunRecord sampled = read();
  const io::Json shown = page_of(sampled)["samples"];
  ASSERT_EQ(shown.size(), 40u) << "20 steps of two samples";
  EXPECT_EQ(shown.front()["step"], 1);
  EXPECT_EQ(shown.back(), io::Json({{"step", 500}, {"prompt", ""}, {"text", "b"}}));
}

TEST_F(RunRecordTest, TensorsInEightBitsTheWorstFirst) {
  write("metrics.jsonl", rows(1, 30));
  const auto tensor = [](const char* name, const char* amax, double saturated, double zero) {
    return fmt::format("{{\"name\":\"{}\",\"format\":\"e4m3\",\"scale\":64,\"amax\":{},\"saturated\":{},\"zero\":{}}}",
                       name, amax, saturated, zero);
  };
  const auto look = [](int step, const std::string& tensors) {
    return fmt::format("{{\"step\":{},\"tensors\":[{}]}}\n", step, tensors);
  };
  write("fp8.jsonl", look(1, tensor("a", "1", 0, 0.1)) + look(20, tensor("gone", "1", 0, 0)) + "{\"step\":5}\n" +
                         look(10, tensor("a", "1", 0.5, 0.1) + "," + tensor("b", "1", 0, 0.2)) +
                         look(20, tensor("a", "1", 0, 0.1) + "," + tensor("b", "null", 0, 0.2) + ",7,{}"));
  const RunRecord run = read();
  EXPECT_EQ(run.fp8.steps, (std::vector<std::int64_t>{1, 10, 20}));
  EXPECT_TRUE(one_says(run.problems, {"fp8.jsonl", "1 line", "line 3"}));
  const io::Json shown = page_of(run)["fp8"];
  EXPECT_EQ(shown["step"], 20);
  EXPECT_EQ(shown["x"]["step"], io::Json({1, 10, 20}));
  ASSERT_EQ(shown["last"].size(), 2u) << "what was there at the last look";
  EXPECT_EQ(shown["last"][0]["name"], "b") << "it is not finite";
  EXPECT_TRUE(shown["last"][0]["outside"]);
  EXPECT_TRUE(shown["last"][0]["amax"].is_null());
  EXPECT_FALSE(shown["last"][1]["outside"]);
  ASSERT_EQ(shown["worst"].size(), 2u);
  EXPECT_EQ(shown["worst"][1]["name"], "a");
  EXPECT_EQ(shown["worst"][1]["saturated"], io::Json({0.0, 0.5, 0.0}));
}

// A field says whether the device is a card; runs of before it are known by the device's name.
TEST_F(RunRecordTest, MemoryThatIsFreeIsShownOfCardsOnly) {
  const auto card_memory = [&](const std::string& fields) {
    write("events.jsonl", "{\"kind\":\"started\",\"device_memory\":8," + fields + "}\n");
    return page_of(read())["card_memory"].get<int>();
  };
  EXPECT_EQ(card_memory("\"device\":\"Cortex\",\"card\":false"), 0);
  EXPECT_EQ(card_memory("\"device\":\"CPU-like card\",\"card\":true"), 8);
  EXPECT_EQ(card_memory("\"device\":\"CPU (2 threads)\""), 0);
  EXPECT_EQ(card_memory("\"device\":\"NVIDIA H200\""), 8);
}

TEST_F(RunRecordTest, RunsOfAFolder) {
  real_files().remove_all(folder_ / "config.toml");
  EXPECT_EQ(runs_of(real_files(), folder_.path()), std::vector{folder_.path()}) << "none";
  for (const char* name : {"b", "a10", "a9", "no run"}) real_files().create_folders(folder_ / name);
  write("notes.txt", "");
  write("b/metrics.jsonl", "");
  write("a9/events.jsonl", "");
  write("a10/config.toml", "");
  const std::vector<Path> runs = {folder_ / "a10", folder_ / "a9", folder_ / "b"};
  EXPECT_EQ(runs_of(real_files(), folder_.path()), runs);
  EXPECT_EQ(runs_of(real_files(), runs[0]), std::vector{runs[0]});
  EXPECT_EQ(runs_of(real_files(), folder_ / "b/metrics.jsonl"), std::vector{folder_ / "b/metrics.jsonl"});
  EXPECT_EQ(runs_of(real_files(), folder_ / "missing"), std::vector{folder_ / "missing"});
}

TEST_F(RunRecordTest, AFolderOfSomethingElseIsRefused) {
  real_files().remove_all(folder_ / "config.toml");
  EXPECT_THROW(read(), UserError);
  EXPECT_THROW(read_run(real_files(), folder_ / "missing"), UserError);
}

TEST_F(RunRecordTest, ALaterRowOfAStepIsTheOneThatHolds) {
  write("metrics.jsonl", rows(1, 8) + rows(5, 6));
  const RunRecord run = read();
  EXPECT_EQ(run.steps, (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}));
}

using train::Part;

// One of a session that began at `began`, after `start_up` seconds of start-up and `steps` of steps.
std::string session_row(double began, std::int64_t first_step, std::int64_t step, double start_up, double steps,
                        double saving = 0, const std::string& more = "") {
  return fmt::format(
      "{{\"began\":{},\"first_step\":{},\"step\":{},\"time\":{},\"tokens\":{},\"seconds\":{{\"data\":0,\"done_again\":"
      "0,\"evaluation\":0,\"sampling\":0,\"saving\":{},\"standing_still\":0,\"start_up\":{},\"steps\":{}}}{}}}\n",
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
  const RunGoodput run = read(session_row(1000, 0, 0, 5, 0) + session_row(1000, 0, 50, 5, 45, 2) +
                              session_row(1100, 50, 50, 3, 0) + session_row(1100, 50, 90, 3, 37));
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
  const std::string first = session_row(1000, 0, 50, 5, 45) + session_row(1000, 0, 50, 5, 45, 2) +
                            session_row(1000, 0, 60, 5, 55, 2) + session_row(1000, 0, 75, 5, 70, 2);
  RunGoodput run = read(first + session_row(1200, 50, 55, 3, 5));
  EXPECT_EQ(run.sessions[0].account.of(Part::steps), 45);
  EXPECT_EQ(run.sessions[0].account.of(Part::done_again), 25);
  EXPECT_EQ(run.sessions[0].account.of(Part::saving), 2);
  EXPECT_EQ(run.account().wall(), 208);
  // Before its first checkpoint all of its steps are.
  run = read(session_row(1000, 0, 0, 5, 0) + session_row(1000, 0, 9, 5, 20) + session_row(1200, 0, 5, 3, 5));
  EXPECT_EQ(run.sessions[0].account.of(Part::done_again), 20);
  EXPECT_EQ(run.sessions[0].account.of(Part::start_up), 5);
  // A checkpoint that turned out to be damaged costs two sessions.
  run = read(session_row(1000, 0, 20, 5, 15) + first + session_row(1200, 50, 80, 3, 30) +
             session_row(1300, 20, 30, 2, 10));
  EXPECT_EQ(run.sessions[0].account.of(Part::steps), 15);
  EXPECT_EQ(run.sessions[0].account.of(Part::done_again), 55);
  EXPECT_EQ(run.sessions[1].account.of(Part::steps), 0);
  EXPECT_EQ(run.sessions[1].account.of(Part::done_again), 30);
  EXPECT_EQ(run.account().wall(), 312);
}

TEST_F(RunGoodputTest, EnergyIsOfTheSessionsThatKnowIt) {
  const RunGoodput run =
      read(session_row(1000, 0, 100, 1, 9, 0, ",\"joules\":3600000") + session_row(1020, 100, 150, 1, 9) +
           session_row(1040, 150, 250, 1, 9, 0, ",\"joules\":400000"));
  const io::Json json = to_json(run);
  EXPECT_EQ(json["energy"]["joules"], 4e6);
  EXPECT_DOUBLE_EQ(json["energy"]["kwh"], 4 / 3.6);
  EXPECT_DOUBLE_EQ(json["energy"]["joules_per_token"], 2000);
  EXPECT_FALSE(to_json(read(session_row(1000, 0, 100, 1, 9))).contains("energy"));
}

TEST_F(RunGoodputTest, DamagedAndTornRowsArePassedOver) {
  const std::string whole = session_row(1000, 0, 10, 5, 10), next = session_row(1000, 0, 20, 5, 20);
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
  EXPECT_TRUE(says(problems_[0], {"goodput.jsonl", "6 lines"}));
  EXPECT_TRUE(to_json(read("")).empty());
}

// A clock that was set back makes no time negative.
TEST_F(RunGoodputTest, AClockThatWasSet) {
  const RunGoodput run = read(session_row(1000, 0, 10, 5, 10) + session_row(500, 10, 20, 5, 10));
  EXPECT_EQ(run.account().wall(), 30);
  EXPECT_EQ(run.account().of(Part::standing_still), 0);
}

TEST_F(RunGoodputTest, ThePageAndTheFiguresHaveIt) {
  read(session_row(1000, 0, 50, 5, 45) + session_row(1100, 50, 90, 3, 37, 0, ",\"joules\":7200000"));
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
