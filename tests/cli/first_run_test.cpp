// `redline train DIR` on a folder of text: what is chosen by which rule, what a user sees, and what is refused.
#include "cli/first_run.h"

#include <set>

#include "cli/program.h"
#include "io/json.h"

namespace redline::cli {
namespace {

TEST(FirstRunRules, TheVocabularyGrowsWithTheText) {
  EXPECT_EQ(first_vocabulary(100e3), 0) << "bytes";
  std::int64_t before = 0;
  for (const double bytes : {300e3, 3e6, 30e6, 100e6, 1e9, 100e9}) {
    EXPECT_GT(first_vocabulary(bytes), before) << bytes;
    before = first_vocabulary(bytes);
  }
  EXPECT_EQ(before, 32'768);
}

// A device that does so many operations a second, whatever it computes.
struct Machine {
  double flops;
  std::vector<std::int64_t> measured = {};  // by hidden

  FirstPlan plan(const FirstText& text, double seconds, double guess) {
    return plan_first_run(first_models(), text, seconds, guess, [&](const FirstModel& m, std::int64_t step) {
      EXPECT_GE(step, m.seq_len);
      measured.push_back(m.hidden);
      return flops / (6 * m.parameters(text.vocabulary));
    });
  }
};

TEST(FirstRunRules, TheModelIsTheLargestThatTimeAndTextBear) {
  const FirstText much{1e12, 8192};
  std::int64_t before = 0;
  for (const double flops : {1e9, 1e11, 1e13, 1e15}) {
    for (const double guess : {flops / 100, flops, flops * 100}) {  // whatever was guessed
      Machine machine{flops};
      const FirstPlan plan = machine.plan(much, 600, guess);
      const double parameters = plan.model.parameters(much.vocabulary);
      EXPECT_GE(plan.model.hidden, before);
      EXPECT_TRUE(plan.model.hidden == first_models()[0].hidden || plan.tokens_per_s * 600 >= 20 * parameters);
      for (const FirstModel& larger : first_models()) {
        const double more = larger.parameters(much.vocabulary);
        if (more > parameters) {
          EXPECT_LT(600 * flops / (6 * more), 20 * more) << flops;
        }
      }
      EXPECT_FALSE(plan.by_text);
      EXPECT_EQ(std::set(machine.measured.begin(), machine.measured.end()).size(), machine.measured.size());
      if (guess == flops * 100) before = plan.model.hidden;
    }
  }
  EXPECT_GT(before, first_models()[3].hidden);
  Machine fast{1e15};
  const FirstPlan little = fast.plan({300e3, 1024}, 600, 1e15);
  EXPECT_EQ(little.model.hidden, first_models()[0].hidden) << "the text bounds it";
  EXPECT_TRUE(little.by_text);
  EXPECT_LE(little.epochs, 20);
  EXPECT_EQ(
      plan_first_run(first_models(), much, 600, 1e12, [](const FirstModel&, std::int64_t) { return 0.0; }).tokens_per_s,
      0);
}

TEST(FirstRunRules, EverySettingIsAKeyWithAReason) {
  const FirstText text{1e6, 1024};
  for (const auto device : {device::Kind::cpu, device::Kind::cuda})
    for (const FirstModel& model : first_models()) {
      config::Config config;
      for (const FirstSetting& s : first_settings({model, 1e5, 2e7, 20, 0, true}, text, 1, device)) {
        const config::Key* const key = config::find_key(s.key);
        ASSERT_NE(key, nullptr) << s.key;
        config::assign(*key, s.value, "here", config);
        EXPECT_GT(s.reason.size(), 5u) << s.key;
        EXPECT_EQ(s.reason.find('\n'), s.reason.npos) << s.key;
      }
      EXPECT_EQ(config.model.hidden % config.model.heads, 0);
      EXPECT_GE(config.train.batch_size * config.train.seq_len * config.train.accumulate, 512);
      EXPECT_GT(config.model.dropout, 0) << "text is read twenty times";
      EXPECT_EQ(config.train.epochs, 20);
    }
}

class FirstRunTest : public ProgramTest {
 protected:
  FirstRunTest() {
    real_files().create_folders(folder_ / "my_texts/more");
    for (int i = 0; i < 6; ++i)
      write(i % 2 ? "my_texts/more/" + std::to_string(i) + ".md" : "my_texts/" + std::to_string(i) + ".txt",
            tale(400, i));
  }
  // Sentences over a few words, so that a model of seconds writes some of them.
  static std::string tale(int sentences, int seed) {
    const char* who[] = {"the king", "a fox", "the miller", "an old woman", "the bird"};
    const char* does[] = {"went to", "looked for", "came back from", "slept near", "sang of"};
    const char* where[] = {"the river", "the dark forest", "a small house", "the mill", "the hill"};
    std::string text;
    for (int i = 0; i < sentences; ++i) {
      const int n = (i * 7919 + seed * 104'729) >> 3;
      text += std::string(who[n % 5]) + " " + does[n / 5 % 5] + " " + where[n / 25 % 5] + ".\n";
    }
    return text;
  }
  std::string text(const std::string& name) { return real_files().read(folder_ / name); }
  const Words quick_ = {"--device", "cpu", "train.max_hours=0.002"};
};

TEST_F(FirstRunTest, TrainsSamplesReportsAndSaysWhatIsNext) {
  write("my_texts/picture.png", std::string("\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16));
  write("my_texts/table.csv", "a,b\n1,2\n");
  const Ran ran = must(Words{"train", "my_texts/", "--out", "a"} + quick_);
  EXPECT_TRUE(says(ran.out, {"my_texts/: 6 files", "2 files left aside", "the text is read as bytes", "measured here",
                             "The last sample", "report: a/report.html", "redline sample a --prompt",
                             "redline train --resume --out a", "redline export a"}));
  const std::string config = text("a/config.toml");
  EXPECT_TRUE(says(config, {"# chosen: ", "tokenizer = \"bytes\"", "fit_hours = true", "max_hours = 0.002",
                            "# chosen: the steps, and with them the rate's schedule"}));
  EXPECT_EQ(config.find("# chosen: ten minutes"), config.npos) << "the hours were given";
  EXPECT_EQ(config.find("picture.png"), config.npos);
  EXPECT_TRUE(exists("a/report.html") && exists("a/samples.jsonl"));
  EXPECT_TRUE(says(text("a/metrics.jsonl"), "eval_loss"));

  const Ran again = must({"train", "--resume", "--out", "a", "--device", "cpu", "train.max_hours=0.003"});
  EXPECT_TRUE(says(again.out, {"The last sample", "report: a/report.html", "train.max_hours=0.006"}));
  EXPECT_TRUE(says(text("a/config.toml"), {"# chosen: the steps, and with them", "max_hours = 0.003"}))
      << "reasons outlive a resume";
}

TEST_F(FirstRunTest, MoreTextGetsATokenizerAndKeysWin) {
  for (int i = 0; i < 30; ++i) write("my_texts/long" + std::to_string(i) + ".txt", tale(600, i));
  const Ran ran = must(Words{"train", "my_texts", "--out", "a", "model.layers=1", "model.hidden=32", "model.heads=2",
                             "model.ffn=64", "train.max_steps=20", "train.seq_len=64", "train.batch_size=2",
                             "optim.lr=1e-3", "--device", "cpu", "--json"});
  const io::Json json = io::parse_json(ran.out, "stdout");
  EXPECT_EQ(json["outcome"], "finished");
  EXPECT_EQ(json["steps"], 20);
  EXPECT_TRUE(says(ran.err, {"a tokenizer was trained on the text", "the model that was asked for, 1 layer of 32"}));
  EXPECT_TRUE(says(ran.err, "held out: my_texts")) << "a file, and not the last one whatever its size";
  EXPECT_TRUE(exists("a/tokenizer/tokenizer.json") && exists("a/report.html"));
  const std::string config = text("a/config.toml");
  EXPECT_TRUE(
      says(config, {"hidden = 32", "lr = 0.001", "max_steps = 20", "max_hours = 0.0", "/a/tokenizer/tokenizer.json"}));
}

TEST_F(FirstRunTest, ADryRunWritesNothing) {
  const Ran ran = must(Words{"train", "my_texts", "--out", "a", "--dry-run"} + quick_);
  EXPECT_TRUE(says(ran.out, {"my_texts: 6 files", "measured here", "dry run"}));
  EXPECT_FALSE(exists("a"));
  real_files().create_folders(folder_ / "tiny");
  write("tiny/a.txt", "hello\n");
  const Ran refused = run(Words{"train", "tiny", "--dry-run"} + quick_);
  EXPECT_EQ(refused.status, 2);
  EXPECT_TRUE(says(refused.err, "6 bytes of text are too few to hold a part out"));
}

TEST_F(FirstRunTest, WhatIsNoFolderOfTextGetsASentence) {
  real_files().create_folders(folder_ / "empty");
  expect_bad_input({"train", "empty"}, {"empty", "holds no text"});
  real_files().create_folders(folder_ / "pictures");
  write("pictures/a.png", std::string("\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16));
  expect_bad_input({"train", "pictures"}, {"pictures", "no text that can be trained on", "a.png"});
  real_files().create_folders(folder_ / "runs/b");
  write("runs/b/metrics.jsonl", "{}\n");
  expect_bad_input({"train", "runs"}, {"runs/b is a run", "--resume --out runs/b"});
  expect_bad_input({"train", "runs/b"}, {"runs/b is a run"});
  expect_bad_input({"train", kFixtures + "llama-mha"}, {"is a model", "model.init_from="});
  must({"data", "prepare", "--tokenizer", "bytes", "--out", "shards", "my_texts"});
  expect_bad_input({"train", "shards"}, {"token shards", "data.train=shards"});
  write("pictures/tokens.bin", "0123");
  expect_bad_input({"train", "pictures"}, {"tokens.bin", "data.train=pictures"});
  expect_bad_input({"train", "my_texts", "data.train=ping"}, {"my_texts", "data.train"});
  expect_bad_input({"train", "my_texts", "--resume", "--out", "a"}, {"--resume", "leave my_texts out"});
  expect_bad_input({"train", "runs/b", "my_texts"}, {"my_texts", "already"});
  expect_bad_input({"config", "my_texts"}, {"my_texts", "not a TOML file", "redline train my_texts"});
  expect_bad_input({"train", "gqa-180m"}, {"data.train names nothing"});
  EXPECT_FALSE(exists("a"));
}

}  // namespace
}  // namespace redline::cli
