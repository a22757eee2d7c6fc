// Runs on conversations (data.chat), on mixtures (data.weights) and on several held-out sets (data.eval = name=path).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/log.h"
#include "data/chat_folder.h"
#include "data/shards/prepare.h"
#include "io/json.h"
#include "testing/temp_folder.h"
#include "train/tiny_run.h"

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
  void write(const std::string& name, const std::string& text) const { real_files().replace(folder / name, text); }
  std::string path(const std::string& name) const { return (folder / name).string(); }
  // The lines, of which one is no JSON.
  void write_line(const std::string& lines, const std::string& name, int bad) const {
    std::size_t at = 0;
    for (int line = 1; line < bad; ++line) at = lines.find('\n', at) + 1;
    std::string text = lines;
    text.replace(at, 1, "?");
    real_files().replace(folder / name, text);
  }

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
  EXPECT_TRUE(says(error_of([&] { run(others, texts.folder / "run", true); }), {"data.weights"}));
  const Ran ran = go_on(others, texts.folder / "run", true);
  EXPECT_TRUE(any_has(ran.seen.notes, "begun anew: the order of the data"));
  EXPECT_NEAR(ran.seen.steps.back().sources[0].share, 0.5, 0.05);
}

TEST(Mixture, KeysThatDoNotGoTogetherAreRefused) {
  const Texts texts;
  EXPECT_TRUE(says(error_of([&] { texts.mixture({"train.epochs=2"}); }), {"train.epochs (2"}));
  EXPECT_TRUE(says(error_of([&] { texts.mixture({"data.weights=1,2,3"}); }), {"3 weights and data.train 2 paths"}));
  EXPECT_TRUE(says(error_of([&] { texts.mixture({"data.weights=1,0"}); }), {"data.weights"}));
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
  EXPECT_TRUE(says(error_of([&] { run(others, texts.folder / "run", true); }), {"data.eval"}));
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

// The same weights on the same text have the same loss, however rows make batches and batches make steps.
TEST(HeldOutTokens, TheLossDoesNotChangeWithTheBatch) {
  const testing::TempFolder temp;
  std::optional<double> first;
  for (const auto& [batch, accumulate] : {std::pair{1, 4}, std::pair{4, 1}, std::pair{32, 1}, std::pair{3, 2}}) {
    const Ran ran = run(
        tiny_run({fmt::format("train.batch_size={}", batch), fmt::format("train.accumulate={}", accumulate),
                  "train.eval_tokens=3000", "model.dropout=0", "train.max_steps=1", "optim.lr=0", "optim.min_lr=0"}),
        temp.path() / fmt::format("{}x{}", batch, accumulate));
    const StepMetrics& last = ran.seen.steps.back();
    ASSERT_TRUE(last.eval_loss && last.eval_tokens);
    if (!first) first = last.eval_loss;
    EXPECT_NEAR(*last.eval_loss, *first, 1e-6 * *first) << batch;
    EXPECT_LE(*last.eval_tokens, 3000);
    EXPECT_GT(*last.eval_tokens, 3000 - 64);
    EXPECT_FALSE(any_has(ran.seen.warnings, "train.eval_"));
  }
}

TEST(HeldOutTokens, BatchesKeepTheirMeaningWithAWarning) {
  const Texts texts;
  const config::Config c =
      config::load({"",
                    "quick",
                    {"train.eval_batches=1", "train.batch_size=2", "train.seq_len=64", "train.max_steps=1",
                     "model.layers=1", "model.hidden=32", "model.heads=2", "model.head_dim=16", "model.ffn=48"}},
                   model::settle_family);
  const Ran ran = run(c, texts.folder / "run");
  EXPECT_TRUE(any_has(ran.seen.warnings, {"train.eval_batches = 1", "train.eval_tokens"}));
  EXPECT_LE(*ran.seen.steps.back().eval_tokens, 128);
}

// Other held-out tokens have losses that cannot be held against those before.
TEST(HeldOutTokens, OthersOnAResumeBeginTheComparisonAnew) {
  const Texts texts;
  const auto with = [&](const char* tokens, int steps) {
    return texts.mixture({tokens, fmt::format("train.max_steps={}", steps), "train.eval_every=2", "train.patience=2",
                          "optim.lr=0", "optim.min_lr=0"});
  };
  for (const char* name : {"same", "other"})
    EXPECT_EQ(run(with("train.eval_tokens=500", 4), texts.folder / name).result.steps, 4);
  const Ran same = run(with("train.eval_tokens=500", 20), texts.folder / "same", true);
  EXPECT_EQ(same.result.steps, 6) << "neither step 4 nor step 6 was better than step 2";
  EXPECT_FALSE(any_has(same.seen.notes, "other tokens"));
  const Ran other = run(with("train.eval_tokens=400", 20), texts.folder / "other", true);
  EXPECT_EQ(other.result.steps, 10) << "step 6 is the first of its kind, and 8 and 10 are no better";
  EXPECT_TRUE(any_has(other.seen.notes, "other tokens"));
}

TEST(BadDocument, TheStepsBeforeItAreSavedAndTheSentenceSaysHowToGoOn) {
  const Texts texts;
  std::string lines;
  for (int i = 0; i < 600; ++i) lines += fmt::format("{{\"text\":\"document {} {}\"}}\n", i, std::string(60, 'x'));
  texts.write_line(lines, "bad.jsonl", 500);
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {fmt::format("data.train={}", texts.path("bad.jsonl")), "data.tokenizer=bytes",
                               "model.vocab=300", "data.shuffle_buffer=8", "data.shuffle=false", "train.eval_every=0",
                               "train.eval_tokens=200", "checkpoint.every=0", "train.max_steps=300"});
    return tiny_run(more);
  };
  const std::string said = error_of([&] { run(with({}), texts.folder / "run"); });
  EXPECT_TRUE(
      says(said, {"bad.jsonl:500", "steps are saved", "--resume --out", "data.on_error=skip", "--allow-change"}));
  const auto found = io::list_checkpoints(real_files(), texts.folder / "run" / "checkpoints");
  ASSERT_EQ(found.size(), 1u);
  const std::int64_t saved = found[0].step;
  EXPECT_TRUE(says(said, {fmt::format("{} steps", saved)}));
  const std::string more = fmt::format("train.max_steps={}", saved + 3);
  std::vector<std::string> told;  // by the byte where the run goes on, and by the line in the next epoch
  {
    const log::Listener listener([&](bool, std::string_view text) { told.emplace_back(text); });
    EXPECT_EQ(run(with({"data.on_error=skip", more}), texts.folder / "run", true).result.steps, saved + 3);
  }
  EXPECT_EQ(std::ranges::count_if(told, [](const std::string& t) { return says(t, {"passed over", "bad.jsonl"}); }), 1);
}

// An evaluation at the end that finds a bad held-out document costs no step.
TEST(BadDocument, OfHeldOutDataCostsNoStep) {
  const Texts texts;
  texts.write_line("{\"text\":\"some\"}\n{\"text\":\"more\"}\n", "eval.jsonl", 2);
  const config::Config c = texts.mixture({fmt::format("data.eval={}", texts.path("eval.jsonl")), "train.eval_every=0",
                                          "train.max_steps=7", "checkpoint.every=0"});
  EXPECT_TRUE(says(error_of([&] { run(c, texts.folder / "run"); }), {"eval.jsonl:2", "7 steps are saved"}));
  EXPECT_EQ(io::list_checkpoints(real_files(), texts.folder / "run" / "checkpoints").front().step, 7);
}

struct Conversations {
  testing::TempFolder folder;
  std::string tokenizer = data::write_chat_tokenizer(folder / "tokenizer", data::kChatMl);
  std::string file = (folder / "chat.jsonl").string();

  explicit Conversations(const std::string& lines = data::many_conversations(200)) {
    real_files().replace(file, lines);
  }
  config::Config config(std::vector<std::string> more = {}) const {
    more.insert(more.begin(),
                {fmt::format("data.train={}", file), fmt::format("data.tokenizer={}", tokenizer), "data.chat=auto",
                 "data.documents=0", "model.vocab=520", "data.shuffle_buffer=32", "train.max_steps=12",
                 "train.seq_len=96", "optim.schedule=constant", "model.dropout=0", "train.eval_tokens=1000"});
    return tiny_run(more);
  }
};

TEST(ChatRun, LearnsAnswersAndSaysTheirShare) {
  const Conversations chat;
  const Ran ran = run(chat.config({"train.sample_every=12", "train.sample_tokens=4"}), chat.folder / "run");
  ASSERT_EQ(ran.seen.steps.size(), 12u);
  const StepMetrics& last = ran.seen.steps.back();
  ASSERT_TRUE(last.learned);
  EXPECT_GT(*last.learned, 0.2);
  EXPECT_LT(*last.learned, 0.8);
  EXPECT_LT(last.loss, ran.seen.steps[0].loss - 0.5);
  ASSERT_TRUE(last.eval_loss && last.eval_bits_per_byte);
  EXPECT_GT(*last.eval_bits_per_byte, 0);
  EXPECT_LT(*last.eval_bits_per_byte, *last.eval_loss / std::log(2.0)) << "a token stands for a byte or more";
  // What others make of the checkpoint: the template stays, and an answer ends what the model writes.
  const Path checkpoint = chat.folder / "run" / "checkpoints" / io::checkpoint_name(12);
  const io::Json described = io::read_json(real_files(), checkpoint / "tokenizer_config.json");
  EXPECT_EQ(described["chat_template"], data::kChatMl);
  EXPECT_EQ(described["eos_token"], "<|im_end|>");
}

TEST(ChatRun, AResumeGoesOnBitForBitFromFilesAndShards) {
  const Conversations chat;
  data::PrepareSettings settings;
  settings.inputs = {chat.file};
  settings.tokenizer = chat.tokenizer;
  settings.chat = "auto";
  settings.out = chat.folder / "shards";
  const std::atomic<int> no_stop{0};
  data::prepare(real_files(), settings, no_stop, [](const data::PrepareProgress&) {});
  for (const std::string& data : {chat.file, (chat.folder / "shards").string()}) {
    const std::string name = Path(data).filename().string();
    const auto config = [&](const std::string& steps) {
      return chat.config({fmt::format("data.train={}", data), "train.max_steps=" + steps});
    };
    const Ran one = run(config("10"), chat.folder / (name + "1"));
    run(config("5"), chat.folder / (name + "2"));
    const Ran two = run(config("10"), chat.folder / (name + "2"), true);
    EXPECT_EQ(one.result.eval_loss, two.result.eval_loss);
    EXPECT_EQ(tensors(chat.folder / (name + "1"), 10), tensors(chat.folder / (name + "2"), 10));
  }
}

TEST(ChatRun, AStepWithoutAnAnswerIsToldAndBreaksNothing) {
  std::string lines, question;  // longer than a row, so that its answer is cut off
  for (int i = 0; i < 400; ++i) question += fmt::format("word {} ", i);
  for (int i = 0; i < 8; ++i) lines += data::messages_line({{"user", question}, {"assistant", "yes"}});
  const Conversations chat(lines);
  const Path eval = chat.folder / "eval.jsonl";
  real_files().replace(eval, data::messages_line({{"user", "x"}, {"assistant", "yes"}}));
  const Ran ran = run(chat.config({"data.long_documents=truncate", fmt::format("data.eval={}", eval.string()),
                                   "train.max_steps=3", "log.norms_every=1"}),
                      chat.folder / "run");
  ASSERT_EQ(ran.seen.steps.size(), 3u);
  for (const StepMetrics& m : ran.seen.steps) {
    EXPECT_EQ(m.tokens, 0);
    EXPECT_EQ(m.learned, 0.0);
    EXPECT_EQ(m.loss, 0.0);
    EXPECT_EQ(m.grad_norm, 0.0);
    EXPECT_GT(m.tflops, 0);
  }
  EXPECT_TRUE(any_has(ran.seen.warnings, {"step 1", "answer"}));
  EXPECT_TRUE(std::isfinite(*ran.seen.steps.back().eval_loss));
}

// Files of the training data, by whatever name, are not held out, and nothing calls them so.
TEST(EvaluatedOnTrainingData, IsSaidOnceAndNamedInTheLoss) {
  const Texts texts;
  std::filesystem::create_symlink(texts.path("a.txt"), texts.folder / "other.txt");
  const auto with = [&](const std::string& eval) {
    return tiny_run(
        {"data.train=" + texts.path("a.txt"), "data.eval=" + eval, "data.documents=0", "train.max_steps=2"});
  };
  const Ran same = run(with(texts.path("other.txt")), texts.folder / "same");
  EXPECT_TRUE(any_has(same.seen.warnings, {"data.eval", "other.txt", "trained on"}));
  EXPECT_EQ(
      std::ranges::count_if(same.seen.warnings, [](const std::string& w) { return w.find("data.eval") != w.npos; }), 1);
  EXPECT_FALSE(says(same.seen.endings.back(), "held-out"));
  EXPECT_TRUE(says(same.seen.endings.back(), "loss on training data"));
  const Ran other = run(with(texts.path("code.txt")), texts.folder / "other");
  EXPECT_FALSE(any_has(other.seen.warnings, "data.eval"));
  EXPECT_TRUE(says(other.seen.endings.back(), "held-out loss"));
  // The run's loss is the first set's, whatever others are.
  const Ran second = run(with("[\"web=" + texts.path("code.txt") + "\",\"own=" + texts.path("a.txt") + "\"]"),
                         texts.folder / "second");
  EXPECT_TRUE(any_has(second.seen.warnings, {"data.eval, set own", "trained on"}));
  EXPECT_TRUE(says(second.seen.endings.back(), "held-out loss"));
}

// The same text in another form has other files and the same documents.
TEST(EvaluatedOnTrainingData, IsSeenByItsDocuments) {
  const Texts texts;
  texts.write("half.txt", real_files().read(texts.path("a.txt")).substr(0, 5000));
  const Ran ran = run(tiny_run({"data.train=" + texts.path("a.txt"), "data.eval=half=" + texts.path("half.txt"),
                                "data.documents=0", "train.max_steps=2"}),
                      texts.folder / "run");
  EXPECT_TRUE(any_has(ran.seen.warnings, {"data.eval, set half", "documents", "trained on"}));
  EXPECT_TRUE(says(ran.seen.endings.back(), "loss on training data"));
}

// Weights that learned texts after a token that begins them, and prepared data without it.
TEST(WeightsOfATokenizer, DocumentsThatBeginOtherwiseAreSaid) {
  const Texts texts;
  const std::string tokenizer = data::write_llama_tokenizer(texts.folder / "llama");
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"model.vocab=520", "data.documents=0", "train.max_steps=2", "train.eval_every=0",
                               "checkpoint.every=0", "train.eval_tokens=200"});
    return tiny_run(more);
  };
  run(with({"data.train=" + texts.path("b.jsonl"), "data.tokenizer=" + tokenizer}), texts.folder / "weights");
  const std::string from = "model.init_from=" + texts.path("weights");
  const auto train_on = [&](const std::string& bos, const std::string& name, const std::string& key) {
    data::PrepareSettings s{
        .inputs = {texts.path("b.jsonl")}, .format = {}, .tokenizer = tokenizer, .out = texts.folder / bos};
    s.bos = bos;
    s.threads = 1;
    if (!real_files().exists(s.out))
      data::prepare(real_files(), s, std::atomic<int>(0), [](const data::PrepareProgress&) {});
    return run(with({from, "data.train=" + texts.path(bos), "data.bos=" + key}), texts.folder / name).seen.warnings;
  };
  EXPECT_TRUE(any_has(train_on("none", "a", "auto"), {"<|begin_of_text|>", "data.bos=none"}));
  EXPECT_FALSE(any_has(train_on("none", "b", "none"), "<|begin_of_text|>")) << "meant so";
  EXPECT_FALSE(any_has(train_on("auto", "c", "auto"), "<|begin_of_text|>"));
}

// The count of a stream passes over what the steps will name: a bad document is named once.
TEST(BadDocument, ThatIsPassedOverIsNamedOnce) {
  const Texts texts;
  texts.write_line(real_files().read(texts.path("b.jsonl")), "bad.jsonl", 20);
  std::vector<std::string> told;
  {
    const log::Listener listener([&](bool, std::string_view text) { told.emplace_back(text); });
    run(tiny_run({"data.train=" + texts.path("bad.jsonl"), "data.tokenizer=bytes", "model.vocab=300",
                  "data.documents=0", "data.on_error=skip", "train.max_steps=0", "train.epochs=1",
                  "train.eval_every=0"}),
        texts.folder / "run");
  }
  EXPECT_EQ(std::ranges::count_if(told, [](const std::string& t) { return t.find("bad.jsonl:20") != t.npos; }), 1);
}

// A folder whose names have roles: the run says which, evaluates on val, and goes on with it.
TEST(FilesByRole, ARunTellsThemAndGoesOn) {
  const Texts texts;
  real_files().create_folders(texts.folder / "d");
  for (const char* name : {"train.txt", "val.txt", "test.txt"})
    texts.write(fmt::format("d/{}", name), std::string(4000, name[0]) + "\n");
  const auto with = [&](const std::string& steps) {
    return tiny_run({"data.train=" + texts.path("d"), "data.documents=0", "train.max_steps=" + steps});
  };
  const Ran begun = run(with("2"), texts.folder / "run");
  EXPECT_TRUE(any_has(begun.seen.notes, {"train.txt is trained on", "val.txt is held out", "test.txt", "data.roles"}));
  EXPECT_FALSE(any_has(begun.seen.warnings, "trained on"));
  EXPECT_EQ(run(with("4"), texts.folder / "run", true).seen.steps.size(), 2u);
  texts.write("d/val.txt", std::string(4000, 'q') + "\n");  // the held-out file is watched, too
  EXPECT_TRUE(says(error_of([&] { run(with("6"), texts.folder / "run", true); }), {"data.eval"}));
}

// A model of many ids that reads bytes is most likely a tokenizer that was forgotten.
TEST(TextAsBytes, AVocabularyThatBytesDoNotUseIsSaid) {
  const Texts texts;
  const auto with = [&](const char* vocab, const std::string& tokenizer) {
    config::Config c = tiny_run({"data.train=" + texts.path("a.txt"), "data.documents=0", "train.max_steps=1", vocab});
    c.data.tokenizer = tokenizer;
    return run(c, texts.folder / fmt::format("run-{}-{}", vocab, tokenizer)).seen.warnings;
  };
  EXPECT_TRUE(any_has(with("model.vocab=1000", ""), {"bytes", "257", "1000", "data.tokenizer"}));
  EXPECT_FALSE(any_has(with("model.vocab=1000", "bytes"), "bytes"));
  EXPECT_FALSE(any_has(with("model.vocab=257", ""), "bytes"));
}

}  // namespace
}  // namespace redline::train
