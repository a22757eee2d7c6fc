// export, import and model.init_from as a user runs them: the same weights on every way, and one sentence for each
// thing that is wrong.
#include <sys/resource.h>

#include <cstring>
#include <limits>

#include "cli/program.h"
#include "data/tokenizer/tokenizer.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/family.h"
#include "testing/paths.h"

namespace redline::cli {
namespace {

const std::string kFixture = testing::source_folder() + "/tests/fixtures/llama3-gqa";
const std::string kTokenizers = testing::source_folder() + "/tests/fixtures/tokenizers/";
const Words kStillRun = words_of(
    "train.batch_size=2 train.seq_len=64 train.eval_batches=1 data.max_segments=8 optim.lr=1e-20 optim.min_lr=0 "
    "optim.warmup_steps=0 train.eval_every=0 checkpoint.every=0 train.accumulate=1 --device cpu");

class HfFolders : public ProgramTest {
 protected:
  Ran train(const Words& words) { return run(Words{"train", "data.train=ping"} + words + kStillRun); }
  void copy_fixture(const std::string& name) {
    std::filesystem::copy(kFixture, folder_ / name);
    std::filesystem::remove(folder_ / name / "oracle.safetensors");
  }
  void change_config(const std::string& folder, const std::function<void(io::Json&)>& change) {
    const Path path = folder_ / folder / "config.json";
    io::Json json = io::read_json(real_files(), path);
    change(json);
    real_files().replace(path, json.dump());
  }
  // Every tensor of `a` is in `b`, with the same type and bytes, and the other way round.
  void expect_same_weights(const Path& a, const Path& b) {
    const io::WeightFiles left(real_files(), folder_ / a), right(real_files(), folder_ / b);
    EXPECT_EQ(left.tensors(), right.tensors());
    for (const auto& file : left.files())
      for (const io::StoredTensor& t : file.reader->tensors()) {
        const io::StoredTensor* other = right.find(t.name);
        ASSERT_TRUE(other) << t.name;
        EXPECT_EQ(t.shape, other->shape);
        ASSERT_EQ(t.bytes.size(), other->bytes.size()) << t.name;
        EXPECT_EQ(std::memcmp(t.bytes.data(), other->bytes.data(), t.bytes.size()), 0) << t.name;
      }
  }
};

TEST_F(HfFolders, ThereAndBackGivesTheSameBytesInEveryTypeAndInShards) {
  for (const std::string dtype : {"f32", "bf16", "f16"}) {
    must({"export", "--checkpoint", kFixture, "--out", dtype, "--dtype", dtype});
    must({"import", dtype, "--out", dtype + "-in"});
    must({"export", "--checkpoint", dtype + "-in", "--out", dtype + "-out", "--dtype", dtype});
    expect_same_weights(dtype, dtype + "-out");
    EXPECT_EQ(real_files().read(folder_ / dtype / "config.json"),
              real_files().read(folder_ / (dtype + "-out") / "config.json"));
    must({"export", "--checkpoint", dtype + "-in", "--out", dtype + "-shards", "--dtype", dtype, "--shard-size",
          "100000"});
    EXPECT_FALSE(exists(dtype + "-shards/model.safetensors"));
    expect_same_weights(dtype, dtype + "-shards");
    must({"import", dtype + "-shards", "--out", dtype + "-again"});
    expect_same_weights(dtype + "-in", dtype + "-again");
  }
  expect_same_weights("f32", Path(kFixture));
}

// What Hugging Face wrote of each family, through a checkpoint and out again.
TEST_F(HfFolders, EveryFamilyGoesThereAndBack) {
  for (const std::string name : {"llama3-gqa", "qwen3-gqa", "olmo2-gqa", "qwen2-gqa", "mistral-window", "smollm3-nope",
                                 "olmo3-window", "gemma3-text", "llama-biases", "olmoe", "qwen3-moe", "mixtral"}) {
    const std::string fixture = testing::source_folder() + "/tests/fixtures/" + name;
    must({"import", fixture, "--out", name + "-in"});
    must({"export", "--checkpoint", name + "-in", "--out", name});
    expect_same_weights(name, fixture);
    const auto config = [](const Path& folder) {
      return io::parse_json(real_files().read(folder / "config.json"), "config.json");
    };
    const io::Json theirs = config(fixture), ours = config(folder_ / name);
    for (const auto& [key, value] : theirs.items()) {
      if (key == "transformers_version" || key == "use_cache" || !ours.contains(key)) continue;
      if (key == "max_window_layers") continue;                                // of a window that is off
      if (key == "rope_parameters" && ours[key].contains("full_attention")) {  // OLMo-3's has more beside them
        for (const auto& [kind, rope] : ours[key].items()) EXPECT_EQ(rope, value[kind]) << name << ": " << kind;
        continue;
      }
      EXPECT_EQ(ours[key], value) << name << ": " << key;
    }
  }
}

TEST_F(HfFolders, ExportPrintsOneDocumentAndSaysWhatItDid) {
  const io::Json json = io::parse_json(
      must({"export", "--checkpoint", kFixture, "--out", "a", "--json", "--shard-size", "200000"}).out, "stdout");
  EXPECT_EQ(json["parameters"], 233952);
  EXPECT_EQ(json["bytes"], 4 * 233952);
  EXPECT_GT(json["shards"], 1);
  const io::Json index = io::read_json(real_files(), folder_ / "a/model.safetensors.index.json");
  EXPECT_EQ(index["metadata"]["total_size"], 4 * 233952);
  const io::Json config = io::read_json(real_files(), folder_ / "a/config.json");
  EXPECT_EQ(config["rope_parameters"]["rope_type"], "llama3");
  EXPECT_EQ(config["rope_scaling"], config["rope_parameters"]);
  EXPECT_EQ(config["rope_theta"], config["rope_parameters"]["rope_theta"]);
  EXPECT_EQ(config["max_position_embeddings"], 512);
  EXPECT_EQ(config["eos_token_id"], 2);
}

TEST_F(HfFolders, TrainingStartsFromAFolderAndDoesNotNeedItAgain) {
  must({"import", kFixture, "--out", "start"});
  const Ran planned = must({"plan", "model.init_from=start", "--card", "h200", "--json"});
  EXPECT_EQ(io::parse_json(planned.out, "stdout")["parameters"], 233952)
      << "the folder's model is planned, not another";
  const Ran begun = train({"model.init_from=start", "train.max_steps=1", "--out", "run"});
  ASSERT_EQ(begun.status, 0) << begun.err;
  EXPECT_TRUE(says(begun.out, "starting from the weights in start"));
  must({"export", "--checkpoint", "run", "--out", "after"});
  expect_same_weights("after", Path(kFixture));  // steps of 1e-20 change nothing
  EXPECT_EQ(io::read_json(real_files(), folder_ / "after/config.json")["max_position_embeddings"], 512);
  std::filesystem::remove_all(folder_ / "start");
  must({"train", "--resume", "--out", "run", "train.max_steps=2", "--device", "cpu"});
  // Told the configuration again, without the keys that the folder had said.
  ASSERT_EQ(train({"--resume", "--out", "run", "model.init_from=start", "train.max_steps=3"}).status, 0);
  expect_bad_input({"train", "model.init_from=start", "--out", "other"},
                   {"model.init_from: start: there is no such folder"});
}

TEST_F(HfFolders, AKeyThatTheFolderSaysOtherwiseIsNamed) {
  expect_bad_input(train({"model.init_from=" + kFixture, "model.layers=3", "--out", "run"}),
                   {"model.layers is 3", "says 2"});
  expect_bad_input(train({"model.init_from=" + kFixture, "model.rope_scaling=none", "--out", "run"}),
                   {"model.rope_scaling"});
  EXPECT_FALSE(exists("run"));
  write("c.toml", "[model]\ninit_from = \"" + kFixture +
                      "\"\nkv_heads = 2\ndropout = 0.1\nvocab = 1000\n[train]\nmax_steps = 1\n");
  expect_bad_input({"config", "c.toml"}, {"c.toml:5: model.vocab is 1000", "says 384"});
  const Ran shown = must({"config", "model.init_from=" + kFixture, "model.kv_heads=2", "model.dropout=0.1"});
  EXPECT_TRUE(says(shown.out, {"layers = 2", "kv_heads = 2", "head_dim = 16", "dropout = 0.1", "max_positions = 512"}));
}

TEST_F(HfFolders, DamageIsOneSentenceAndLeavesNothing) {
  must({"import", kFixture, "--out", "good"});
  const auto damaged = [&](const std::string& name, const std::function<void(const Path&)>& damage) {
    std::filesystem::copy(folder_ / "good", folder_ / name);
    damage(folder_ / name);
    return name;
  };
  const auto flip = [](const Path& folder) {
    std::string bytes = real_files().read(folder / "model.safetensors");
    bytes[bytes.size() / 2] ^= 1;
    real_files().replace(folder / "model.safetensors", bytes);
  };
  const std::string flipped = damaged("flipped", flip);
  const std::string cut = damaged("cut", [](const Path& f) { real_files().truncate(f / "model.safetensors", 1000); });
  const std::string other = damaged("other", [](const Path& f) { real_files().replace(f / "config.json", "{}"); });
  for (const auto& [name, part] :
       {std::pair{flipped, "its hash is not the one in the manifest"}, {cut, "truncated"}, {other, "config.json"}}) {
    expect_bad_input({"export", "--checkpoint", name, "--out", "out"}, {part});
    expect_bad_input({"import", name, "--out", "out"}, {part});
    expect_bad_input({"eval", "--checkpoint", name, "--data", "ping", "--batches", "1", "--device", "cpu"}, {part});
    EXPECT_FALSE(exists("out"));
    EXPECT_FALSE(exists("out.partial"));
  }
  expect_bad_input(train({"model.init_from=" + cut, "--out", "run"}), {"model.init_from", "truncated"});
  // Found while they are loaded; the same folder takes the run once the weights are mended.
  const Ran refused = train({"model.init_from=" + flipped, "train.max_steps=1", "--out", "run"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_TRUE(says(refused.err, "its hash is not the one in the manifest"));
  EXPECT_FALSE(exists("run"));
  std::filesystem::copy_file(folder_ / "good/model.safetensors", folder_ / flipped / "model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(train({"model.init_from=" + flipped, "train.max_steps=1", "--out", "run"}).status, 0);
}

// A run means its newest whole checkpoint for whoever reads weights; one that is named itself is refused.
TEST_F(HfFolders, TrainingStartsFromTheNewestWholeCheckpointOfARun) {
  must({"import", kFixture, "--out", "start"});
  ASSERT_EQ(train({"model.init_from=start", "train.max_steps=2", "checkpoint.keep=5", "--out", "run"}).status, 0);
  const std::string old = "run/checkpoints/step_00000002", newest = "run/checkpoints/step_00000003";
  must({"train", "--resume", "--out", "run", "train.max_steps=3", "--device", "cpu"});
  const auto expect_passed_over = [&](const std::string& out, const std::string& problem) {
    const Ran begun = train({"model.init_from=run", "train.max_steps=1", "--out", out});
    EXPECT_EQ(begun.status, 0) << begun.err;
    EXPECT_TRUE(says(begun.out, "starting from the weights in " + old));
    const std::string warning = "redline: warning: the checkpoint of step 3 is damaged: ";
    EXPECT_EQ(begun.err.rfind(warning, 0), 0u) << begun.err;
    EXPECT_EQ(begun.err.find(warning, 1), begun.err.npos) << begun.err;  // once
    EXPECT_TRUE(says(begun.err, problem));
    EXPECT_TRUE(says(begun.err, "; that of step 2 is taken instead"));
  };
  std::string bytes = real_files().read(folder_ / newest / "model.safetensors");
  bytes[bytes.size() / 2] ^= 1;  // seen when tensors are read
  write(newest + "/model.safetensors", bytes);
  expect_passed_over("a", "its hash is not the one in the manifest");
  const Ran named = train({"model.init_from=" + newest, "train.max_steps=1", "--out", "b"});
  EXPECT_EQ(named.status, 2);
  EXPECT_TRUE(says(named.err, "its hash is not the one in the manifest"));
  real_files().truncate(folder_ / newest / "model.safetensors", 1000);  // seen at a glance
  expect_passed_over("c", "truncated");
  real_files().truncate(folder_ / old / "model.safetensors", 1000);
  expect_bad_input(train({"model.init_from=run", "train.max_steps=1", "--out", "b"}),
                   {"model.init_from", "holds no whole checkpoint"});
  EXPECT_FALSE(exists("b"));
}

TEST_F(HfFolders, ShardsThatAreNotWhatTheIndexSays) {
  must({"export", "--checkpoint", kFixture, "--out", "shards", "--shard-size", "200000"});
  const Path first = folder_ / "shards" / real_files().list(folder_ / "shards")[2];
  ASSERT_TRUE(first.filename().string().starts_with("model-00001-of-")) << first;
  std::filesystem::rename(first, folder_ / "shards/away");
  expect_bad_input({"import", "shards", "--out", "in"}, {first.filename().string() + " is missing"});
  expect_bad_input({"eval", "--checkpoint", "shards", "--data", "ping", "--device", "cpu"}, {"is missing"});
  const Path second = folder_ / "shards" / real_files().list(folder_ / "shards")[3];
  ASSERT_TRUE(second.filename().string().starts_with("model-00002-of-")) << second;
  std::filesystem::remove(second);
  expect_bad_input({"import", "shards", "--out", "in"},
                   {"2 of the ", " are missing", first.filename().string() + ", " + second.filename().string()});
  std::filesystem::rename(folder_ / "shards/away", first);
  std::filesystem::remove(folder_ / "shards/model.safetensors.index.json");
  expect_bad_input({"import", "shards", "--out", "in"}, {"shards", "no model.safetensors.index.json"});
}

TEST_F(HfFolders, EveryFamilyIsListedWithWhatItCan) {
  const io::Json rows = io::Json::parse(must({"import", "--list", "--json"}).out);
  EXPECT_EQ(rows.size(), model::families().size());
  const std::string text = must({"import", "--list"}).out,
                    docs = real_files().read(testing::source_folder() + "/docs/hugging_face.md");
  for (const io::Json& row : rows) {
    const auto cell = [&](const char* key) { return row[key].get<std::string>(); };
    EXPECT_TRUE(says(text, {cell("architecture"), cell("biases"), cell("held_against")}));
    const std::size_t begin = docs.find(fmt::format("\n| `{}` | `{}` |", cell("family"), cell("architecture")));
    ASSERT_NE(begin, docs.npos) << cell("family");
    const std::string of_docs = docs.substr(begin + 1, docs.find('\n', begin + 1) - begin - 1);
    EXPECT_TRUE(of_docs.ends_with(fmt::format("| {} | {} | {} | {} |", cell("fp8"), row["windows"] ? "yes" : "no",
                                              cell("biases"), cell("held_against"))))
        << of_docs;
  }
}

TEST_F(HfFolders, ATokenizerGoesAlongAndMustFit) {
  copy_fixture("hf");
  std::filesystem::copy(kTokenizers + "gpt2.tokenizer.json", folder_ / "hf/tokenizer.json");
  expect_bad_input({"import", "hf", "--out", "in"}, {"tokenizer.json", "vocabulary of 384"});  // it has more than 500
  expect_bad_input({"export", "--checkpoint", "hf", "--out", "out"}, {"more than the model's vocabulary"});
  expect_bad_input(train({"model.init_from=hf", "train.max_steps=1", "--out", "run"}), {"vocabulary of 384"});
  EXPECT_FALSE(exists("in") || exists("out") || exists("run"));

  write("words.txt", "a few words to learn from, a few words more\n");
  const Words learned =
      words_of("tokenizer train --vocab-size 270 --special <|endoftext|> --out hf/tokenizer.json words.txt");
  expect_bad_input(learned, {"--out hf/tokenizer.json", "no tokenizer that redline wrote"});
  std::filesystem::remove(folder_ / "hf/tokenizer.json");
  for (int again = 0; again < 2; ++again) must(learned);
  EXPECT_TRUE(says(must({"import", "hf", "--out", "in"}).out, {"270 ids, and the model 384", "114 of its rows"}));
  must({"export", "--checkpoint", "in", "--out", "out"});
  EXPECT_EQ(real_files().read(folder_ / "hf/tokenizer.json"), real_files().read(folder_ / "out/tokenizer.json"));
  EXPECT_EQ(io::read_json(real_files(), folder_ / "out/tokenizer_config.json")["eos_token"], "<|endoftext|>");
  const Words text = {"model.init_from=in", "train.max_steps=1", "data.train=words.txt", "data.eval=words.txt"};
  const Ran own = train(text + Words{"--out", "own"});
  EXPECT_EQ(own.status, 0) << own.err;
  EXPECT_TRUE(says(own.out, "tokenized by "));
  EXPECT_FALSE(says(own.out, "warning: the data are read with"));
  EXPECT_EQ(train(text + Words{"--out", "own", "--resume", "train.max_steps=2"}).status, 0);
  const Ran other = train(text + Words{"--out", "run", "data.tokenizer=bytes"});
  EXPECT_EQ(other.status, 0) << other.err;
  EXPECT_TRUE(says(other.out, {"warning: the data are read with the tokenizer bytes", "1 text file as bytes"}));
}

TEST_F(HfFolders, ARunIsExportedWithTheTokenizerOfItsData) {
  write("words.txt", "a few words to learn from, a few words more\n\n\nand a second text");
  must({"tokenizer", "train", "--vocab-size", "260", "--special", "<|endoftext|>", "--out", "t.json", "words.txt"});
  ASSERT_EQ(train({"model.layers=1", "model.hidden=16", "model.heads=2", "model.kv_heads=1", "model.head_dim=8",
                   "model.ffn=16", "model.vocab=300", "train.max_steps=1", "data.train=words.txt",
                   "data.eval=words.txt", "data.tokenizer=t.json", "--out", "run"})
                .status,
            0);
  must({"export", "--checkpoint", "run", "--out", "out"});
  EXPECT_EQ(real_files().read(folder_ / "t.json"), real_files().read(folder_ / "out/tokenizer.json"));
  const io::Json config = io::read_json(real_files(), folder_ / "out/config.json");
  EXPECT_EQ(config["eos_token_id"],
            io::read_json(real_files(), folder_ / "out/generation_config.json")["eos_token_id"]);
  EXPECT_TRUE(config["eos_token_id"].is_number_integer());
}

// The tokenizer belongs to the run: its data may be gone, and whoever asks may stand elsewhere.
TEST_F(HfFolders, ACheckpointIsReadWithTheTokenizerItWasTrainedWith) {
  std::filesystem::create_directory(folder_ / "data");
  write("data/words.txt", "a few words to learn from, a few words more\n\n\nand a second text");
  must({"tokenizer", "train", "--vocab-size", "290", "--special", "<|endoftext|>", "--out", "data/t.json",
        "data/words.txt"});
  ASSERT_EQ(train({"model.layers=1", "model.hidden=16", "model.heads=2", "model.kv_heads=1", "model.head_dim=8",
                   "model.ffn=16", "model.vocab=300", "train.max_steps=1", "data.train=data/words.txt",
                   "data.eval=data/words.txt", "data.tokenizer=data/t.json", "--out", "run"})
                .status,
            0);
  const std::string step = "run/checkpoints/step_00000001", json = real_files().read(folder_ / "data/t.json");
  const auto end = data::open_tokenizer((folder_ / "data/t.json").string(), "test")->end_token();
  std::filesystem::rename(folder_ / "data", folder_ / "away");

  EXPECT_EQ(real_files().read(folder_ / step / "tokenizer.json"), json);
  EXPECT_EQ(io::read_json(real_files(), folder_ / step / "config.json")["eos_token_id"], *end);
  EXPECT_EQ(io::read_json(real_files(), folder_ / step / "generation_config.json")["eos_token_id"], *end);
  const io::Json use = io::read_json(real_files(), folder_ / step / "tokenizer_config.json");
  EXPECT_EQ(use["eos_token"], "<|endoftext|>");
  EXPECT_EQ(use["pad_token"], "<|endoftext|>");
  EXPECT_EQ(use["model_max_length"], 64);
  const auto decoded = [&](const Words& more) {
    const Words words = {"sample", "--checkpoint", "run", "--prompt", "a few words", "--tokens", "1", "--json"};
    return io::parse_json(must(words + Words{"--device", "cpu"} + more).out, "stdout")["prefill"]["tokens"];
  };
  EXPECT_LT(decoded({}), 8) << "read as bytes";
  must({"eval", "--checkpoint", "run", "--data", "away/words.txt", "--device", "cpu"});
  must({"export", "--checkpoint", "run", "--out", "out"});
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"})
    EXPECT_EQ(real_files().read(folder_ / "out" / name), real_files().read(folder_ / step / name)) << name;

  // A checkpoint from before they held it: its run's, and without that nothing is guessed.
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) std::filesystem::remove(folder_ / step / name);
  io::Json manifest = io::read_json(real_files(), folder_ / step / "manifest.json");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) manifest["files"].erase(name);
  real_files().replace(folder_ / step / "manifest.json", manifest.dump());
  EXPECT_LT(decoded({}), 8);
  std::filesystem::remove_all(folder_ / "run/tokenizer");
  const Words lost = {"the tokenizer that the model was trained with is not to be found", "--tokenizer"};
  expect_bad_input({"sample", "--checkpoint", "run", "--prompt", "a", "--device", "cpu"}, lost);
  expect_bad_input({"export", "--checkpoint", "run", "--out", "lost"}, lost);
  expect_bad_input({"eval", "--checkpoint", "run", "--data", "away/words.txt", "--device", "cpu"}, lost);
  EXPECT_FALSE(exists("lost"));
  EXPECT_LT(decoded({"--tokenizer", "away/t.json"}), 8);
  must({"export", "--checkpoint", "run", "--out", "found", "--tokenizer", "away/t.json"});
  EXPECT_EQ(real_files().read(folder_ / "found/tokenizer.json"), json);
  EXPECT_EQ(io::read_json(real_files(), folder_ / "found/config.json")["eos_token_id"], *end);
}

// Training, evaluation and sampling put the same token before a text, in a run, in its export, and in a run without.
TEST_F(HfFolders, ARunAndItsExportBeginTextsAsTheirDocumentsDid) {
  const std::string lines = R"({"text": "a few words"})"
                            "\n"
                            R"({"text": "and a second text"})"
                            "\n";
  write("words.jsonl", lines);
  std::filesystem::create_directory(folder_ / "llama");
  must({"tokenizer", "train", "--vocab-size", "270", "--special", "<|endoftext|>", "--special", "<|begin_of_text|>",
        "--out", "llama/tokenizer.json", "words.jsonl"});
  const Path path = folder_ / "llama/tokenizer.json";
  io::Json json = io::read_json(real_files(), path);
  const int begin = json["added_tokens"][1]["id"];
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<b>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", io::Json::array()},
      {"special_tokens", {{"<b>", {{"id", "<b>"}, {"ids", {begin}}, {"tokens", {"<|begin_of_text|>"}}}}}}};
  real_files().replace(path, json.dump());

  struct Seen {
    io::Json prompt, eval_tokens, sampled;
  };
  const auto seen = [&](const std::string& model) {
    const Words on = {"--checkpoint", model, "--device", "cpu", "--json"};
    const io::Json sample =
        io::parse_json(must(words_of("sample --prompt few --tokens 4 --temperature 0") + on).out, "stdout");
    const io::Json eval = io::parse_json(must(words_of("eval --data words.jsonl") + on).out, "stdout");
    return Seen{sample["prefill"]["tokens"], eval["tokens"], sample["tokens"]};
  };
  Seen with, without;
  for (const std::string bos : {"auto", "none"}) {
    ASSERT_EQ(train({"model.layers=1", "model.hidden=16", "model.heads=2", "model.kv_heads=1", "model.head_dim=8",
                     "model.ffn=16", "model.vocab=300", "train.max_steps=1", "data.train=words.jsonl",
                     "data.eval=words.jsonl", "data.tokenizer=llama", "data.bos=" + bos, "--out", bos})
                  .status,
              0);
    must({"export", "--checkpoint", bos, "--out", bos + "-out"});
    const Seen run = seen(bos), out = seen(bos + "-out");
    EXPECT_EQ(run.prompt, out.prompt) << bos;
    EXPECT_EQ(run.eval_tokens, out.eval_tokens) << bos;
    EXPECT_EQ(run.sampled, out.sampled) << bos;
    const io::Json use = io::read_json(real_files(), folder_ / (bos + "-out") / "tokenizer_config.json");
    EXPECT_EQ(use["add_bos_token"], bos == "auto");
    const io::Json template_of =
        io::read_json(real_files(), folder_ / (bos + "-out") / "tokenizer.json")["post_processor"];
    EXPECT_EQ(template_of.is_null(), bos == "none") << "readers ask it alone: " << template_of.dump();
    (bos == "auto" ? with : without) = run;
  }
  EXPECT_EQ(with.prompt, without.prompt.get<int>() + 1);
  EXPECT_EQ(with.eval_tokens, without.eval_tokens.get<int>() + 2) << "one a document";
  EXPECT_EQ(io::read_json(real_files(), folder_ / "auto-out/config.json")["bos_token_id"], begin);

  // Prepared data of the other kind are refused.
  must({"data", "prepare", "--tokenizer", "llama", "--bos", "none", "--out", "bare", "words.jsonl"});
  expect_bad_input(words_of("eval --checkpoint auto --data bare --device cpu"),
                   {"bare", "begins a text", "--bos always"});
  must(words_of("eval --checkpoint none --data bare --device cpu"));
  expect_bad_input(words_of("train model.layers=1 model.hidden=16 model.heads=2 model.kv_heads=1 model.head_dim=8 "
                            "model.ffn=16 model.vocab=300 train.max_steps=1 data.train=bare data.eval=words.jsonl "
                            "--out refused") +
                       kStillRun,
                   {"data.train", "data.eval", "<|begin_of_text|>", "data.bos"});
  EXPECT_FALSE(exists("refused"));
}

// Tokens of another program that brought no tokenizer are not bytes.
TEST_F(HfFolders, TokensWithoutATokenizerStandForNoText) {
  write("a.bin", std::string(4096, '\1'));
  ASSERT_EQ(train({"model.layers=1", "model.hidden=16", "model.heads=2", "model.kv_heads=1", "model.head_dim=8",
                   "model.ffn=16", "model.vocab=300", "train.max_steps=1", "data.train=a.bin", "data.eval=a.bin",
                   "--out", "run"})
                .status,
            0);
  expect_bad_input({"sample", "--checkpoint", "run", "--prompt", "a", "--device", "cpu"},
                   {"stand for no known text", "--tokenizer"});
  EXPECT_NE(must({"export", "--checkpoint", "run", "--out", "out"}).out.find("stand for no known text"),
            std::string::npos);
  EXPECT_TRUE(io::read_json(real_files(), folder_ / "out/config.json")["eos_token_id"].is_null());
  EXPECT_FALSE(exists("out/tokenizer.json"));
}

// Weights that are not numbers are found on every way that they are read.
TEST_F(HfFolders, WeightsThatAreNotFiniteAreNamed) {
  copy_fixture("hf");
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    io::SafetensorsReader reader(Path(kFixture) / "model.safetensors");
    std::vector<io::TensorToWrite> tensors;
    std::vector<float> changed = reader.at(name).to_f32();
    changed[5] = changed[77] = bad;
    for (const io::StoredTensor& t : reader.tensors())
      tensors.push_back({t.name, t.dtype, t.shape, t.name == name ? std::as_bytes(std::span(changed)) : t.bytes});
    io::write_safetensors(real_files(), folder_ / "hf/model.safetensors", tensors, {});
    const Words parts = {"hf/model.safetensors", "2 of the", name, "NaN or infinite"};
    expect_bad_input({"import", "hf", "--out", "out"}, parts);
    expect_bad_input({"export", "--checkpoint", "hf", "--out", "out", "--dtype", "bf16"}, parts);
    expect_bad_input({"sample", "--checkpoint", "hf", "--tokenizer", "ping", "--prompt", "1", "--device", "cpu"},
                     parts);
    expect_bad_input({"eval", "--checkpoint", "hf", "--data", "ping", "--batches", "1", "--device", "cpu"}, parts);
    const Ran refused = train({"model.init_from=hf", "train.max_steps=1", "--out", "run"});
    EXPECT_EQ(refused.status, 2);
    for (const std::string& part : parts) EXPECT_TRUE(says(refused.err, part));
    EXPECT_FALSE(exists("out") || exists("run"));
  }
}

TEST_F(HfFolders, WhatIsNotSupportedIsRefusedByName) {
  const auto refused = [&](const std::function<void(io::Json&)>& change, const std::string& part) {
    std::filesystem::remove_all(folder_ / "hf");
    copy_fixture("hf");
    change_config("hf", change);
    expect_bad_input({"import", "hf", "--out", "in"}, {"config.json", part});
  };
  refused([](io::Json& j) { j["architectures"] = {"GemmaForCausalLM"}; }, "GemmaForCausalLM");
  refused([](io::Json& j) { j["rope_parameters"]["rope_type"] = "longrope"; }, "longrope");
  refused([](io::Json& j) { j["attention_bias"] = true; }, "bias");
  refused([](io::Json& j) { j["hidden_act"] = "gelu"; }, "gelu");
  refused([](io::Json& j) { j["layer_types"] = {"full_attention", "sliding_attention"}; }, "sliding_attention");
  refused([](io::Json& j) { j["quantization_config"] = {{"bits", 4}}; }, "quantization_config");
  refused([](io::Json& j) { j["partial_rotary_factor"] = 0.5; }, "partial_rotary_factor");
  refused([](io::Json& j) { j["rms_norm_eps"] = -1e-6; }, "rms_norm_eps");
}

// Whether the head is the embedding decides what the model says: where config.json and the file disagree, nobody
// guesses.
TEST_F(HfFolders, AHeadOfItsOwnInATiedModelIsNotThrownAway) {
  const std::string untied = testing::source_folder() + "/tests/fixtures/llama-mha";
  std::filesystem::copy(untied, folder_ / "hf");
  std::filesystem::remove(folder_ / "hf/oracle.safetensors");
  must({"import", "hf", "--out", "as-it-is"});
  change_config("hf", [](io::Json& j) { j["tie_word_embeddings"] = true; });
  expect_bad_input({"import", "hf", "--out", "in"}, {"lm_head.weight", "tie_word_embeddings"});
  // A head that repeats the embedding is passed over.
  io::SafetensorsReader reader(folder_ / "hf/model.safetensors");
  std::vector<io::TensorToWrite> tensors;
  for (const io::StoredTensor& t : reader.tensors())
    tensors.push_back({t.name, t.dtype, t.shape,
                       t.name == "lm_head.weight" ? reader.at("model.embed_tokens.weight").bytes : t.bytes});
  io::write_safetensors(real_files(), folder_ / "same.safetensors", tensors, {});
  std::filesystem::rename(folder_ / "same.safetensors", folder_ / "hf/model.safetensors");
  must({"import", "hf", "--out", "in"});
  EXPECT_EQ(io::WeightFiles(real_files(), folder_ / "in").find("lm_head.weight"), nullptr);
}

// ulimit -f, as batch systems set it.
TEST_F(HfFolders, AFileOverTheLimitIsToldAndLeavesNothing) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{100'000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Ran ran = run({"export", "--checkpoint", kFixture, "--out", "out"});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(ran.status, 1);
  EXPECT_TRUE(says(ran.err, "model.safetensors: cannot write: File too large\n"));
  EXPECT_FALSE(exists("out") || exists("out.partial"));
}

TEST_F(HfFolders, FlagsAndFolders) {
  expect_bad_input({"export", "--out", "a"}, {"--checkpoint"});
  expect_bad_input({"export", "--checkpoint", kFixture}, {"--out"});
  expect_bad_input({"export", "--checkpoint", kFixture, "--out", "a", "--dtype", "int8"}, {"--dtype", "int8"});
  expect_bad_input({"import", "--out", "a"}, {"HF_DIR"});
  expect_bad_input({"import", kFixture}, {"--out"});
  expect_bad_input({"import", "nothing", "--out", "a"}, {"nothing: there is no such folder"});
  write("kept", "x");
  expect_bad_input({"export", "--checkpoint", kFixture, "--out", "."}, {"not empty"});
  EXPECT_FALSE(exists("a"));
}

// The weights that a run tells the held-out loss of go out, and a run that begins with them begins there.
TEST_F(HfFolders, TheAverageOfARunIsExportedAndEvaluatesToWhatTheRunSaid) {
  const Words run_of = {"train.max_steps=8", "train.average=ema", "train.eval_every=8", "optim.lr=1e-2",
                        "optim.schedule=constant"};
  must(words_of("train --out run") + kStillRun + run_of);
  const auto last_row = [&](const std::string& run, std::size_t row) {
    const std::string text = real_files().read(folder_ / run / "metrics.jsonl");
    std::size_t at = 0;
    for (; row > 0; --row) at = text.find('\n', at) + 1;
    return io::Json::parse(text.substr(at, text.find('\n', at) - at));
  };
  const double of_average = last_row("run", 8)["eval_loss_average"], loss = last_row("run", 8)["eval_loss"];
  EXPECT_NE(of_average, loss);
  const auto evaluated = [&](const Words& more) {
    return io::Json::parse(must(words_of("eval --checkpoint run --device cpu --json") + more).out)
        .at("loss")
        .get<double>();
  };
  EXPECT_NEAR(evaluated({}), loss, 1e-6);
  EXPECT_NEAR(evaluated({"--average"}), of_average, 1e-6);

  EXPECT_TRUE(says(must(words_of("export --checkpoint run --out hf --average")).out, "the average in"));
  const io::WeightFiles exported(real_files(), folder_ / "hf"),
      average(real_files(), folder_ / "run/checkpoints/step_00000008", "average.safetensors");
  ASSERT_EQ(exported.tensors(), average.tensors());
  for (const io::StoredTensor& t : average.files()[0].reader->tensors())
    EXPECT_TRUE(std::ranges::equal(t.bytes, exported.at(t.name).bytes)) << t.name;
  must(words_of("train --out again data.train=ping model.init_from=\"hf\"") + kStillRun + run_of);
  EXPECT_NEAR(last_row("again", 0)["eval_loss"].get<double>(), of_average, 1e-6);

  must({"export", "--checkpoint", "run", "--out", "raw"});
  EXPECT_FALSE(std::ranges::equal(io::WeightFiles(real_files(), folder_ / "raw").at("model.norm.weight").bytes,
                                  average.at("model.norm.weight").bytes));
  const std::string none = "holds no average of its weights (average.safetensors); leave --average out";
  expect_bad_input({"export", "--checkpoint", "hf", "--out", "x", "--average"}, {none});
  expect_bad_input({"eval", "--checkpoint", "hf", "--data", "ping", "--average"}, {none});
  expect_bad_input({"sample", "--checkpoint", "hf", "--prompt", "x", "--average"}, {none});
  expect_bad_input({"train", "--out", "y", "train.average=last", "train.max_steps=0", "train.max_hours=1",
                    "optim.schedule=constant"},
                   {"train.average = \"last\" counts back from the last step"});
}

}  // namespace
}  // namespace redline::cli
