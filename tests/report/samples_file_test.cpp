// samples.jsonl: rows that read back, and a file that is cut back where a run goes on.
#include "report/samples_file.h"

#include <gtest/gtest.h>

#include "io/json.h"
#include "testing/temp_folder.h"

namespace redline::report {
namespace {

TEST(SamplesFile, HoldsWhatWasWritten) {
  const std::string row = samples_row(7, {{"a\n", "b\xFF\"c"}, {"", "d"}});
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
    SamplesFile file(real_files(), path);
    train::RunHeader header;
    header.first_step = first_step;
    file.started(header);
    for (const std::int64_t step : steps) file.sampled(step, {{"p", "t"}});
  };
  write(0, {});
  EXPECT_FALSE(real_files().exists(path));
  write(0, {2, 4, 6});
  write(4, {6, 8});
  std::string want;
  for (const std::int64_t step : {2, 4, 6, 8}) want += samples_row(step, {{"p", "t"}});
  EXPECT_EQ(real_files().read(path), want);
}

}  // namespace
}  // namespace redline::report
