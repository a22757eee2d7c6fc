// Files of rows hold whole rows, exact and in order, over crashes and resumes.
#include "report/rows_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "report/metrics.h"
#include "report/page.h"
#include "report/prometheus_file.h"
#include "report/run_record.h"
#include "report/run_summary.h"
#include "report/small_run.h"
#include "testing/failing_files.h"
#include "testing/page_data.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::report {
namespace {

using testing::says;

// A run that goes on from `first` and makes the steps up to `last`.
void run_metrics(FileSystem& files, const Path& path, std::int64_t first, std::int64_t last) {
  RowsFile file = metrics_file(files, path);
  file.on(train::Started{SmallRun(50, first).header});
  for (std::int64_t step = first + 1; step <= last; ++step) file.on(train::Stepped{small_step(step)});
}

std::string text_of_rows(std::int64_t last) {
  std::string text;
  for (std::int64_t step = 1; step <= last; ++step) text += metrics_row(small_step(step));
  return text;
}

TEST(MetricsRow, HasTheKeysOfTheDesignInOrder) {
  train::StepMetrics m = small_step(7);
  std::vector<std::string> keys;
  const io::Json whole = io::Json::parse(metrics_row(m));
  for (const auto& [key, value] : whole.items()) keys.push_back(key);
  const std::vector<std::string> always = {"step",       "time",      "loss",    "grad_norm", "lr",
                                           "step_ms",    "device_ms", "idle_ms", "tokens",    "tokens_per_s",
                                           "padding",    "tflops",    "mfu",     "mfu_palm",  "data_wait_ms",
                                           "memory_gib", "goodput",   "skipped", "rollbacks"};
  EXPECT_EQ(keys, always);
  m.eval_loss = 2.5;
  const io::Json row = io::Json::parse(metrics_row(m));
  EXPECT_EQ(row.size(), always.size() + 1);
  EXPECT_EQ(row.at("eval_loss"), 2.5);
}

TEST(MetricsRow, DoublesReadBackTheSame) {
  train::StepMetrics m = small_step(1);
  for (const double v : {1.0 / 3, 0.1, 1e-300, 1.7976931348623157e308, 5e-324, 123456789.123456789, -0.0, 3.0}) {
    m.loss = v;
    const io::Json row = io::Json::parse(metrics_row(m));
    EXPECT_EQ(row.at("loss").get<double>(), v);
  }
}

TEST(MetricsRow, WhatIsNotFiniteIsNull) {
  train::StepMetrics m = small_step(1);
  m.loss = NAN;
  m.grad_norm = INFINITY;
  const io::Json row = io::Json::parse(metrics_row(m));
  EXPECT_TRUE(row.at("loss").is_null());
  EXPECT_TRUE(row.at("grad_norm").is_null());
}

TEST(MetricsFile, WritesOneRowAStep) {
  const testing::TempFolder folder;
  run_metrics(real_files(), folder / "run/metrics.jsonl", 0, 5);
  EXPECT_EQ(real_files().read(folder / "run/metrics.jsonl"), text_of_rows(5));
}

TEST(MetricsFile, IsCutBackToTheStepItGoesOnFrom) {
  const testing::TempFolder folder;
  const Path path = folder / "metrics.jsonl";
  run_metrics(real_files(), path, 0, 9);
  run_metrics(real_files(), path, 4, 6);
  EXPECT_EQ(real_files().read(path), text_of_rows(6));
  run_metrics(real_files(), path, 0, 2);  // nothing to resume: from the beginning
  EXPECT_EQ(real_files().read(path), text_of_rows(2));
}

TEST(MetricsFile, IsCutBackWhereTheRunGoesBack) {
  const testing::TempFolder folder;
  const Path path = folder / "metrics.jsonl";
  RowsFile file = metrics_file(real_files(), path);
  file.on(train::Started{SmallRun().header});
  for (std::int64_t step = 1; step <= 9; ++step) file.on(train::Stepped{small_step(step)});
  train::RolledBack back;
  back.from = 9;
  back.to = 4;
  file.on(back);
  EXPECT_EQ(real_files().read(path), text_of_rows(4));
  for (std::int64_t step = 5; step <= 6; ++step) file.on(train::Stepped{small_step(step)});
  EXPECT_EQ(real_files().read(path), text_of_rows(6));
}

TEST(MetricsFile, ATornLastRowGoesAtEveryPlaceOfTheTear) {
  const testing::TempFolder folder;
  const Path path = folder / "metrics.jsonl";
  const std::string whole = text_of_rows(3), last = metrics_row(small_step(4));
  for (std::size_t cut = 0; cut < last.size(); ++cut) {
    real_files().create(path)->write(whole + last.substr(0, cut));
    run_metrics(real_files(), path, 4, 4);
    EXPECT_EQ(real_files().read(path), whole) << "torn after " << cut << " bytes";
  }
}

// One row that cannot be read costs that row: those after it stay, up to the step that the run goes on from.
TEST(MetricsFile, ADamagedRowCostsOnlyItself) {
  const testing::TempFolder folder;
  const Path path = folder / "metrics.jsonl";
  const std::string row = metrics_row(small_step(3));
  const auto text = [&](const std::string& third, std::int64_t last) {
    std::string all = text_of_rows(2) + third + "\n";
    for (std::int64_t step = 4; step <= last; ++step) all += metrics_row(small_step(step));
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
    run_metrics(real_files(), path, 6, 7);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(real_files().read(path), text(third, 7)) << third;
    EXPECT_TRUE(says(said, {"metrics.jsonl", "1 row", "line 3"})) << third;
  }
  // Those that follow the last row of the run go with what comes after it.
  real_files().create(path)->write(text_of_rows(5) + "?\n" + metrics_row(small_step(7)) + metrics_row(small_step(8)));
  run_metrics(real_files(), path, 5, 6);
  EXPECT_EQ(real_files().read(path), text_of_rows(6));
}

// What was known before the first step has a row of its own, and a run that starts over has it once.
TEST(MetricsFile, TheEvaluationBeforeTheFirstStepIsStepZero) {
  const testing::TempFolder folder;
  const Path path = folder / "metrics.jsonl";
  for (int session = 0; session < 2; ++session) {
    RowsFile file = metrics_file(real_files(), path);
    file.on(train::Started{SmallRun().header});
    file.on(train::Evaluated{0, 5.5, 1e9});
    file.on(train::Stepped{small_step(1)});
    file.on(train::Evaluated{1, 5.25, 1e9});  // comes with its step's row
  }
  EXPECT_EQ(real_files().read(path),
            "{\"step\":0,\"time\":1000000000,\"eval_loss\":5.5,\"eval_tokens\":0}\n" + text_of_rows(1));
  run_metrics(real_files(), path, 1, 2);
  EXPECT_EQ(real_files().read(path),
            "{\"step\":0,\"time\":1000000000,\"eval_loss\":5.5,\"eval_tokens\":0}\n" + text_of_rows(2));
}

TEST(MetricsFile, AWriteThatFailsIsThrown) {
  const testing::TempFolder folder;
  testing::FailingFiles files;
  RowsFile file = metrics_file(files, folder / "metrics.jsonl");
  file.on(train::Started{SmallRun().header});
  file.on(train::Stepped{small_step(1)});
  files.fail_at(0, testing::Failure::full_disk);
  EXPECT_THROW(file.on(train::Stepped{small_step(2)}), MachineError);
  EXPECT_EQ(real_files().read(folder / "metrics.jsonl"), text_of_rows(1)) << "half a row is none";
  EXPECT_THROW(file.on(train::BeforeCheckpoint{}), MachineError);
}

TEST(Fp8File, HoldsWhatWasSeen) {
  const testing::TempFolder folder;
  const Path path = folder / "fp8.jsonl";
  RowsFile file = fp8_file(real_files(), path);
  train::StepMetrics m;
  m.step = 99;
  file.on(train::Stepped{m});
  EXPECT_FALSE(real_files().exists(path)) << "there was no look";
  m.step = 100;
  m.fp8.emplace(std::vector<model::Fp8Seen>{{"layer 0/qkv input", DType::e4m3, 64, 1.5, 0.002, 0.125},
                                            {"layer 1/o gradient", DType::e5m2, 1024, NAN, 0, 0.25}});
  file.on(train::Stepped{m});
  const std::string row = real_files().read(path);
  EXPECT_TRUE(row.starts_with("{\"step\":100,")) << row;
  EXPECT_EQ(row.find('\n'), row.size() - 1);
  const io::Json json = io::Json::parse(row);
  EXPECT_EQ(json["tensors"][0], io::Json({{"name", "layer 0/qkv input"},
                                          {"format", "e4m3"},
                                          {"scale", 64.0},
                                          {"amax", 1.5},
                                          {"saturated", 0.002},
                                          {"zero", 0.125}}));
  EXPECT_TRUE(json["tensors"][1]["amax"].is_null());
  EXPECT_EQ(m.fp8->most_saturated, "layer 0/qkv input");
  EXPECT_EQ(m.fp8->most_zero, "layer 1/o gradient");
}

// As are samples and norms: steps that the run goes back on leave the file.
TEST(RowsFile, FilesOfSomeStepsAreCutBackToTheStepOfTheRun) {
  struct Case {
    const char *name, *list;
    RowsFile (*make)(FileSystem&, Path);
    train::Event (*event)(std::int64_t step);
  };
  const auto stepped = [](std::int64_t step) {
    train::Stepped m;
    m.step = step;
    m.fp8.emplace(std::vector<model::Fp8Seen>{});
    m.norms.emplace(std::vector<model::TensorNorm>{});
    m.router.emplace(model::RouterFigures{}, true);
    return train::Event(m);
  };
  for (const Case& c : {Case{"fp8.jsonl", "tensors", fp8_file, stepped},
                        {"norms.jsonl", "tensors", norms_file, stepped},
                        {"router.jsonl", "layers", router_file, stepped},
                        {"samples.jsonl", "samples", samples_file, [](std::int64_t step) {
                           return train::Event(train::Sampled{step, {}});
                         }}}) {
    const testing::TempFolder folder;
    const Path path = folder / c.name;
    const auto write = [&](std::int64_t first_step, const std::vector<std::int64_t>& steps) {
      RowsFile file = c.make(real_files(), path);
      file.on(train::Started{SmallRun(50, first_step).header});
      for (const std::int64_t step : steps) file.on(c.event(step));
    };
    write(0, {});
    EXPECT_FALSE(real_files().exists(path)) << c.name;
    write(0, {2, 4, 6});
    write(4, {6, 8});
    std::string want;
    for (const std::int64_t step : {2, 4, 6, 8}) want += fmt::format("{{\"step\":{},\"{}\":[]}}\n", step, c.list);
    EXPECT_EQ(real_files().read(path), want);
  }
}

train::Stepped look(std::int64_t step, std::vector<model::TensorNorm> tensors) {
  train::StepMetrics m;
  m.step = step;
  m.norms.emplace(std::move(tensors));
  return {m};
}

TEST(NormsFile, HoldsWhatWasSeenAndNothingElse) {
  const testing::TempFolder folder;
  const Path path = folder / "norms.jsonl";
  RowsFile file = norms_file(real_files(), path);
  file.on(train::Stepped{});
  EXPECT_FALSE(real_files().exists(path)) << "there was no look";
  const train::Stepped known = look(100, {{"embedding", 0.5, 3, 0.25}, {"layer 0/qkv", 1, 4, 0.5}});
  EXPECT_EQ(known.norms->weight, 5);
  EXPECT_NEAR(*known.norms->update, std::sqrt(0.3125), 1e-12);
  file.on(known);
  const train::Stepped unknown = look(200, {{"embedding", NAN, 3, NAN}});
  EXPECT_FALSE(unknown.norms->update);
  file.on(unknown);
  EXPECT_EQ(real_files().read(path),
            "{\"step\":100,\"tensors\":[{\"name\":\"embedding\",\"gradient\":0.5,\"weight\":3.0,\"update\":0.25},"
            "{\"name\":\"layer 0/qkv\",\"gradient\":1.0,\"weight\":4.0,\"update\":0.5}]}\n"
            "{\"step\":200,\"tensors\":[{\"name\":\"embedding\",\"gradient\":null,\"weight\":3.0,\"update\":null}]}\n");
}

TEST(RunNorms, HaveTheMiddleOfAKindAndTheLargestUpdatesFirst) {
  const testing::TempFolder folder;
  RowsFile file = norms_file(real_files(), folder / "norms.jsonl");
  file.on(
      look(1, {{"layer 0/qkv", 1, 10, 1}, {"layer 1/qkv", 2, 10, 2}, {"layer 2/qkv", 9, 10, 3}, {"head", 5, 1, 1}}));
  file.on(look(9, {{"gone", 1, 1, 1}}));
  file.on(look(5, {{"layer 0/qkv", 4, 20, 1}, {"layer 1/qkv", 4, 10, 4}, {"head", 5, 1, NAN}}));
  std::vector<std::string> problems;
  const RunNorms norms = read_norms(real_files(), folder / "norms.jsonl", problems);
  EXPECT_EQ(problems, std::vector<std::string>{});
  EXPECT_EQ(norms.kinds.steps, (std::vector<std::int64_t>{1, 5})) << "a later row is the one that holds";
  const io::Json shown = norms_json(norms, {0, 1});
  EXPECT_EQ(shown["kinds"][0]["kind"], "qkv");
  EXPECT_EQ(shown["kinds"][0]["gradient"], io::Json({2.0, 4.0}));
  EXPECT_EQ(shown["kinds"][0]["change"], io::Json({0.2, 0.4}));
  ASSERT_EQ(shown["largest"].size(), 3u);
  EXPECT_EQ(shown["largest"][0]["name"], "layer 1/qkv");
  EXPECT_EQ(shown["largest"][2]["name"], "head") << "what is not known comes last";
  EXPECT_EQ(norms_json(norms, {1})["kinds"][0]["gradient"], io::Json({4.0}));
  EXPECT_TRUE(read_norms(real_files(), folder / "none", problems).kinds.steps.empty());
}

train::Stepped routed(std::int64_t step, std::vector<std::vector<double>> loads, bool look = true) {
  train::StepMetrics m;
  m.step = step;
  model::RouterFigures f{2, 0, {}, {}, std::move(loads)};
  for (std::size_t i = 0; i < f.loads.size(); ++i) {
    f.layers.push_back(2 * static_cast<std::int64_t>(i));
    f.entropy.push_back(0.5 + static_cast<double>(i));
  }
  m.router.emplace(std::move(f), look);
  return {m};
}

TEST(RouterFile, HoldsLoadsOfLooksAndNothingElse) {
  const testing::TempFolder folder;
  const Path path = folder / "router.jsonl";
  RowsFile file = router_file(real_files(), path);
  file.on(train::Stepped{});
  file.on(routed(1, {{1, 1}}, false));
  EXPECT_FALSE(real_files().exists(path)) << "there was no look";
  const train::Stepped m = routed(100, {{0.5, 1.5}, {2, 0}});
  EXPECT_EQ(m.router->largest_load, 2);
  EXPECT_EQ(m.router->smallest_load, 0);
  EXPECT_EQ(m.router->entropy, 1);
  file.on(m);
  EXPECT_EQ(real_files().read(path),
            "{\"step\":100,\"layers\":[{\"layer\":0,\"entropy\":0.5,\"loads\":[0.5,1.5]},"
            "{\"layer\":2,\"entropy\":1.5,\"loads\":[2.0,0.0]}]}\n");
  EXPECT_TRUE(says(metrics_row(m), {"\"largest_load/layer 2\":2", "\"smallest_load/layer 0\":0.5",
                                    "\"router_entropy/layer 2\":1.5", "\"largest_load\":2"}));
  EXPECT_EQ(metrics_row(routed(7, {{1, 1}}, false)).find('/'), std::string::npos)
      << "layers are in rows of looks alone";
}

TEST(RunRouters, HaveTheLooksThatHoldAndTellWhatDoesNotFit) {
  const testing::TempFolder folder;
  RowsFile file = router_file(real_files(), folder / "router.jsonl");
  for (const train::Stepped& m : {routed(1, {{1, 1}, {1, 1}}), routed(9, {{1, 1}, {1, 1}}),
                                  routed(5, {{0.5, 1.5}, {2, 0}}), routed(6, {{1, 1, 1}, {1, 1, 1}})})
    file.on(m);
  RowsFile metrics = metrics_file(real_files(), folder / "metrics.jsonl");
  for (const std::int64_t step : {1, 5, 6}) metrics.on(routed(step, {{1, 1}, {1, 1}}));
  const RunRecord run = read_run(real_files(), folder.path());
  EXPECT_EQ(run.routers.steps, (std::vector<std::int64_t>{1, 5}));
  ASSERT_EQ(run.routers.layers.size(), 2u);
  EXPECT_EQ(run.routers.layers[1].layer, 2);
  EXPECT_EQ(run.routers.layers[1].loads[1], (std::vector<float>{2, 0}));
  EXPECT_EQ(run.routers.layers[1].entropy, (std::vector<double>{1.5, 1.5}));
  EXPECT_TRUE(std::ranges::any_of(run.problems, [](const std::string& p) {
    return static_cast<bool>(says(p, {"router.jsonl", "1 row"}));
  }));
  const io::Json page = testing::page_data(run_page({run}, {summarise(run, {})}, {}))["runs"][0];
  EXPECT_EQ(page["loads"]["looks"], io::Json({{1.0, 1.0, 1.0, 1.0}, {0.5, 1.5, 2.0, 0.0}}));
  EXPECT_EQ(page["loads"]["layers"], io::Json({0, 2}));
  EXPECT_EQ(page["loads"]["experts"], 2);
  EXPECT_EQ(page["named"], io::Json::array()) << "figures by layer are in the heat map";
}

TEST(SamplesFile, HoldsWhatWasWritten) {
  const testing::TempFolder folder;
  samples_file(real_files(), folder / "samples.jsonl").on(train::Sampled{7, {{"a\n", "b\xFF\"c"}, {"", "d"}}});
  const std::string row = real_files().read(folder / "samples.jsonl");
  const io::Json json = io::Json::parse(row);
  EXPECT_EQ(json.at("step"), 7);
  EXPECT_EQ(json.at("samples")[0].at("prompt"), "a\n");
  EXPECT_EQ(json.at("samples")[0].at("text"), "b\xEF\xBF\xBD\"c");  // what is no text is replaced
  EXPECT_EQ(json.at("samples").size(), 2u);
  EXPECT_EQ(row.find('\n'), row.size() - 1);
}

TEST(PipelineFile, OneObjectAnInterval) {
  testing::TempFolder temp;
  const Path path = temp.path() / "data_pipeline.jsonl";
  {
    RowsFile file = pipeline_file(real_files(), path);
    train::RunHeader header;
    header.first_step = 7;
    file.on(train::Started{header});
    EXPECT_FALSE(real_files().exists(path));
    data::PipelineStats f;
    f.seconds = 5;
    f.slowest = "tokenize";
    f.stages = {{"read", 1, 10, 1000, 0.25, 0.5}, {"tokenize", 3, 10, 1000, 1, 0}};
    f.batches_ready = 1;
    f.batches_room = 4;
    file.on(train::Pipeline{f});
    train::StepMetrics metrics;
    metrics.step = 9;
    file.on(train::Stepped{metrics});
    file.on(train::Pipeline{f});
  }
  const std::vector<io::Json> rows = rows_in(path);
  ASSERT_EQ(rows.size(), 2u);
  const io::Json &first = rows[0], &second = rows[1];
  EXPECT_EQ(first["step"], 7);
  EXPECT_EQ(second["step"], 9);
  EXPECT_EQ(first["slowest"], "tokenize");
  EXPECT_EQ(first["stages"][1]["name"], "tokenize");
  EXPECT_EQ(first["stages"][1]["threads"], 3);
  EXPECT_EQ(first["stages"][0]["busy"], 0.25);
  EXPECT_EQ(first["batches_room"], 4);
}

TEST(EventsFile, WhatComesBeforeTheStartIsWrittenAfterIt) {
  const testing::TempFolder folder;
  const Path path = folder / "events.jsonl";
  {
    RowsFile file = events_file(real_files(), path, "redline 1");
    file.on(train::Note{"resuming after step 4"});
    file.on(train::Started{SmallRun(50, 4).header});
    train::StepMetrics m;
    m.step = 7;
    file.on(train::Stepped{m});
    file.on(train::Warning{"it is slow"});
    file.on(train::Saved{8, "runs/a/checkpoints/step_00000008", 0.5});
    file.on(train::Finished{"done"});
  }
  const std::vector<io::Json> all = rows_in(path);
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[0]["kind"], "started");
  EXPECT_EQ(all[0]["version"], kEventsVersion);
  EXPECT_EQ(all[0]["first_step"], 4);
  EXPECT_EQ(all[0]["memory"]["parameters"], 300 << 20);
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
  const std::vector<io::Json> all = rows_in(folder / "events.jsonl");
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
  const std::vector<io::Json> all = rows_in(folder / "events.jsonl");
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
  for (const char* line : {"redline_warnings_total{run=\"a\"} 2", "redline_skipped_updates{run=\"a\"} 2",
                           "redline_rollbacks{run=\"a\"} 1"})
    EXPECT_TRUE(says(prom, line));
}

TEST(EventsFile, ARunThatWasStoppedIsNotFinished) {
  const testing::TempFolder folder;
  RowsFile file = events_file(real_files(), folder / "events.jsonl", "");
  file.on(train::Started{SmallRun().header});
  train::Finished ending{"stopped by signal 2 after step 7"};
  ending.stopped = true;
  file.on(ending);
  EXPECT_EQ(rows_in(folder / "events.jsonl").back()["kind"], "stopped");
}

TEST(EventsFile, ATornRowGoesAndTheHistoryStays) {
  const testing::TempFolder folder;
  const Path path = folder / "events.jsonl";
  real_files().create(path)->write(std::string_view("{\"kind\":\"note\",\"text\":\"old\"}\n{\"kind\":\"no"));
  events_file(real_files(), path, "").on(train::Started{SmallRun().header});
  const std::vector<io::Json> all = rows_in(path);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["text"], "old");
  EXPECT_EQ(all[1]["kind"], "started");
}

TEST(EventsFile, BytesThatAreNoTextCostNothing) {
  const testing::TempFolder folder;
  RowsFile file = events_file(real_files(), folder / "events.jsonl", "");
  file.on(train::Started{SmallRun().header});
  file.on(train::Warning{"file \xFF\xFE is odd"});
  EXPECT_EQ(rows_in(folder / "events.jsonl").size(), 2u);
}

}  // namespace

}  // namespace redline::report
