// redline eval and sample as a user meets them: figures checked by hand, the same packed or one at a time, and
// sentences.
#include <sys/stat.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "data/tokenizer/tokenizer.h"
#include "testing/paths.h"

namespace redline::cli {
namespace {

const std::string kModel = kFixtures + "llama-mha", kGpt2 = kFixtures + "tokenizers/gpt2.tokenizer.json";

class Eval : public ProgramTest {
 protected:
  nlohmann::json eval(const Words& words) {
    return nlohmann::json::parse(must(words_of("eval --device cpu --json") + words).out, nullptr, false);
  }
  // A line of JSON a text.
  void write_documents(const std::vector<std::string>& texts) {
    std::string lines;
    for (const std::string& text : texts) lines += nlohmann::json{{"text", text}}.dump() + "\n";
    write("docs.jsonl", lines);
  }
};

const std::vector<std::string> kTexts = {"It was the best of times.", "caf\xC3\xA9 au lait, s'il vous pla\xC3\xAEt",
                                         "x", "A longer one: " + std::string(700, 'y') + " and its end"};

TEST_F(Eval, BitsPerByteByHand) {
  write_documents(kTexts);
  for (const std::string& name : {std::string("bytes"), kGpt2}) {
    const auto tokenizer = data::open_tokenizer(name, "test");
    std::int64_t bytes = 0, pairs = 0;
    for (const std::string& text : kTexts) {  // the first token of a text is given, what closes it is predicted
      const auto ids = tokenizer->encode(text);
      bytes += static_cast<std::int64_t>(text.size() - tokenizer->decode(std::span(ids).first(1)).size());
      pairs += static_cast<std::int64_t>(ids.size());
    }
    const auto json = eval({"--checkpoint", kModel, "--data", "docs.jsonl", "--tokenizer", name});
    EXPECT_EQ(json.at("documents"), 4) << name;
    EXPECT_EQ(json.at("pairs"), pairs) << name;
    EXPECT_EQ(json.at("tokens"), pairs + 4) << name;
    EXPECT_EQ(json.at("bytes"), bytes) << name;
    const double loss = json.at("loss"), nats = loss * static_cast<double>(pairs);
    EXPECT_NEAR(json.at("bits_per_byte").get<double>(), nats / std::log(2.0) / static_cast<double>(bytes), 1e-9);
    EXPECT_NEAR(json.at("perplexity").get<double>(), std::exp(loss), 1e-6 * std::exp(loss));
  }
}

TEST_F(Eval, IsTheSamePackedOrOneAtATime) {
  write_documents(kTexts);
  for (const char* model : {"llama-mha", "llama3-gqa", "qwen3-gqa"}) {
    const Words words = {"--checkpoint", kFixtures + model, "--data", "docs.jsonl", "--tokenizer", "bytes"};
    Words apart = words;
    apart.push_back("--per-document");
    const auto packed = eval(words), alone = eval(apart);
    EXPECT_NEAR(packed.at("loss").get<double>(), alone.at("loss").get<double>(), 2e-6) << model;
    for (const char* key : {"pairs", "tokens", "documents", "bytes"}) EXPECT_EQ(packed.at(key), alone.at(key)) << key;
    EXPECT_LT(packed.at("batches"), alone.at("batches"));
  }
}

// Tokens are the same ones whatever a batch holds; of data without an end there are as many as train.eval_tokens says.
TEST_F(Eval, TokensDoNotChangeWithTheBatch) {
  const Words words = {"--checkpoint", kModel, "--data", "ping", "--tokens", "600"};
  const auto packed = eval(words), alone = eval(words + Words{"--per-document"});
  EXPECT_LE(packed.at("tokens").get<int>(), 600);
  EXPECT_GT(packed.at("tokens").get<int>(), 300);
  for (const char* key : {"pairs", "tokens", "documents"}) EXPECT_EQ(packed.at(key), alone.at(key)) << key;
  EXPECT_NEAR(packed.at("loss").get<double>(), alone.at("loss").get<double>(), 2e-6);
  expect_bad_input({"eval", "--checkpoint", kModel, "--data", "ping", "--tokens", "0"}, {"--tokens 0", "never ends"});
  expect_bad_input({"eval", "--checkpoint", kModel, "--data", "ping", "--tokens", "5", "--batches", "1"},
                   {"--tokens 5", "--batches 1"});
}

// A run is evaluated in rows of its own, and its export in rows of all its positions, unless they are said.
TEST_F(Eval, RowsOfARunAndOfItsExportMayBeTheSame) {
  write_documents(kTexts);
  must(words_of("train --out a --device cpu train.max_steps=1 train.eval_every=0 train.eval_tokens=0 "
                "model.max_positions=256") +
       kTinyModel);
  must(words_of("export a --out hf"));
  const auto of = [&](const std::string& model, const Words& more) {
    return eval(Words{model, "--data", "docs.jsonl"} + more);
  };
  const auto run = of("a", {}), all = of("hf", {}), rows = of("hf", {"--seq-len", "64"});
  EXPECT_EQ(run.at("seq_len"), 64);
  EXPECT_EQ(all.at("seq_len"), 256);
  EXPECT_NE(run.at("loss"), all.at("loss")) << "a piece begins without what came before";
  for (const char* key : {"seq_len", "pairs", "tokens"}) EXPECT_EQ(run.at(key), rows.at(key)) << key;
  EXPECT_NEAR(run.at("loss").get<double>(), rows.at("loss").get<double>(), 1e-6);
  EXPECT_TRUE(says(must({"eval", "hf", "--data", "docs.jsonl", "--device", "cpu"}).out, "with rows of 256 tokens\n"));
  expect_bad_input({"eval", "hf", "--data", "docs.jsonl", "--seq-len", "257"}, {"--seq-len 257", "256 positions"});
}

// With train.eval_every = 0 and train.eval_tokens = 0; redline eval evaluates what a run does by default.
TEST_F(Eval, ARunMayBeEvaluatedNever) {
  const Ran ran = must(words_of("train --out a --device cpu train.max_steps=2 train.eval_every=0 train.eval_tokens=0") +
                       kTinyModel);
  EXPECT_TRUE(says(ran.out, {"nothing is evaluated", "2 steps done"}));
  EXPECT_EQ(ran.out.find("held-out loss"), std::string::npos) << ran.out;
  EXPECT_GT(eval({"a"}).at("tokens").get<int>(), 60'000);
}

TEST_F(Eval, SaysWhereThereIsNoText) {
  const auto json = eval({"--checkpoint", kModel, "--data", "random:300", "--batches", "1"});
  EXPECT_TRUE(json.at("bits_per_byte").is_null());
  EXPECT_NE(json.at("bits_per_byte_note").get<std::string>().find("no known text"), std::string::npos);
}

TEST_F(Eval, BadInput) {
  write_documents(kTexts);
  const Words words = {"eval", "--checkpoint", kFixtures + "llama3-gqa", "--data", "docs.jsonl", "--device", "cpu"};
  expect_bad_input(words + Words{"--tokenizer", kGpt2}, {"501 ids", "vocabulary of 384"});
  expect_bad_input(words, {"holds no tokenizer", "--tokenizer"});
  expect_bad_input(words + Words{"--precision", "fp7"}, {"--precision", "fp7"});
  expect_bad_input({"eval", "--checkpoint", kModel, "--data", "ping", "--batches", "0"}, {"never ends"});
  expect_bad_input({"eval", "--checkpoint", kModel}, {"--data", kModel});
  expect_bad_input({"eval", "--checkpoint", kModel, "--tokenizer", "bytes"}, {"--tokenizer bytes", "--data"});
  expect_bad_input({"eval", "--checkpoint", kModel, "--data", "ping", "--tokenizer", "bytes"}, {"--tokenizer bytes"});
}

// Bytes in the place of a tokenizer that was not named would give figures and text that mean nothing.
TEST_F(Eval, NothingIsTakenForAMissingTokenizer) {
  write("text.txt", "some text");
  const Words eval = {"eval", "--checkpoint", kModel, "--data", "text.txt", "--device", "cpu"};
  expect_bad_input(eval, {kModel + " holds no tokenizer", "--tokenizer"});
  must(eval + Words{"--tokenizer", "bytes"});
  const Words sample = {"sample", "--checkpoint", kModel, "--prompt", "x", "--tokens", "1", "--device", "cpu"};
  expect_bad_input(sample, {kModel + " holds no tokenizer", "--tokenizer"});
}

// One that the model was not trained with is refused, whether it is named or the data were prepared with it.
TEST_F(Eval, AnotherTokenizerThanTheModelsIsRefused) {
  std::filesystem::copy(kModel, folder_ / "own");
  std::filesystem::copy_file(kGpt2, folder_ / "own/tokenizer.json");
  write_documents(kTexts);
  must({"data", "prepare", "docs.jsonl", "--tokenizer", "bytes", "--out", "bytes"});
  must({"data", "prepare", "docs.jsonl", "--tokenizer", kGpt2, "--out", "gpt2"});
  const auto words = [](const std::string& data, const Words& more) {
    return words_of("eval --device cpu --checkpoint own --data") + Words{data} + more;
  };
  expect_bad_input(words("docs.jsonl", {"--tokenizer", "bytes"}), {"--tokenizer bytes", "tokenizer.json"});
  expect_bad_input(words("bytes", {}), {"--data bytes was prepared with bytes", "tokenizer.json"});
  expect_bad_input({"sample", "--device", "cpu", "--checkpoint", "own", "--prompt", "x", "--tokenizer", "bytes"},
                   {"--tokenizer bytes"});
  EXPECT_EQ(run(words("gpt2", {})).status, 0);
  EXPECT_EQ(run(words("docs.jsonl", {"--tokenizer", kGpt2})).status, 0);
  // Nobody can say where the model's own is of a kind that redline does not read.
  write("own/tokenizer.json", R"({"model": {"type": "Unigram"}})");
  expect_bad_input(words("docs.jsonl", {}), {"own", "Unigram"});
  const Ran told = must(words("docs.jsonl", {"--tokenizer", kGpt2}));
  EXPECT_TRUE(says(told.err, "cannot be held against the model's own"));
}

TEST_F(Eval, SamplesAreReproducibleAndIndependent) {
  const auto sample = [&](Words words) {
    words.insert(words.begin(), {"sample", "--checkpoint", kModel, "--tokenizer", "ping", "--prompt", "ab", "--tokens",
                                 "12", "--device", "cpu", "--json", "--seed", "5"});
    const Ran ran = must(words);
    return nlohmann::json::parse(ran.out, nullptr, false).at("samples");
  };
  const auto one = sample({}), ten = sample({"--samples", "10"});
  ASSERT_EQ(ten.size(), 10u);
  EXPECT_EQ(ten[0], one[0]);
  EXPECT_EQ(sample({"--samples", "3"})[2], ten[2]);
  EXPECT_NE(ten[0].at("tokens"), ten[1].at("tokens"));

  // A stop string and a stop token end the text before them.
  const auto tokens = ten[0].at("tokens").get<std::vector<std::int32_t>>();
  const auto stopped = sample({"--stop-token", std::to_string(tokens[4]), "--stop-token", "511"})[0];
  const std::size_t first = static_cast<std::size_t>(std::ranges::find(tokens, tokens[4]) - tokens.begin());
  EXPECT_EQ(stopped.at("tokens").size(), first);
  EXPECT_EQ(stopped.at("ended"), true);
  const std::string text = ten[0].at("text");
  const std::string stop = text.substr(text.size() / 2, 2);
  EXPECT_EQ(sample({"--stop", "never there", "--stop", stop})[0].at("text"), text.substr(0, text.find(stop)));
}

TEST_F(Eval, SamplePrintsTextAndThenFigures) {
  const Ran ran = run({"sample", "--checkpoint", kModel, "--tokenizer", "ping", "--prompt", "ab", "--tokens", "20",
                       "--samples", "2", "--device", "cpu"});
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(ran.out.rfind("--- sample 1 of 2\nab", 0), 0u) << ran.out;
  EXPECT_TRUE(says(ran.out, "\n--- sample 2 of 2\nab"));
  EXPECT_TRUE(says(ran.err, {"prefill: 2 tokens in ", "decode:  ", "memory alone would take "}));
}

TEST_F(Eval, TextThatCouldNotBeWrittenIsNotASuccess) {
  const Ran ran = run(
      {"sample", "--checkpoint", kModel, "--tokenizer", "ping", "--prompt", "ab", "--tokens", "5", "--device", "cpu"},
      ">/dev/full");
  EXPECT_EQ(ran.status, 1);
  EXPECT_TRUE(says(ran.err, "standard output: cannot write"));
}

TEST_F(Eval, TrainingShowsAndKeepsSamples) {
  const Words words = words_of("train --out a --device cpu") + kTinyModel +
                      Words{"train.max_steps=4", "train.eval_batches=1", "train.sample_every=2",
                            "train.sample_tokens=5", "train.sample_prompts=<begin>1\\n"};
  const Ran ran = must(words);
  EXPECT_TRUE(says(ran.out, {"sample after step 2: <begin>1", "sample after step 4: <begin>1"}));
  const std::string rows = real_files().read(folder_ / "a/samples.jsonl");
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 2);
  const auto last = nlohmann::json::parse(rows.substr(rows.find('\n') + 1));
  EXPECT_EQ(last.at("step"), 4);
  EXPECT_EQ(last.at("samples").size(), 1u);
  expect_bad_input(words + Words{"--out", "b", "train.sample_prompts=" + std::string(65, 'x')},
                   {"train.sample_prompts", "65 tokens"});
}

TEST_F(Eval, BadSamples) {
  const auto with = [&](const Words& more) { return words_of("sample --device cpu --checkpoint own") + more; };
  // A folder with a tokenizer and a long enough vocabulary, so that nothing but the one sentence is said.
  std::filesystem::copy(kModel, folder_ / "own");
  std::filesystem::copy_file(kGpt2, folder_ / "own/tokenizer.json");
  expect_bad_input(with({"--prompt", std::string(257, '~')}), {"257 tokens", "256 positions"});
  expect_bad_input(with({"--prompt", "x", "--stop-token", "512"}), {"--stop-token", "'512'"});
  expect_bad_input(with({"--prompt", "x", "--top-p", "1.5"}), {"--top-p", "'1.5'"});
  expect_bad_input(with({"--prompt", "x", "--stop", ""}), {"--stop"});
  expect_bad_input(with({"--prompt", "\xc3"}), {"--prompt", "UTF-8"});
  // The prompt is not shown before there is a model to continue it.
  real_files().truncate(folder_ / "own/model.safetensors", 9000);
  expect_bad_input(with({"--prompt", "x"}), {"truncated"});
  // A folder whose tokenizer knows more than its model.
  std::filesystem::copy(kFixtures + "llama3-gqa", folder_ / "hf");
  std::filesystem::copy_file(kGpt2, folder_ / "hf/tokenizer.json");
  expect_bad_input({"sample", "--checkpoint", "hf", "--prompt", "x"}, {"hf", "501", "384"});
}

TEST_F(Eval, NamedSetsHaveTheirOwnFigures) {
  write("a.txt", std::string(500, 'a'));
  write("b.txt", std::string(300, 'b') + "c");
  const Words model = {"--checkpoint", kModel, "--tokenizer", "bytes"};
  const auto with = [&](const Words& words) { return eval(model + words); };
  const auto a = with({"--data", "a.txt"}), b = with({"--data", "b.txt"});
  const auto both = with({"--data", "first=a.txt", "b=./b.txt"});
  EXPECT_FALSE(a.contains("sets"));
  ASSERT_EQ(both["sets"].size(), 2u);
  EXPECT_EQ(both["sets"][0]["name"], "first");
  EXPECT_EQ(both["loss"], a["loss"]);
  EXPECT_EQ(both["sets"][0]["loss"], a["loss"]);
  EXPECT_EQ(both["sets"][1]["loss"], b["loss"]);
  EXPECT_EQ(both["sets"][1]["bits_per_byte"], b["bits_per_byte"]);
  expect_bad_input({"eval", kModel, "--data", "a=", "--tokenizer", "bytes"}, {"\"a=\"", "NAME=PATH"});
}

TEST_F(Eval, MultipleChoice) {
  const std::string file = kFixtures + "choices/questions.jsonl";
  const auto json = eval({kModel, "--tokenizer", "bytes", "--choices", file});
  EXPECT_EQ(json["questions"], 5);
  ASSERT_EQ(json["rows"].size(), 5u);
  const nlohmann::json oracle = nlohmann::json::parse(real_files().read(kFixtures + "choices/oracle.json"))["bytes"];
  int right = 0;
  for (std::size_t q = 0; q < 5; ++q) {
    const auto& row = json["rows"][q];
    EXPECT_EQ(row["line"], q + 1);
    ASSERT_EQ(row["log_probabilities"].size(), oracle[q].size());
    std::size_t best = 0;
    for (std::size_t c = 0; c < oracle[q].size(); ++c) {
      EXPECT_NEAR(row["log_probabilities"][c].get<double>(), oracle[q][c].get<double>(), 1e-4);
      if (oracle[q][c] > oracle[q][best]) best = c;
    }
    EXPECT_EQ(row["chosen"], best);
    right += row["answer"] == best;
  }
  EXPECT_DOUBLE_EQ(json["accuracy"], right / 5.0);
  EXPECT_TRUE(json["accuracy_stderr"].is_number());
  const Ran ran = run({"eval", kModel, "--tokenizer", "bytes", "--choices", file, "--device", "cpu"});
  EXPECT_TRUE(says(ran.out, {"5 questions\naccuracy     ", "\nby bytes     "}));

  write(
      "bad.jsonl",
      "{\"question\":\"q\",\"choices\":[\"a\"],\"answer\":0}\n{\"question\":\"q\",\"choices\":[\"a\"],\"answer\":4}\n");
  expect_bad_input({"eval", kModel, "--tokenizer", "bytes", "--choices", "bad.jsonl"},
                   {"bad.jsonl:2", "\"answer\" is 4"});
  expect_bad_input({"eval", kModel, "--choices", file}, {"holds no tokenizer", "--tokenizer"});
  expect_bad_input({"eval", kModel, "--choices", file, "--data", "x"}, {"--choices", "stands alone"});
  expect_bad_input({"eval", kModel, "--checkpoint", kModel}, {"one model at a time"});
  expect_bad_input({"eval", kModel, "--choices", "none.jsonl", "--tokenizer", "bytes"}, {"none.jsonl"});
}

// A run with checkpoints of steps 1 and 2, of which the newest has changed weights: only whoever reads them sees it.
class DamagedRun : public Eval {
 protected:
  void SetUp() override {
    const Ran ran = run(words_of("train --out run --device cpu train.max_steps=2 checkpoint.every=1 checkpoint.keep=5 "
                                 "train.eval_every=0 train.eval_batches=1") +
                        kTinyModel);
    ASSERT_EQ(ran.status, 0) << ran.err;
    std::string weights = real_files().read(folder_ / kNewest / "model.safetensors");
    weights[weights.size() / 2] ^= 1;
    write(kNewest + "/model.safetensors", weights);
  }
  void expect_warning(const Ran& ran) {
    EXPECT_EQ(ran.status, 0) << ran.err;
    EXPECT_TRUE(says(ran.err, {"redline: warning: ", "step 2", "step_00000002/model.safetensors", "hash", "step 1"}));
    EXPECT_EQ(ran.err.find("warning", 20), std::string::npos) << ran.err;
  }
  const std::string kOlder = "run/checkpoints/step_00000001", kNewest = "run/checkpoints/step_00000002";
};

TEST_F(DamagedRun, MeansItsNewestWholeCheckpoint) {
  Ran ran = run({"eval", "--device", "cpu", "--json", "--checkpoint", "run"});
  expect_warning(ran);
  EXPECT_EQ(nlohmann::json::parse(ran.out).at("checkpoint"), kOlder);
  ran = run({"sample", "--device", "cpu", "--json", "--checkpoint", "run", "--prompt", "1", "--tokens", "2"});
  expect_warning(ran);
  EXPECT_EQ(nlohmann::json::parse(ran.out).at("checkpoint"), kOlder);
  ran = run({"export", "--json", "--checkpoint", "run", "--out", "hf"});
  expect_warning(ran);
  EXPECT_EQ(nlohmann::json::parse(ran.out).at("from"), kOlder);
  EXPECT_EQ(run({"eval", "--device", "cpu", "--json", "--checkpoint", "hf", "--data", "ping", "--batches", "1"}).status,
            0);
}

// Bytes are tokens of ping, too: every id of theirs stands for the same there.
TEST_F(DamagedRun, APartOfTheModelsTokensWillDo) {
  write("a.jsonl", "{\"text\":\"some text of more than one token\"}\n");
  must({"data", "prepare", "a.jsonl", "--tokenizer", "bytes", "--out", "shards"});
  expect_warning(run({"eval", "--device", "cpu", "--checkpoint", "run", "--data", "shards", "--json"}));
}

// Where there is none to take instead, that is what the error says.
TEST_F(DamagedRun, TheLastOneIsNotReplaced) {
  std::filesystem::remove_all(folder_ / kOlder);
  const Ran ran = run({"eval", "--device", "cpu", "--checkpoint", "run"});
  EXPECT_EQ(ran.status, 2);
  EXPECT_EQ(ran.err, "redline: warning: the checkpoint of step 2 is damaged: " + kNewest +
                         "/model.safetensors has changed: its hash is not the one in the manifest\n"
                         "redline: error: run: this run holds no whole checkpoint in run/checkpoints\n");
}

TEST_F(DamagedRun, ACheckpointThatWasNamedIsRefused) {
  const Words parts = {kNewest + "/model.safetensors has changed", "take another checkpoint"};
  expect_bad_input({"eval", "--device", "cpu", "--checkpoint", kNewest}, parts);
  expect_bad_input({"sample", "--device", "cpu", "--checkpoint", kNewest, "--prompt", "1"}, parts);
  expect_bad_input({"export", "--checkpoint", kNewest, "--out", "hf"}, parts);
  real_files().truncate(folder_ / kNewest / "model.safetensors", 100);  // seen without reading it
  expect_bad_input({"eval", "--device", "cpu", "--checkpoint", kNewest}, {"is truncated", "take another checkpoint"});
  EXPECT_FALSE(exists("hf"));
}

// What is wrong with something else is reported as it is, and no checkpoint is passed over for it.
TEST_F(DamagedRun, OtherErrorsAreNotTakenForDamage) {
  expect_bad_input({"eval", "--device", "cpu", "--checkpoint", "run", "--data", "none.txt"}, {"none.txt"});
}

// A pipe without a writer, or a folder, in the place of a file.
TEST_F(Eval, NothingButFilesIsReadInAFolder) {
  for (const std::string name : {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"})
    for (const bool pipe : {true, false}) {
      const std::string folder = name + (pipe ? ".pipe" : ".folder");
      std::filesystem::create_directory(folder_ / folder);
      for (const char* file : {"config.json", "model.safetensors"})
        std::filesystem::copy(Path(kModel) / file, folder_ / folder / file);
      std::filesystem::copy(kGpt2, folder_ / folder / "tokenizer.json");
      const Path victim = folder_ / folder / name;
      std::filesystem::remove(victim);
      if (pipe)
        ASSERT_EQ(::mkfifo(victim.c_str(), 0600), 0);
      else
        std::filesystem::create_directory(victim);
      expect_bad_input({"sample", "--device", "cpu", "--checkpoint", folder, "--prompt", "1"},
                       {folder + "/" + name + ": not a file but a folder, a pipe or a device; put a file there"});
    }
}

TEST_F(DamagedRun, APipeAsManifestIsRefusedOrPassedOver) {
  std::filesystem::remove(folder_ / kNewest / "manifest.json");
  ASSERT_EQ(::mkfifo((folder_ / kNewest / "manifest.json").c_str(), 0600), 0);
  expect_bad_input({"eval", "--device", "cpu", "--checkpoint", kNewest}, {kNewest + "/manifest.json: not a file"});
  const Ran ran = must({"eval", "--device", "cpu", "--json", "--checkpoint", "run"});
  EXPECT_EQ(nlohmann::json::parse(ran.out).at("checkpoint"), kOlder);
}

}  // namespace
}  // namespace redline::cli
