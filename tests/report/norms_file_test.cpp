// norms.jsonl: a row for each look, and what a report makes of them.
#include <gtest/gtest.h>

#include <cmath>

#include "io/json.h"
#include "report/rows_file.h"
#include "report/run_norms.h"
#include "testing/temp_folder.h"

namespace redline::report {
namespace {

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
  EXPECT_FALSE(real_files().exists(path)) << "nobody looked";
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
  EXPECT_EQ(norms.steps, (std::vector<std::int64_t>{1, 5})) << "a later row is the one that holds";
  std::vector<std::size_t> looks;
  const io::Json shown = norms_json(norms, 100, looks);
  EXPECT_EQ(looks, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(shown["kinds"][0]["kind"], "qkv");
  EXPECT_EQ(shown["kinds"][0]["gradient"], io::Json({2.0, 4.0}));
  EXPECT_EQ(shown["kinds"][0]["change"], io::Json({0.2, 0.4}));
  ASSERT_EQ(shown["largest"].size(), 3u);
  EXPECT_EQ(shown["largest"][0]["name"], "layer 1/qkv");
  EXPECT_EQ(shown["largest"][2]["name"], "head") << "what is not known comes last";
  looks.clear();
  norms_json(norms, 1, looks);
  EXPECT_EQ(looks, std::vector<std::size_t>{1}) << "the last of a stretch";
  EXPECT_TRUE(read_norms(real_files(), folder / "none", problems).steps.empty());
}

}  // namespace
}  // namespace redline::report
