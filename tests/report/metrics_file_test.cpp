// metrics.jsonl holds one row a step, exact and in order, over crashes and resumes.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "report/metrics.h"
#include "report/rows_file.h"
#include "testing/failing_files.h"
#include "testing/temp_folder.h"

namespace redline::report {
namespace {

using Json = nlohmann::ordered_json;

train::StepMetrics metrics(std::int64_t step) {
  train::StepMetrics m;
  m.step = step;
  m.time = 1.7e9 + 0.123456 * static_cast<double>(step);
  m.loss = 1.0 / 3;
  m.grad_norm = 0.1;
  m.lr = 3e-4;
  m.step_ms = 152.3;
  m.tokens = 2045;
  m.tokens_per_s = 13400;
  return m;
}

train::RunHeader header(const config::Config& config, std::int64_t first_step) {
  train::RunHeader h;
  h.config = &config;
  h.first_step = first_step;
  return h;
}

// A run that goes on from `first` and makes the steps up to `last`.
void run(FileSystem& files, const Path& path, std::int64_t first, std::int64_t last) {
  const config::Config config;
  RowsFile file = metrics_file(files, path);
  file.on(train::Started{header(config, first)});
  for (std::int64_t step = first + 1; step <= last; ++step) file.on(train::Stepped{metrics(step)});
}

std::string rows(std::int64_t last) {
  std::string text;
  for (std::int64_t step = 1; step <= last; ++step) text += metrics_row(metrics(step));
  return text;
}

TEST(MetricsRow, HasTheKeysOfTheDesignInOrder) {
  train::StepMetrics m = metrics(7);
  std::vector<std::string> keys;
  const Json whole = Json::parse(metrics_row(m));
  for (const auto& [key, value] : whole.items()) keys.push_back(key);
  const std::vector<std::string> always = {"step",       "time",      "loss",    "grad_norm", "lr",
                                           "step_ms",    "device_ms", "idle_ms", "tokens",    "tokens_per_s",
                                           "padding",    "tflops",    "mfu",     "mfu_palm",  "data_wait_ms",
                                           "memory_gib", "goodput",   "skipped", "rollbacks"};
  EXPECT_EQ(keys, always);
  m.eval_loss = 2.5;
  const Json row = Json::parse(metrics_row(m));
  EXPECT_EQ(row.size(), always.size() + 1);
  EXPECT_EQ(row.at("eval_loss"), 2.5);
}

TEST(MetricsRow, DoublesReadBackTheSame) {
  train::StepMetrics m = metrics(1);
  for (const double v : {1.0 / 3, 0.1, 1e-300, 1.7976931348623157e308, 5e-324, 123456789.123456789, -0.0, 3.0}) {
    m.loss = v;
    const Json row = Json::parse(metrics_row(m));
    EXPECT_EQ(row.at("loss").get<double>(), v);
  }
}

TEST(MetricsRow, WhatIsNotFiniteIsNull) {
  train::StepMetrics m = metrics(1);
  m.loss = NAN;
  m.grad_norm = INFINITY;
  const Json row = Json::parse(metrics_row(m));
  EXPECT_TRUE(row.at("loss").is_null());
  EXPECT_TRUE(row.at("grad_norm").is_null());
}

TEST(MetricsFile, WritesOneRowAStep) {
  const testing::TempFolder folder;
  run(real_files(), folder / "run/metrics.jsonl", 0, 5);
  EXPECT_EQ(real_files().read(folder / "run/metrics.jsonl"), rows(5));
}

TEST(MetricsFile, IsCutBackToTheStepItGoesOnFrom) {
  const testing::TempFolder folder;
  const Path path = folder / "metrics.jsonl";
  run(real_files(), path, 0, 9);
  run(real_files(), path, 4, 6);
  EXPECT_EQ(real_files().read(path), rows(6));
  run(real_files(), path, 0, 2);  // nothing to resume: from the beginning
  EXPECT_EQ(real_files().read(path), rows(2));
}

TEST(MetricsFile, IsCutBackWhereTheRunGoesBack) {
  const testing::TempFolder folder;
  const Path path = folder / "metrics.jsonl";
  const config::Config config;
  RowsFile file = metrics_file(real_files(), path);
  file.on(train::Started{header(config, 0)});
  for (std::int64_t step = 1; step <= 9; ++step) file.on(train::Stepped{metrics(step)});
  train::RolledBack back;
  back.from = 9;
  back.to = 4;
  file.on(back);
  EXPECT_EQ(real_files().read(path), rows(4));
  for (std::int64_t step = 5; step <= 6; ++step) file.on(train::Stepped{metrics(step)});
  EXPECT_EQ(real_files().read(path), rows(6));
}

TEST(MetricsFile, ATornLastRowGoesAtEveryPlaceOfTheTear) {
  const testing::TempFolder folder;
  const Path path = folder / "metrics.jsonl";
  const std::string whole = rows(3), last = metrics_row(metrics(4));
  for (std::size_t cut = 0; cut < last.size(); ++cut) {
    real_files().create(path)->write(whole + last.substr(0, cut));
    run(real_files(), path, 4, 4);
    EXPECT_EQ(real_files().read(path), whole) << "torn after " << cut << " bytes";
  }
}

// One row that cannot be read costs that row: those behind it stay, up to the step that the run goes on from.
TEST(MetricsFile, ADamagedRowCostsOnlyItself) {
  const testing::TempFolder folder;
  const Path path = folder / "metrics.jsonl";
  const std::string row = metrics_row(metrics(3));
  const auto text = [&](const std::string& third, std::int64_t last) {
    std::string all = rows(2) + third + "\n";
    for (std::int64_t step = 4; step <= last; ++step) all += metrics_row(metrics(step));
    return all;
  };
  const auto replaced = [&](std::string_view part, std::string_view by) {
    return std::string(row)
        .replace(row.find(part), part.size(), by)
        .substr(0, row.size() - 1 + by.size() - part.size());
  };
  for (const std::string& third :
       {std::string(100, '\0'), std::string(), row.substr(0, row.size() / 2), replaced("\"step\"", "\"stop\""),
        replaced("\"step\":3", "\"step\":8"), replaced("\"step\":3", "\"step\":39"), replaced("0.1", "0\x01!")}) {
    real_files().create(path)->write(text(third, 9));
    ::testing::internal::CaptureStderr();
    run(real_files(), path, 6, 7);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(real_files().read(path), text(third, 7)) << third;
    EXPECT_NE(said.find("metrics.jsonl: 1 row cannot be read, the first is line 3; the others are kept"), said.npos)
        << third << ": " << said;
  }
  // Those that stand behind the last row of the run go with what comes after it.
  real_files().create(path)->write(rows(5) + "?\n" + metrics_row(metrics(7)) + metrics_row(metrics(8)));
  run(real_files(), path, 5, 6);
  EXPECT_EQ(real_files().read(path), rows(6));
}

// What was known before the first step has a row of its own, and a run that starts over has it once.
TEST(MetricsFile, TheEvaluationBeforeTheFirstStepIsStepZero) {
  const testing::TempFolder folder;
  const Path path = folder / "metrics.jsonl";
  const config::Config config;
  for (int session = 0; session < 2; ++session) {
    RowsFile file = metrics_file(real_files(), path);
    file.on(train::Started{header(config, 0)});
    file.on(train::Evaluated{0, 5.5, 1e9});
    file.on(train::Stepped{metrics(1)});
    file.on(train::Evaluated{1, 5.25, 1e9});  // comes with its step's row
  }
  EXPECT_EQ(real_files().read(path), "{\"step\":0,\"time\":1000000000,\"eval_loss\":5.5}\n" + rows(1));
  run(real_files(), path, 1, 2);
  EXPECT_EQ(real_files().read(path), "{\"step\":0,\"time\":1000000000,\"eval_loss\":5.5}\n" + rows(2));
}

TEST(MetricsFile, AWriteThatFailsIsTold) {
  const testing::TempFolder folder;
  testing::FailingFiles files;
  const config::Config config;
  RowsFile file = metrics_file(files, folder / "metrics.jsonl");
  file.on(train::Started{header(config, 0)});
  file.on(train::Stepped{metrics(1)});
  files.fail_at(0, testing::Failure::full_disk);
  EXPECT_THROW(file.on(train::Stepped{metrics(2)}), MachineError);
  EXPECT_EQ(real_files().read(folder / "metrics.jsonl"), rows(1)) << "half a row is none";
  EXPECT_THROW(file.on(train::BeforeCheckpoint{}), MachineError);
}

}  // namespace
}  // namespace redline::report
