// samples.jsonl: rows that read back, and a file that is cut back where a run goes on.
#include <gtest/gtest.h>

#include "io/json.h"
#include "report/rows_file.h"
#include "testing/temp_folder.h"

namespace redline::report {
namespace {

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

TEST(SamplesFile, IsCutBackToTheStepOfTheRun) {
  const testing::TempFolder folder;
  const Path path = folder / "samples.jsonl";
  const auto write = [&](std::int64_t first_step, std::vector<std::int64_t> steps) {
    RowsFile file = samples_file(real_files(), path);
    train::RunHeader header;
    header.first_step = first_step;
    file.on(train::Started{header});
    for (const std::int64_t step : steps) file.on(train::Sampled{step, {{"p", "t"}}});
  };
  write(0, {});
  EXPECT_FALSE(real_files().exists(path));
  write(0, {2, 4, 6});
  write(4, {6, 8});
  std::string want;
  for (const std::int64_t step : {2, 4, 6, 8})
    want += fmt::format("{{\"step\":{},\"samples\":[{{\"prompt\":\"p\",\"text\":\"t\"}}]}}\n", step);
  EXPECT_EQ(real_files().read(path), want);
}

}  // namespace
}  // namespace redline::report
