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

// What ends the run is what the steps, and all that is a part of them, are counted by.
TEST(FirstRunRules, TheScheduleIsThatOfTheEndThatWasAskedFor) {
  const FirstText text{1e7, 1024};
  const FirstPlan hours{first_models()[0], 1e5, 6e7, 6, 0, false};  // ten minutes
  const auto ended = [&](const FirstEnd& end) { return end_as_asked(hours, text, end, device::Kind::cpu); };
  const auto setting = [&](const FirstPlan& plan, std::string_view key) {
    for (const FirstSetting& s : first_settings(plan, text, 1. / 6, device::Kind::cpu))
      if (s.key == key) return s;
    return FirstSetting{};
  };
  const auto whole = [&](const FirstEnd& end, std::string_view key) {
    return std::get<std::int64_t>(setting(ended(end), key).value);
  };
  EXPECT_EQ(ended({}).tokens, hours.tokens);
  EXPECT_EQ(ended({.tokens = 60'000}).tokens, 60'000);
  EXPECT_EQ(ended({.epochs = 2}).tokens, 2e7);
  EXPECT_EQ(ended({.tokens = 3e7, .epochs = 2}).tokens, 2e7);
  EXPECT_EQ(ended({.tokens = 9e9}).tokens, 9e9) << "ten minutes end nothing then";
  EXPECT_EQ(ended({.tokens = 9e9, .timed = true}).tokens, hours.tokens);
  EXPECT_EQ(ended({.steps = 100}).steps, 100);
  EXPECT_EQ(ended({.steps = 1e9, .timed = true}).steps, 0);
  EXPECT_EQ(ended({.steps = 1e9, .tokens = 60'000}).steps, 0);
  EXPECT_EQ(whole({.tokens = 60'000}, "optim.warmup_steps"), 60'000 / 512 / 50);
  EXPECT_EQ(whole({.tokens = 60'000}, "train.eval_every"), 6);
  EXPECT_EQ(whole({.steps = 100}, "optim.warmup_steps"), 2);
  FirstPlan asked = hours;
  asked.rows = 4;
  asked.accumulate = 2;
  asked = end_as_asked(asked, text, {.tokens = 409'600}, device::Kind::cpu);
  EXPECT_EQ(std::get<std::int64_t>(setting(asked, "optim.warmup_steps").value), 409'600 / (4 * 256 * 2) / 50);
  EXPECT_TRUE(says(setting(ended({.tokens = 60'000}), "train.batch_size").reason, "some 117 steps"));
  EXPECT_EQ(setting(ended({.tokens = 60'000}), "model.dropout").key, "") << "no text is seen twice";
  EXPECT_EQ(setting(hours, "model.dropout").key, "model.dropout");
  EXPECT_TRUE(says(setting(hours, "checkpoint.minutes").reason, "five times"));
  EXPECT_FALSE(says(setting(ended({.tokens = 60'000}), "checkpoint.minutes").reason, "five times"));
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
  // A model that trains in moments.
  const Words small_ = {"--device",         "cpu",          "model.layers=1",   "model.hidden=32",
                        "model.heads=2",    "model.ffn=64", "train.seq_len=64", "train.batch_size=2",
                        "train.max_steps=2"};
  void make_long() {  // enough for a tokenizer
    for (int i = 0; i < 30; ++i) write("my_texts/long" + std::to_string(i) + ".txt", tale(600, i));
  }
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
  make_long();
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

TEST_F(FirstRunTest, WhatLiesInItsFolderStays) {
  make_long();
  real_files().create_folders(folder_ / "own/tokenizer");
  write("own/tokenizer/tokenizer.json", "{}");
  write("own/tokenizer/vocab.txt", "precious");
  expect_bad_input(Words{"train", "my_texts", "--out", "own"} + small_, {"own/tokenizer", "of no run", "--out"});
  expect_bad_input(words_of("train quick --out own --device cpu train.max_steps=1"), {"own/tokenizer", "of no run"});
  EXPECT_EQ(text("own/tokenizer/tokenizer.json"), "{}");
  EXPECT_EQ(text("own/tokenizer/vocab.txt"), "precious");

  // What cannot begin leaves a folder as it was, also where its tokenizer was made already.
  const Words bad = Words{"train", "my_texts", "data.eval=nowhere"} + small_;
  real_files().create_folders(folder_ / "notes/tokenizer");
  write("notes/a.txt", "mine");
  for (const char* out : {"notes", "new"}) {
    EXPECT_EQ(run(bad + Words{"--out", out}).status, 2);
    EXPECT_EQ(real_files().list(folder_ / "notes").size(), 2u);
    EXPECT_TRUE(real_files().list(folder_ / "notes/tokenizer").empty());
    EXPECT_FALSE(exists("new"));
  }
  for (const Words& dry : {Words{}, Words{"--dry-run"}}) {
    expect_bad_input(Words{"train", "my_texts", "--out", "new", "model.vocab=300"} + small_ + dry,
                     {"model.vocab is 300", "has a vocabulary of"});
    EXPECT_FALSE(exists("new"));
  }
  must(Words{"train", "my_texts", "--out", "notes"} + small_);
  EXPECT_TRUE(exists("notes/a.txt") && exists("notes/tokenizer/tokenizer.json"));
}

// Runs beside the text, where `redline train .` puts them, are no text: neither when the folder is listed nor later.
TEST_F(FirstRunTest, RunsBelowTheTextAreNotRead) {
  must(Words{"train", "my_texts", "--out", "my_texts/first run"} + small_);
  EXPECT_TRUE(says(text("my_texts/first run/config.toml"), {"my_texts/0.txt\"", "my_texts/more/1.md\""}));
  must({"train", "--resume", "--out", "my_texts/first run", "--device", "cpu", "train.max_steps=4"});
  must({"export", "my_texts/first run", "--out", "my_texts/first run-model"});
  const Ran again = must(Words{"train", "my_texts", "--out", "my_texts/b"} + small_);
  EXPECT_TRUE(says(again.out, {"my_texts: 6 files", "2 folders of runs and models not read"}));
  must({"train", "--resume", "--out", "my_texts/b", "--device", "cpu", "train.max_steps=4"});
  const std::string line = "; cd my_texts && " + quoted(testing::program()) +
                           " train . >../stdout 2>../stderr --device cpu " +
                           "model.layers=1 model.hidden=32 model.heads=2 train.max_steps=1 --json";
  const Ran here = must(run_line("--version" + line));
  const io::Json json = io::parse_json(here.out, "stdout");
  EXPECT_EQ(json["outcome"], "finished");
  EXPECT_TRUE(json["folder"].get<std::string>().starts_with("runs/my_texts-"));
  EXPECT_TRUE(says(here.err, "3 folders of runs and models not read"));
}

TEST_F(FirstRunTest, PrintsWordsThatAShellReadsBack) {
  std::filesystem::rename(folder_ / "my_texts", folder_ / "my texts");
  std::filesystem::create_directory_symlink("..", folder_ / "my texts/link");
  const Ran ran = must(Words{"train", "my texts", "--out", "it's one"} + small_);
  EXPECT_TRUE(
      says(ran.out, {"redline sample 'it'\\''s one' --prompt", "redline train --resume --out 'it'\\''s one' ",
                     "--out 'it'\\''s one-model'", "1 link to a folder not followed, the first: my texts/link"}));
  expect_bad_input({"train", "it's one"}, {"redline report 'it'\\''s one'"});
}

// The tokenizer sees the text first, and a run that would end at its middle need not begin.
TEST_F(FirstRunTest, ABadLineIsToldBeforeAnythingIsMade) {
  real_files().create_folders(folder_ / "lines");
  std::string lines;
  for (int i = 0; i < 300; ++i) lines += "{\"text\": \"" + tale(1, i).substr(0, 20) + "\"}\n";
  write("lines/a.jsonl", lines + "{\"text\": 7}\n");
  write("lines/b.jsonl", lines);
  for (const Words& dry : {Words{}, Words{"--dry-run"}})
    expect_bad_input(Words{"train", "lines", "--out", "a"} + small_ + dry, {"a.jsonl:301", "data.on_error=skip"});
  write("lines/a.jsonl", lines + "{\"title\": \"a\"}\n");
  expect_bad_input(Words{"train", "lines", "--out", "a"} + small_,
                   {"a.jsonl:301", "data.text_field", "data.on_error=skip"});
  EXPECT_FALSE(exists("a"));
  const Ran ran = must(Words{"train", "lines", "--out", "a", "data.on_error=skip"} + small_);
  EXPECT_TRUE(says(ran.out, "1 malformed document passed over, the first: lines/a.jsonl:301"));
}

TEST_F(FirstRunTest, BytesOfAnyKindAreTakenWhereTheyAreAskedFor) {
  real_files().create_folders(folder_ / "latin");
  std::string latin;
  for (int i = 0; i < 2000; ++i) latin += "gr\xFC\xDF dich\n";
  write("latin/a.txt", latin);
  expect_bad_input(Words{"train", "latin", "--out", "a"} + small_, {"latin/a.txt", "data.tokenizer=bytes"});
  must(Words{"train", "latin", "--out", "a", "data.tokenizer=bytes"} + small_);
}

TEST_F(FirstRunTest, SamplesAreOfWholeCharacters) {
  real_files().create_folders(folder_ / "chinese");
  std::string chinese;
  for (int i = 0; i < 2000; ++i) chinese += "\xE5\xA4\xA9\xE5\x9C\xB0";  // two characters
  write("chinese/a.txt", chinese);
  const Ran ran = must(Words{"train", "chinese", "--out", "a", "train.max_steps=60"} + small_);
  EXPECT_TRUE(says(ran.out, {"--prompt \"\xE5\xA4\xA9\xE5\x9C\xB0", "|"}));
  EXPECT_EQ(ran.out.substr(ran.out.find("The last sample")).find("\\xe5|"), std::string::npos) << ran.out;
}

TEST_F(FirstRunTest, KeysThatGoWithChoices) {
  expect_bad_input(Words{"train", "my_texts", "--dry-run", "model.heads=3", "--device", "cpu"}, {"model.hidden (128)"});
  must({"train", "my_texts", "--dry-run", "model.init_from=" + kFixtures + "llama-mha", "--device", "cpu"});
  // A model of one's own has dropout, too, where the text is read often.
  real_files().create_folders(folder_ / "short");
  write("short/a.txt", tale(60, 1));
  must(Words{"train", "short", "--out", "a"} + small_ + Words{"train.max_steps=200"});
  EXPECT_TRUE(says(text("a/config.toml"), {"dropout = 0.1", "# chosen: the text is read about"}));
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
  expect_bad_input({"train", "my_texts/0.txt"},
                   {"a file of text", "`redline train my_texts`", "data.train=my_texts/0.txt"});
  expect_bad_input({"train", ""}, {"empty word", "DIR"});
  expect_bad_input({"plan", "", "--card", "h200"}, {"empty word", "CONFIG"});
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
