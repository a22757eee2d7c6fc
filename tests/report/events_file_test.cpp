// events.jsonl keeps what happened, over kills and resumes; metrics.prom is always whole.
#include <gtest/gtest.h>

#include <limits>

#include "io/json.h"
#include "report/prometheus_file.h"
#include "report/rows_file.h"
#include "testing/temp_folder.h"

namespace redline::report {
namespace {

std::vector<io::Json> rows(const Path& path) {
  std::vector<io::Json> out;
  const std::string text = real_files().read(path);
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != text.npos; at = end + 1)
    out.push_back(io::parse_json(text.substr(at, end - at), "row"));
  return out;
}

struct SmallRun {
  config::Config config;
  program::MemoryPlan memory;
  train::RunHeader header;
  explicit SmallRun(std::int64_t first_step = 0) {
    memory.by_role[0] = 100;
    memory.total = 100;
    header.config = &config;
    header.memory = &memory;
    header.folder = "runs/a \"b\"";
    header.first_step = first_step;
    header.steps = 50;
  }
};

TEST(EventsFile, WhatIsToldBeforeTheStartComesAfterIt) {
  const testing::TempFolder folder;
  const Path path = folder / "events.jsonl";
  {
    RowsFile file = events_file(real_files(), path, "redline 1");
    file.on(train::Note{"resuming after step 4"});
    file.on(train::Started{SmallRun(4).header});
    train::StepMetrics m;
    m.step = 7;
    file.on(train::Stepped{m});
    file.on(train::Warning{"it is slow"});
    file.on(train::Saved{8, "runs/a/checkpoints/step_00000008", 0.5});
    file.on(train::Finished{"done"});
  }
  const std::vector<io::Json> all = rows(path);
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[0]["kind"], "started");
  EXPECT_EQ(all[0]["version"], kEventsVersion);
  EXPECT_EQ(all[0]["first_step"], 4);
  EXPECT_EQ(all[0]["memory"]["parameters"], 100);
  EXPECT_EQ(all[1]["text"], "resuming after step 4");
  EXPECT_EQ(all[1]["step"], 4);
  EXPECT_EQ(all[2]["kind"], "warning");
  EXPECT_EQ(all[2]["step"], 7);
  EXPECT_EQ(all[3]["folder"], "step_00000008");
  EXPECT_EQ(all[4]["kind"], "finished");
}

TEST(EventsFile, StepsThatAreNotKnownComeWithANote) {
  const testing::TempFolder folder;
  RowsFile file = events_file(real_files(), folder / "events.jsonl", "");
  SmallRun run;
  run.header.steps = 0;
  file.on(train::Started{run.header});
  file.on(train::Planned{{{"room for 30 steps"}}, 30});
  const std::vector<io::Json> all = rows(folder / "events.jsonl");
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["steps"], 0);
  EXPECT_EQ(all[1]["kind"], "note");
  EXPECT_EQ(all[1]["text"], "room for 30 steps");
  EXPECT_EQ(all[1]["steps"], 30);
}

TEST(EventsFile, HasUpdatesThatWereNotMadeWithTheirDocuments) {
  const testing::TempFolder folder;
  RowsFile file = events_file(real_files(), folder / "events.jsonl", "");
  PrometheusFile prometheus(real_files(), folder / "metrics.prom");
  train::Skipped skipped;
  skipped.text = "it was not made";
  skipped.step = 7;
  skipped.reason = "not finite";
  skipped.loss = std::numeric_limits<double>::quiet_NaN();
  skipped.documents = {3, 5};
  train::RolledBack back;
  back.text = "it went back";
  back.from = 9;
  back.to = 5;
  back.passed_over = {{6, {3, 5}}};
  train::StepMetrics m;
  m.step = 10;
  m.skipped = 2;
  m.rollbacks = 1;
  for (train::Observer* observer : {static_cast<train::Observer*>(&file), static_cast<train::Observer*>(&prometheus)}) {
    observer->on(train::Started{SmallRun().header});
    observer->on(skipped);
    observer->on(back);
    observer->on(train::Stepped{m});
    observer->on(train::Finished{"done"});
  }
  const std::vector<io::Json> all = rows(folder / "events.jsonl");
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[1]["kind"], "skipped");
  EXPECT_EQ(all[1]["step"], 7);
  EXPECT_EQ(all[1]["reason"], "not finite");
  EXPECT_TRUE(all[1]["loss"].is_null());
  EXPECT_EQ(all[1]["documents"], (io::Json{3, 5}));
  EXPECT_EQ(all[2]["kind"], "rolled_back");
  EXPECT_EQ(all[2]["text"], "it went back");
  EXPECT_EQ(all[2]["from"], 9);
  EXPECT_EQ(all[2]["to"], 5);
  EXPECT_EQ(all[2]["passed_over"], (io::Json{{{"draw", 6}, {"documents", {3, 5}}}}));
  const std::string prom = real_files().read(folder / "metrics.prom");
  for (const char* line :
       {"redline_warnings_total{run=\"a \\\"b\\\"\"} 2", "redline_skipped_updates{run=\"a \\\"b\\\"\"} 2",
        "redline_rollbacks{run=\"a \\\"b\\\"\"} 1"})
    EXPECT_NE(prom.find(line), prom.npos) << line << " in " << prom;
}

TEST(EventsFile, ARunThatWasStoppedIsNotFinished) {
  const testing::TempFolder folder;
  RowsFile file = events_file(real_files(), folder / "events.jsonl", "");
  file.on(train::Started{SmallRun().header});
  train::Finished ending{"stopped by signal 2 after step 7"};
  ending.stopped = true;
  file.on(ending);
  EXPECT_EQ(rows(folder / "events.jsonl").back()["kind"], "stopped");
}

TEST(EventsFile, ATornRowGoesAndTheHistoryStays) {
  const testing::TempFolder folder;
  const Path path = folder / "events.jsonl";
  real_files().create(path)->write(std::string_view("{\"kind\":\"note\",\"text\":\"old\"}\n{\"kind\":\"no"));
  events_file(real_files(), path, "").on(train::Started{SmallRun().header});
  const std::vector<io::Json> all = rows(path);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["text"], "old");
  EXPECT_EQ(all[1]["kind"], "started");
}

TEST(EventsFile, BytesThatAreNoTextCostNothing) {
  const testing::TempFolder folder;
  RowsFile file = events_file(real_files(), folder / "events.jsonl", "");
  file.on(train::Started{SmallRun().header});
  file.on(train::Warning{"file \xFF\xFE is odd"});
  EXPECT_EQ(rows(folder / "events.jsonl").size(), 2u);
}

TEST(PrometheusFile, IsReplacedAndSaysHowItStands) {
  const testing::TempFolder folder;
  const Path path = folder / "metrics.prom";
  PrometheusFile file(real_files(), path);
  file.on(train::Started{SmallRun().header});
  EXPECT_NE(real_files().read(path).find("redline_running{run=\"a \\\"b\\\"\"} 1\n"), std::string::npos);
  EXPECT_NE(real_files().read(path).find("redline_step{"), std::string::npos);
  EXPECT_EQ(real_files().read(path).find("redline_loss{"), std::string::npos) << "no step is done yet";
  train::StepMetrics m;
  m.step = 7;
  m.loss = NAN;
  m.mfu = 0.5;
  m.mfu_palm = 0.625;
  m.gpu = device::GpuSample{};
  m.gpu->power_w = 300;
  file.on(train::Stepped{m});
  file.on(train::Warning{"x"});
  file.on(train::Finished{"done"});
  const std::string text = real_files().read(path);
  for (const char* line :
       {"redline_running{run=\"a \\\"b\\\"\"} 0\n", "redline_step{run=\"a \\\"b\\\"\"} 7\n", "} NaN\n",
        "redline_mfu_ratio{run=\"a \\\"b\\\"\"} 0.5\n", "redline_mfu_palm_ratio{run=\"a \\\"b\\\"\"} 0.625\n",
        "# TYPE redline_warnings_total counter\n", "redline_warnings_total{run=\"a \\\"b\\\"\"} 1\n",
        "redline_gpu_power_watts"})
    EXPECT_NE(text.find(line), std::string::npos) << line << " is missing in\n" << text;
  EXPECT_EQ(text.find("redline_gpu_temperature"), std::string::npos) << "what the card does not tell is left out";
  EXPECT_EQ(real_files().list(folder.path()), std::vector<std::string>{"metrics.prom"});
}

}  // namespace
}  // namespace redline::report
