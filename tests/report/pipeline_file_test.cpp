// data_pipeline.jsonl has one whole object an interval and is not there when nothing is told.
#include <gtest/gtest.h>

#include "io/json.h"
#include "report/rows_file.h"
#include "testing/temp_folder.h"

namespace redline::report {
namespace {

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
  const std::string text = real_files().read(path);
  const std::size_t newline = text.find('\n');
  const io::Json first = io::parse_json(text.substr(0, newline), "first"),
                 second = io::parse_json(text.substr(newline + 1), "second");
  EXPECT_EQ(first["step"], 7);
  EXPECT_EQ(second["step"], 9);
  EXPECT_EQ(first["slowest"], "tokenize");
  EXPECT_EQ(first["stages"][1]["name"], "tokenize");
  EXPECT_EQ(first["stages"][1]["threads"], 3);
  EXPECT_EQ(first["stages"][0]["busy"], 0.25);
  EXPECT_EQ(first["batches_room"], 4);
}

}  // namespace
}  // namespace redline::report
