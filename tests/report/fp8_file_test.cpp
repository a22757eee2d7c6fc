// fp8.jsonl: a row for each look, and none for other steps.
#include <gtest/gtest.h>

#include <cmath>

#include "io/json.h"
#include "report/rows_file.h"
#include "testing/temp_folder.h"

namespace redline::report {
namespace {

TEST(Fp8File, HoldsWhatWasSeen) {
  const testing::TempFolder folder;
  const Path path = folder / "fp8.jsonl";
  RowsFile file = fp8_file(real_files(), path);
  train::StepMetrics m;
  m.step = 99;
  file.on(train::Stepped{m});
  EXPECT_FALSE(real_files().exists(path)) << "nobody looked";
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

TEST(Fp8File, IsCutBackToTheStepOfTheRun) {
  const testing::TempFolder folder;
  const auto write = [&](std::int64_t first_step, std::vector<std::int64_t> steps) {
    RowsFile file = fp8_file(real_files(), folder / "fp8.jsonl");
    train::RunHeader header;
    header.first_step = first_step;
    file.on(train::Started{header});
    for (const std::int64_t step : steps) {
      train::StepMetrics m;
      m.step = step;
      m.fp8.emplace(std::vector<model::Fp8Seen>{});
      file.on(train::Stepped{m});
    }
  };
  write(0, {1, 100, 200});
  write(150, {200});
  std::string want;
  for (const std::int64_t step : {1, 100, 200}) want += fmt::format("{{\"step\":{},\"tensors\":[]}}\n", step);
  EXPECT_EQ(real_files().read(folder / "fp8.jsonl"), want);
}

}  // namespace
}  // namespace redline::report
