// Runs on mixtures (data.weights), and on several held-out sets (data.eval = name=path).
#include <gtest/gtest.h>

#include <cmath>

#include "testing/temp_folder.h"
#include "train/run_here.h"

namespace redline::train {
namespace {

struct Texts {
  testing::TempFolder folder;
  Texts() {
    std::string some, lines;
    for (int i = 0; i < 400; ++i) some += fmt::format("line {} of a text that is short\n", i);
    for (int i = 0; i < 300; ++i)
      lines += fmt::format("{{\"text\":\"document {} {}\"}}\n", i, std::string(1 + i % 90, 'x'));
    write("a.txt", some);
    write("b.jsonl", lines);
    write("code.txt", std::string(3000, '{'));
  }
  void write(const std::string& name, const std::string& text) { real_files().replace(folder / name, text); }
  std::string path(const std::string& name) const { return (folder / name).string(); }

  config::Config mixture(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {fmt::format("data.train=[\"{}\",\"{}\"]", path("a.txt"), path("b.jsonl")),
                               "data.tokenizer=bytes", "data.weights=0.7,0.3", "data.documents=0", "model.vocab=300",
                               "data.shuffle_buffer=32", "train.max_steps=20"});
    return tiny_run(more);
  }
};

TEST(Mixture, EntriesHaveTheirSharesAndTheRunTellsThem) {
  const Texts texts;
  const Ran ran = run(texts.mixture(), texts.folder / "run");
  const StepMetrics& last = ran.seen.steps.back();
  ASSERT_EQ(last.sources.size(), 2u);
  EXPECT_EQ(last.sources[0].name, "a.txt");
  const double drawn = static_cast<double>(last.sources[0].tokens + last.sources[1].tokens);
  EXPECT_NEAR(last.sources[0].share, 0.7, 64 / drawn);
  EXPECT_GT(*last.sources[0].epochs, 0.1);
  EXPECT_FALSE(last.epoch);
  EXPECT_TRUE(any_has(ran.seen.notes, "shares of the training tokens: a.txt 7"));
  EXPECT_FALSE(any_has(ran.seen.warnings, "a second time"));
  ASSERT_TRUE(last.eval_loss && last.eval_bits_per_byte);  // of a part of both that training never sees
  EXPECT_NEAR(*last.eval_bits_per_byte, *last.eval_loss / std::log(2.0), 0.05);  // a token is a byte, but for ends
}

TEST(Mixture, AResumeGoesOnBitForBit) {
  const Texts texts;
  const config::Config whole = texts.mixture(), half = texts.mixture({"train.max_steps=10", "optim.schedule=constant"});
  config::Config straight = whole;
  straight.optim.schedule = "constant";
  const Ran one = run(straight, texts.folder / "one");
  run(half, texts.folder / "two");
  const Ran two = run(straight, texts.folder / "two", true);
  EXPECT_EQ(one.result.eval_loss, two.result.eval_loss);
  EXPECT_EQ(tensors(texts.folder / "one", 20), tensors(texts.folder / "two", 20));
  EXPECT_EQ(one.seen.steps.back().sources, two.seen.steps.back().sources);
}

TEST(Mixture, OtherWeightsBeginTheOrderAnew) {
  const Texts texts;
  run(texts.mixture({"train.max_steps=5"}), texts.folder / "run");
  const config::Config others = texts.mixture({"train.max_steps=10", "data.weights=1,1"});
  EXPECT_TRUE(error_of([&] { run(others, texts.folder / "run", true); }).find("data.weights") != std::string::npos);
  TrainOptions options;
  options.allow_change = true;
  device::CpuDevice device(2);
  const Ran ran = run_on(device, options, others, texts.folder / "run", true, real_files());
  EXPECT_TRUE(any_has(ran.seen.notes, "begun anew: the order of the data"));
  EXPECT_NEAR(ran.seen.steps.back().sources[0].share, 0.5, 0.05);
}

TEST(Mixture, KeysThatDoNotGoTogetherAreRefused) {
  const Texts texts;
  EXPECT_NE(error_of([&] { texts.mixture({"train.epochs=2"}); }).find("train.epochs (2"), std::string::npos);
  EXPECT_NE(error_of([&] { texts.mixture({"data.weights=1,2,3"}); }).find("3 weights and data.train 2 paths"),
            std::string::npos);
  EXPECT_NE(error_of([&] { texts.mixture({"data.weights=1,0"}); }).find("data.weights"), std::string::npos);
}

TEST(HeldOut, EachNamedSetHasItsLossAndTheFirstEndsTheRun) {
  const Texts texts;
  const config::Config c =
      texts.mixture({fmt::format("data.eval=[\"code={}\",\"web={}\"]", texts.path("code.txt"), texts.path("a.txt")),
                     "train.target_loss=4.5", "train.eval_every=2", "train.max_steps=60"});
  const Ran ran = run(c, texts.folder / "run");
  const StepMetrics& last = ran.seen.steps.back();
  ASSERT_EQ(last.eval_sets.size(), 2u);
  EXPECT_EQ(last.eval_sets[0].name, "code");
  EXPECT_EQ(last.eval_sets[1].name, "web");
  EXPECT_EQ(last.eval_loss, last.eval_sets[0].loss);
  EXPECT_NE(last.eval_sets[0].loss, last.eval_sets[1].loss);
  EXPECT_TRUE(last.eval_sets[1].bits_per_byte);
  const bool reached = last.eval_sets[0].loss <= 4.5;
  EXPECT_EQ(reached, any_has(ran.seen.endings, "train.target_loss"));
  EXPECT_EQ(ran.result.eval_loss, last.eval_loss);

  // Another set is other data.
  config::Config others = c;
  others.data.eval.pop_back();
  others.train.max_steps = 70;
  others.train.target_loss = 0;
  EXPECT_NE(error_of([&] { run(others, texts.folder / "run", true); }).find("data.eval"), std::string::npos);
  others.data.eval = c.data.eval;
  EXPECT_EQ(run(others, texts.folder / "run", true).result.steps, 70);
}

TEST(HeldOut, OneSetWithoutANameIsAsEver) {
  const Texts texts;
  const Ran ran =
      run(texts.mixture({fmt::format("data.eval={}", texts.path("a.txt")), "train.max_steps=3"}), texts.folder / "run");
  EXPECT_TRUE(ran.seen.steps.back().eval_sets.empty());
  EXPECT_TRUE(ran.seen.steps.back().eval_loss);
}

}  // namespace
}  // namespace redline::train
