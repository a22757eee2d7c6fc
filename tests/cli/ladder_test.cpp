// redline ladder and redline tune as a user meets them, on a model of seconds; and the tiers and overlays of train.
#include <csignal>

#include "cli/program.h"
#include "io/json.h"
#include "testing/page_data.h"
#include "testing/says.h"

namespace redline::cli {
namespace {

using testing::says;

class LadderCommand : public ProgramTest {
 protected:
  static Words tiny(Words words) {
    for (const char* key : {"model.layers=1", "model.hidden=32", "model.heads=2", "model.head_dim=16", "model.ffn=48",
                            "train.seq_len=64", "train.batch_size=4", "train.accumulate=2", "train.max_steps=4"})
      words.emplace_back(key);
    words.insert(words.end(), {"--device", "cpu"});
    return words;
  }
};

TEST_F(LadderCommand, ShowsEveryRungAndWritesThePage) {
  Words words = tiny({"ladder", "--seconds", "1", "--html", "l.html", "--json", "l.json"});
  const Ran ran = run(words);
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(says(ran.out, {"naive", "tf32 products", "changes nothing: the CPU computes in fp32", "packing", "█",
                             "x before", "fp8 attention", "not there", "fused AdamW", "not separable: saves",
                             "data.packing=pack", "the full step: ", "l.json", "l.html"}));
  const io::Json json = io::parse_json(real_files().read(folder_ / "l.json"), "l.json");
  EXPECT_FALSE(json.at("stopped").get<bool>());
  bool packed = false;
  for (const io::Json& row : json.at("rows")) {
    if (row.at("name") != "packing") continue;
    packed = true;
    EXPECT_GT(row.at("tokens_per_s").get<double>(), 0);
    EXPECT_GT(row.at("memory_bytes").get<double>(), 0);
    EXPECT_GT(row.at("over_first").get<double>(), 0);
  }
  EXPECT_TRUE(packed);
  const io::Json page = testing::page_data(real_files().read(folder_ / "l.html"));
  EXPECT_EQ(page.at("page"), "ladder");
  EXPECT_EQ(page.at("rows").size(), json.at("rows").size());
}

TEST_F(LadderCommand, RanksMeasureTogether) {
  const Ran ran = run(tiny({"launch", "-n", "2", "--", "ladder", "--seconds", "1", "--json"}));
  ASSERT_EQ(ran.status, 0) << ran.err;
  const io::Json json = io::parse_json(ran.out, "what rank 0 printed");
  EXPECT_TRUE(says(json.at("device").get<std::string>(), {"2 ranks"}));
  int modes = 0;
  for (const io::Json& row : json.at("rows")) {
    if (row.at("name") != "ZeRO-1" && row.at("name") != "DDP") continue;
    EXPECT_EQ(row.at("state"), "measured") << row;
    EXPECT_GT(row.at("tokens_per_s").get<double>(), 0);
    ++modes;
  }
  EXPECT_EQ(modes, 2);
}

TEST_F(LadderCommand, LeavesOutAndMeasuresTiers) {
  Ran ran = run(tiny({"ladder", "--seconds", "1", "--without", "--markdown"}));
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(says(ran.out, {"| the full step |", "| without packing |", "data.packing=bucket"}));
  ran = run(tiny({"ladder", "--seconds", "1", "--tier", "fastest"}));
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(says(ran.out, {"tiers of quick", "safe", "fast ", "fastest", "the CPU only simulates fp8"}));
}

TEST_F(LadderCommand, BadInputIsOneSentence) {
  expect_bad_input({"ladder", "--tier", "faster"}, {"--tier takes safe, fast or fastest", "'faster'"});
  expect_bad_input({"ladder", "--tier", "safe", "--without"}, {"--without and --tier"});
  expect_bad_input({"ladder", "--html", "no/l.html"}, {"--html", "no"});
  expect_bad_input({"tune", "--allow", "dropout"}, {"--allow takes batch or fp8", "'dropout'"});
  expect_bad_input({"config", "--overlay", "none.toml"}, {"none.toml", "no such file"});
  write("bad.toml", "[kernels]\nlogits = 8\n");
  expect_bad_input({"config", "--overlay", "bad.toml"}, {"bad.toml:2", "kernels.logits"});
  write("wrong.toml", "[kernels]\nlogits_rows = -8\n");
  expect_bad_input({"config", "--overlay", "wrong.toml"}, {"wrong.toml:2", "kernels.logits_rows"});
  expect_bad_input(tiny({"train", "--tier", "fastest"}), {"--tier fastest", "--tier fast"});
}

TEST_F(LadderCommand, TiersAndOverlaysLieBetweenTheFileAndTheCommandLine) {
  write("own.toml", "[kernels]\ngraphs = \"auto\"\ntuning = \"on\"\nlogits_rows = 64\n");
  write("over.toml", "[kernels]\nlogits_rows = 128\n[train]\nbatch_size = 3\n");
  const Ran ran = run(
      {"config", "own.toml", "--tier", "safe", "--overlay", "over.toml", "train.batch_size=5", "train.max_steps=1"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(says(ran.out, {"graphs = \"off\"", "tuning = \"off\"", "logits_rows = 128", "batch_size = 5",
                             "deterministic = true"}));
}

TEST_F(LadderCommand, TuneWritesAnOverlayThatTrainTakes) {
  Ran ran = run(tiny({"tune", "--seconds", "1", "--html", "t.html"}));
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(says(ran.out, {"the start", "overlay: quick.tuned.toml"}));
  const std::string overlay = real_files().read(folder_ / "quick.tuned.toml");
  EXPECT_TRUE(says(overlay, {"# Found by `redline tune", "tokens/s"}));
  EXPECT_EQ(testing::page_data(real_files().read(folder_ / "t.html")).at("page"), "ladder");
  ran = run(tiny({"train", "--overlay", "quick.tuned.toml", "--out", "run"}));
  EXPECT_EQ(ran.status, 0) << ran.err;
  ran = run(tiny({"train", "--tier", "fast", "--out", "run2"}));
  EXPECT_EQ(ran.status, 0) << ran.err;
}

}  // namespace
}  // namespace redline::cli
