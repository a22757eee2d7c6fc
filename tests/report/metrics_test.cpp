// A metric of the table reaches every place that shows it, and the page of the documentation is the table.
#include "report/metrics.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <tuple>

#include "io/json.h"
#include "report/page.h"
#include "report/prometheus_file.h"
#include "report/rows_file.h"
#include "report/run_record.h"
#include "report/run_summary.h"
#include "report/tensorboard.h"
#include "testing/page_data.h"
#include "testing/paths.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::report {
namespace {

using testing::says;

// A step that has all of them, each with a value of its own.
train::StepMetrics full_step() {
  train::StepMetrics m;
  m.step = 7;
  m.time = 1.7e9;
  m.loss = 2.5;
  m.grad_norm = 1.25;
  m.lr = 3e-4;
  m.step_ms = 152;
  m.device_ms = 140;
  m.idle_ms = 12;
  m.tokens = 2045;
  m.epoch = 1.37;
  m.tokens_per_s = 13400;
  m.padding = 0.03;
  m.tflops = 0.05;
  m.mfu = 0.48;
  m.mfu_palm = 0.5;
  m.data_wait_ms = 1.5;
  m.truncated_tokens = 11;
  m.learned = 0.25;
  m.memory_gib = 0.75;
  m.eval_loss = 2.75;
  m.eval_tokens = 4096;
  m.eval_loss_average = 2.7;
  m.norms.emplace(std::vector<model::TensorNorm>{{"head", 0.5, 3, 0.25}});
  m.norms->noise_scale = 1e5;
  m.router.emplace(model::RouterFigures{2.25, 3.5, {0, 2}, {1.25, 0.75}, {{0.5, 1.5}, {2, 0.125}}}, false);
  m.eval_bits_per_byte = 1.0625;
  m.fp8.emplace(std::vector<model::Fp8Seen>{{"layer 0/qkv input", DType::e4m3, 64, 1.5, 0.002, 0.125},
                                            {"layer 1/o gradient", DType::e5m2, 1024, 0.5, 0, 0.25}});
  m.ranks = {.wait_ms = 4.5, .slowest = 3, .slowest_ms = 150, .median_ms = 147};
  m.goodput = 0.875;
  m.account.emplace();
  for (std::size_t p = 0; p < train::kParts.size(); ++p) m.account->seconds[p] = 100.5 + static_cast<double>(p);
  m.account->tokens = 1000;
  m.account->joules = 1250;
  m.gpu = device::GpuSample{};
  m.gpu->energy_j = 1260;
  m.gpu->utilisation = 0.9;
  m.gpu->memory = 0.875;
  m.gpu->temperature_c = 71;
  m.gpu->power_w = 690;
  m.gpu->clock_mhz = 1500;
  m.gpu->max_clock_mhz = 1980;
  m.gpu->throttle = "power cap";
  return m;
}

// One step through a sink: what it leaves in its folder, joined.
template <class Sink>
std::string written(Sink&& sink, const Path& folder, const train::StepMetrics& step = full_step()) {
  config::Config config;
  train::RunHeader header;
  header.config = &config;
  header.folder = folder;
  header.steps = 10;
  header.first_step = 6;
  sink.on(train::Started{header});
  sink.on(train::Stepped{step});
  sink.on(train::Finished{"done"});
  std::string all;
  for (const std::string& name : real_files().list(folder)) all += real_files().read(folder / name);
  return all;
}

TEST(Metrics, EachReachesEverySink) {
  const testing::TempFolder jsonl, tensorboard, prometheus;
  const std::string rows = written(metrics_file(real_files(), jsonl / "metrics.jsonl"), jsonl.path());
  const std::string events = written(TensorboardFile(real_files(), tensorboard.path()), tensorboard.path());
  const std::string gauges = written(PrometheusFile(real_files(), prometheus / "metrics.prom"), prometheus.path());
  const io::Json row = io::parse_json(rows, "row");
  const RunRecord record = read_run(real_files(), jsonl.path());
  const io::Json page = testing::page_data(run_page({record}, {summarise(record, {})}, {}));
  ASSERT_EQ(record.rows(), 1u);
  EXPECT_EQ(row.size(), kMetrics.size());
  std::set<std::string_view> tags, names;
  for (const Metric& m : kMetrics) {
    const std::optional<double> value = number_of(m, full_step());
    ASSERT_TRUE(value.has_value()) << m.key << ": give it a value in full_step()";
    ASSERT_TRUE(row.contains(m.key)) << m.key;
    EXPECT_FALSE(row[std::string(m.key)].is_null()) << m.key;
    if (row[std::string(m.key)].is_number()) {
      EXPECT_EQ(row[std::string(m.key)], *value) << m.key;
      EXPECT_EQ(record.column(Column(m))[0], *value) << m.key;
    }
    if (!m.tag.empty()) {
      EXPECT_TRUE(tags.insert(m.tag).second) << m.tag << " twice";
      EXPECT_TRUE(says(events, m.tag));
    }
    if (!m.gauge.name.empty()) {
      EXPECT_TRUE(names.insert(m.gauge.name).second) << m.gauge.name << " twice";
      EXPECT_TRUE(says(gauges, fmt::format("# HELP redline_{} {}\n", m.gauge.name, m.gauge.help)));
      const std::string name = fmt::format("\nredline_{}{{run=\"{}\"}} ", m.gauge.name, run_name(prometheus.path()));
      EXPECT_TRUE(says(gauges, fmt::format("{}{}\n", name, *value * m.gauge.factor))) << name;
    }
    const bool drawn = page["runs"][0]["curves"].contains(m.key);
    EXPECT_EQ(drawn, m.panel.section != Section::none) << m.key;
    EXPECT_FALSE(m.help.empty()) << m.key;
  }
}

// A name may be any text.
TEST(Metrics, FiguresOfNamesReachEverySink) {
  train::StepMetrics m = full_step();
  m.eval_sets = {{"web", 2.75, 1.0625}, {"code", 1.5, {}}};
  m.sources = {{"a \"b\"/c.jsonl", 700, 0.7, 1.25}, {"ping", 300, 0.3, {}}};
  const testing::TempFolder jsonl, tensorboard, prometheus;
  const std::string rows = written(metrics_file(real_files(), jsonl / "metrics.jsonl"), jsonl.path(), m);
  const std::string events = written(TensorboardFile(real_files(), tensorboard.path()), tensorboard.path(), m);
  const std::string gauges = written(PrometheusFile(real_files(), prometheus / "metrics.prom"), prometheus.path(), m);
  const io::Json row = io::parse_json(rows, "row");
  const RunRecord record = read_run(real_files(), jsonl.path());
  const io::Json page = testing::page_data(run_page({record}, {summarise(record, {})}, {}));
  const std::vector<std::tuple<std::string, std::string, double>> expected = {
      {"eval_loss", "web", 2.75},
      {"eval_loss", "code", 1.5},
      {"eval_bits_per_byte", "web", 1.0625},
      {"source_share", "a \"b\"/c.jsonl", 0.7},
      {"source_share", "ping", 0.3},
      {"source_epochs", "a \"b\"/c.jsonl", 1.25}};
  EXPECT_EQ(row.size(), kMetrics.size() + expected.size());
  ASSERT_EQ(record.named.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto& [key, name, value] = expected[i];
    EXPECT_EQ(row.at(key + "/" + name), value) << key << name;
    EXPECT_EQ(record.named[i].key, key);
    EXPECT_EQ(record.named[i].name, name);
    EXPECT_EQ(record.named[i].values, std::vector<double>{value});
    EXPECT_EQ(page["runs"][0]["named"][i]["y"][0], value);
    EXPECT_EQ(page["runs"][0]["named"][i]["step"][0], 7);
  }
  EXPECT_TRUE(says(events, {"eval/loss/code", "data/share/ping"}));
  EXPECT_TRUE(says(gauges, "redline_eval_loss_of{run=\"" + run_name(prometheus.path()) + "\",name=\"code\"} 1.5\n"));
  EXPECT_TRUE(says(gauges, "name=\"a \\\"b\\\"/c.jsonl\"} 0.7\n"));
}

// A run that goes back takes them back.
TEST(Metrics, FiguresOfNamesAreThoseOfTheStepsThatHold) {
  const testing::TempFolder folder;
  std::string text;
  for (const int step : {1, 2, 3, 2}) {
    train::StepMetrics m = full_step();
    m.step = step;
    m.eval_sets = {{"web", text.size() > 0 ? 1.0 * step : 9.0, {}}};
    text += metrics_row(m);
  }
  real_files().replace(folder / "metrics.jsonl", text);
  const RunRecord record = read_run(real_files(), folder.path());
  ASSERT_EQ(record.named.size(), 1u);
  EXPECT_EQ(record.named[0].steps, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(record.named[0].values, (std::vector<double>{9, 2}));
}

TEST(Metrics, TheEvaluationBeforeTheFirstStepHasItsSets) {
  train::Evaluated e{0, 5.5, 1e9};
  e.bits_per_byte = 2.5;
  e.tokens = 4096;
  e.sets = {{"web", 5.5, 2.5}, {"code", 4.5, {}}};
  EXPECT_EQ(evaluation_row(e),
            "{\"step\":0,\"time\":1000000000,\"eval_loss\":5.5,\"eval_bits_per_byte\":2.5,"
            "\"eval_tokens\":4096,\"eval_loss/web\":5.5,"
            "\"eval_loss/code\":4.5,\"eval_bits_per_byte/web\":2.5}\n");
}

TEST(Metrics, AFigureThatTheStepLacksIsLeftOut) {
  train::StepMetrics m;
  EXPECT_TRUE(std::holds_alternative<std::monostate>(kMetrics[Column("eval_loss").index].read(m)));
  EXPECT_TRUE(std::holds_alternative<std::monostate>(kMetrics[Column("gpu_power_w").index].read(m)));
  m.gpu = device::GpuSample{};
  EXPECT_TRUE(std::holds_alternative<std::nullptr_t>(kMetrics[Column("gpu_power_w").index].read(m)));
  EXPECT_EQ(number_of(kMetrics[Column("gpu_power_w").index], m), std::nullopt);
}

// They come every few seconds; Prometheus has the last ones until the next.
TEST(Metrics, PartsOfTheTimeStayInPrometheusBetweenTheirRows) {
  const testing::TempFolder folder;
  PrometheusFile file(real_files(), folder / "metrics.prom");
  config::Config config;
  train::RunHeader header;
  header.config = &config;
  header.folder = folder.path();
  header.steps = 10;
  file.on(train::Started{header});
  train::StepMetrics m = full_step();
  file.on(train::Stepped{m});
  m.account.reset();
  file.on(train::Stepped{m});
  file.on(train::Finished{"done"});
  EXPECT_NE(real_files().read(folder / "metrics.prom").find("redline_goodput_saving_seconds{"), std::string::npos);
}

TEST(Metrics, TheDocumentationIsWhatTheTableSays) {
  const Path page = Path(testing::source_folder()) / "docs" / "monitoring.md";
  std::string text = real_files().read(page);
  const std::size_t begin = text.find("| key | unit |"), end = text.find("\n\n", begin);
  ASSERT_NE(end, text.npos);
  if (std::getenv("REDLINE_UPDATE_DOCS"))
    real_files().replace(page, text.replace(begin, end + 1 - begin, metrics_as_markdown()));
  EXPECT_TRUE(says(text, "\n\n" + metrics_as_markdown() + "\n"))
      << "run tests_report once with REDLINE_UPDATE_DOCS=1, or paste what redline report --metrics prints";
}

}  // namespace
}  // namespace redline::report
