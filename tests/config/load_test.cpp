// Configurations from files, presets and the command line: which source wins, and what each mistake is told.
#include "config/load.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "config/keys.h"
#include "testing/temp_folder.h"

namespace redline::config {
namespace {

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& e) {
    return e.what();
  }
  return "no error";
}

std::string parse_error(const std::string& text) {
  return error_of([&] { parse(text, "x.toml"); });
}

std::string override_error(const std::string& word) {
  return error_of([&] { load({"", "", {word}}); });
}

class LoadTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    real_files().replace(folder_.path() / name, text);
    return (folder_.path() / name).string();
  }
  testing::TempFolder folder_;
};

TEST_F(LoadTest, NothingGivenIsTheQuickPreset) {
  const Config c = load({});
  EXPECT_EQ(c.preset, "quick");
  EXPECT_EQ(c.model.head_dim, 64);
  EXPECT_EQ(c.model.kv_heads, 4);
  EXPECT_GT(c.train.max_steps, 0);
}

TEST_F(LoadTest, LaterSourcesWin) {
  const std::string file =
      write("a.toml", "preset = \"llama-1.36b\"\n[train]\nbatch_size = 3\nseq_len = 96\n[optim]\nlr = 1\n");
  const Config c = load({file, "", {"train.seq_len=48", "train.seq_len=32"}});
  EXPECT_EQ(c.preset, "llama-1.36b");
  EXPECT_EQ(c.model.hidden, 2304);
  EXPECT_EQ(c.train.batch_size, 3);
  EXPECT_EQ(c.train.seq_len, 32);
  EXPECT_EQ(c.optim.lr, 1.0);
  EXPECT_EQ(load({file, "gqa-180m", {}}).model.hidden, 768);
  EXPECT_EQ(load({file, "", {"preset=gqa-180m"}}).model.hidden, 768);
  EXPECT_EQ(load({file, "", {"preset=gqa-180m"}}).preset, "gqa-180m");
}

TEST_F(LoadTest, AFileWithoutPresetStartsFromDefaults) {
  const Config c = load({write("a.toml", "[train]\nmax_steps = 7\n"), "", {}});
  Config defaults;
  defaults.train.max_steps = 7;
  resolve(defaults);
  EXPECT_EQ(c, defaults);
}

TEST_F(LoadTest, FilesThatCannotBeRead) {
  const std::string missing = (folder_.path() / "quik.toml").string();
  EXPECT_EQ(error_of([&] { load({missing, "", {}}); }), missing + ": no such file; there is a preset 'quick'");
  const std::string folder = folder_.path().string();
  EXPECT_EQ(error_of([&] { load({folder, "", {}}); }), folder + ": a folder, not a TOML file");
  const std::string broken = write("b.toml", "[train]\n\nseq_len = = 3\n");
  EXPECT_TRUE(error_of([&] { load({broken, "", {}}); }).starts_with(broken + ":3: not valid TOML: "));
  const std::string binary = write("c.toml", std::string("\xff\xfe\x00\x01", 4));
  EXPECT_TRUE(error_of([&] { load({binary, "", {}}); }).starts_with(binary + ":1: not valid TOML: "));
  EXPECT_TRUE(parse_error("[train]\nseq_len = 1\nseq_len = 2\n").starts_with("x.toml:3: "));
}

TEST_F(LoadTest, UnknownNamesAreTold) {
  EXPECT_EQ(parse_error("[model]\nlayers = 2\n[train]\n# x\nbatchsize = 3\n"),
            "x.toml:5: unknown key 'train.batchsize'; did you mean 'train.batch_size'?");
  EXPECT_EQ(parse_error("train.lr = 3\n"), "x.toml:1: unknown key 'train.lr'; did you mean 'optim.lr'?");
  EXPECT_EQ(parse_error("[trian]\nlr = 3\n"), "x.toml:1: unknown section 'trian'; did you mean 'train'?");
  EXPECT_EQ(parse_error("train = 3\n"),
            "x.toml:1: train is a section, not a key: its keys are written as train.NAME = VALUE");
  EXPECT_EQ(parse_error("[train.seq_len]\nx = 1\n").substr(0, 33), "x.toml:1: train.seq_len is a key ");
  EXPECT_EQ(override_error("lr=3"), "on the command line: unknown key 'lr'; did you mean 'optim.lr'?");
  EXPECT_EQ(override_error("modle.layers=3"),
            "on the command line: unknown key 'modle.layers'; did you mean 'model.layers'?");
  EXPECT_EQ(override_error("zebra=3"), "on the command line: unknown key 'zebra'; all keys stand in docs/config.md");
  EXPECT_EQ(override_error("train.seq_len"), "on the command line: 'train.seq_len' is not of the form key=value");
  const std::string preset = error_of([] { load({"", "lama-1.36b", {}}); });
  EXPECT_TRUE(preset.starts_with("on the command line: unknown preset 'lama-1.36b'; did you mean 'llama-1.36b'? "))
      << preset;
  EXPECT_NE(preset.find("cs336-350m-90min, cs336-350m, gqa-180m, llama-1.36b, olmo2-1.5b, ping-95m, quick, qwen3-1.8b"),
            std::string::npos);
  const std::string file = write("p.toml", "\npreset = \"nothing like it\"\n");
  EXPECT_TRUE(error_of([&] { load({file, "", {}}); }).starts_with(file + ":2: unknown preset"));
}

TEST_F(LoadTest, NamesFromElsewhereAreKnown) {
  EXPECT_EQ(override_error("learning_rate=1e-3"),
            "on the command line: unknown key 'learning_rate'; here it is 'optim.lr' (number >= 0)");
  EXPECT_EQ(parse_error("[train]\nwarmup_ratio = 0.1\n"),
            "x.toml:2: unknown key 'train.warmup_ratio'; here it is 'optim.warmup_steps' (integer >= 0, steps)");
  EXPECT_EQ(parse_error("[optimizer]\nlr = 3\n"), "x.toml:1: unknown section 'optimizer'; did you mean 'optim'?");
  EXPECT_EQ(parse_error("[TrainingArguments]\nx = 1\n"),
            "x.toml:1: unknown section 'TrainingArguments'; did you mean 'train'?");
  EXPECT_TRUE(parse_error("[zebra]\n")
                  .ends_with("unknown section 'zebra'; the sections are model, data, train, optim, "
                             "precision, kernels, checkpoint, guard, parallel, log"))
      << parse_error("[zebra]\n");
  EXPECT_TRUE(override_error("output_dir=x").ends_with("here it is the flag '--out'"))
      << override_error("output_dir=x");
  const std::pair<const char*, const char*> names[] = {{"lr", "optim.lr"},
                                                       {"steps", "train.max_steps"},
                                                       {"max_iters", "train.max_steps"},
                                                       {"epochs", "train.epochs"},
                                                       {"num_train_epochs", "train.epochs"},
                                                       {"gradient_accumulation_steps", "train.accumulate"},
                                                       {"per_device_train_batch_size", "train.batch_size"},
                                                       {"intermediate_size", "model.ffn"},
                                                       {"hidden_size", "model.hidden"},
                                                       {"num_layers", "model.layers"},
                                                       {"num_hidden_layers", "model.layers"},
                                                       {"n_layer", "model.layers"},
                                                       {"n_head", "model.heads"},
                                                       {"n_embd", "model.hidden"},
                                                       {"save_every", "checkpoint.every"},
                                                       {"save-steps", "checkpoint.every"},
                                                       {"eval_interval", "train.eval_every"},
                                                       {"max_length", "train.seq_len"},
                                                       {"block_size", "train.seq_len"},
                                                       {"Vocab_Size", "model.vocab"},
                                                       {"max_grad_norm", "optim.clip"}};
  for (const auto& [there, here] : names)
    EXPECT_NE(unknown_key(there).find(std::string("'") + here + "'"), std::string::npos) << unknown_key(there);
}

// A row of the table that names no key, or a word that is a key itself, would mislead.
TEST_F(LoadTest, NamesFromElsewhereLeadToKeys) {
  for (const Key& key : keys()) {
    const std::string here = key_in_other_trainers(key.name);
    if (!here.empty() && here != "train.seed") {
      EXPECT_EQ(here, key.name);
    }
  }
  for (const char* there : {"arch",
                            "n_layers",
                            "d_model",
                            "num_heads",
                            "n_kv_heads",
                            "head_size",
                            "d_ff",
                            "n_vocab",
                            "wd",
                            "tie_weights",
                            "pad_id",
                            "rope_base",
                            "n_positions",
                            "rms_norm_eps",
                            "resid_pdrop",
                            "initializer_range",
                            "dataset",
                            "val_data",
                            "tokenizer_name",
                            "text_column",
                            "num_workers",
                            "prefetch_factor",
                            "bs",
                            "n_ctx",
                            "grad_accum",
                            "iters",
                            "tokens",
                            "random_seed",
                            "eval_steps",
                            "eval_iters",
                            "generate_every",
                            "gradient_checkpointing",
                            "max_lr",
                            "eta_min",
                            "warmup",
                            "scheduler",
                            "betas",
                            "beta_2",
                            "epsilon",
                            "grad_clip",
                            "dtype",
                            "save_total_limit",
                            "logging_steps",
                            "report_to",
                            "pretrained",
                            "document_separator"})
    EXPECT_TRUE(find_key(key_in_other_trainers(there))) << there << " " << key_in_other_trainers(there);
}

TEST_F(LoadTest, SizesAndDepthsAreBounded) {
  std::string dots = "a";
  for (int i = 0; i < 50'000; ++i) dots += ".a";
  EXPECT_EQ(parse_error("\n" + dots + " = 1\n"), "x.toml:2: a key of more than 8 parts");
  EXPECT_EQ(parse_error("[" + dots + "]\n"), "x.toml:1: a key of more than 8 parts");
  EXPECT_EQ(parse_error("x = {a = \"\"\"q\"\"\"\", " + dots + " = 1}\n"), "x.toml:1: a key of more than 8 parts");
  EXPECT_NE(override_error("train.seq_len={" + dots + "=1}"), "no error");
  EXPECT_NE(parse_error("x = " + std::string(100'000, '[')), "no error");
  // Dots in strings and comments are no parts of a key.
  const std::string text =
      "# ....................\n[data]\ntrain = [\"a.b.c.d.e.f.g.h.i.j.k\", \'..............\']\n"
      "separator = \"\"\"\n............\\\"\"\"\"\n[train]\nmax_steps = 1\n";
  EXPECT_EQ(parse(text, "x.toml").data.train.size(), 2u);
  EXPECT_EQ(load({"", "", {"train.sample_prompts=so.............................."}}).train.sample_prompts.size(), 1u);
  const std::string large = write("large.toml", "");
  std::filesystem::resize_file(large, std::uint64_t{20} << 30);  // sparse
  EXPECT_NE(error_of([&] { load({large, "", {}}); }).find("at most 1048576"), std::string::npos);
  EXPECT_NE(parse_error(std::string(2 << 20, '\n')).find("larger than"), std::string::npos);
}

TEST_F(LoadTest, WrongValuesAreTold) {
  EXPECT_EQ(parse_error("[train]\nbatch_size = \"many\"\n"),
            "x.toml:2: train.batch_size must be an integer in [1, 16777216] or \"auto\", not the string \"many\"");
  EXPECT_EQ(parse_error("[train]\nbatch_size = 2.5\n"),
            "x.toml:2: train.batch_size must be an integer in [1, 16777216] or \"auto\", not 2.5");
  EXPECT_EQ(parse_error("[train]\nmax_steps = 9223372036854775807\n"),
            "x.toml:2: train.max_steps must be an integer >= 0, not 9223372036854775807, which is above 2^53");
  EXPECT_EQ(parse_error("[train]\nmax_steps = 1e20\n"),
            "x.toml:2: train.max_steps must be an integer >= 0, not 1e+20, which is above 2^53");
  EXPECT_EQ(parse_error("[optim]\nlr = -1\n"), "x.toml:2: optim.lr must be a number >= 0, not -1");
  EXPECT_EQ(parse_error("[optim]\nlr = nan\n"), "x.toml:2: optim.lr must be a number >= 0, not nan");
  EXPECT_EQ(parse_error("[optim]\nlr = inf\n"), "x.toml:2: optim.lr must be a number >= 0, not inf");
  EXPECT_EQ(parse_error("[model]\ndropout = 1.0\n"), "x.toml:2: model.dropout must be a number in [0, 1), not 1.0");
  EXPECT_EQ(parse_error("[data]\npacking = \"best\"\n"),
            "x.toml:2: data.packing must be one of pack | stream | bucket | pad, not the string \"best\"");
  EXPECT_EQ(parse_error("[model]\ntied = 1\n"), "x.toml:2: model.tied must be true | false, not 1");
  EXPECT_EQ(parse_error("[data]\ntrain = [1, 2]\n"), "x.toml:2: data.train must be a list of strings, not [1, 2]");
  EXPECT_EQ(parse_error("[data]\nbuckets = [64, 0]\n"),
            "x.toml:2: data.buckets must be a list of integers in [1, 16777216], not [64, 0]");
  EXPECT_EQ(parse_error("[data]\nbuckets = [\"64\"]\n"),
            "x.toml:2: data.buckets must be a list of integers in [1, 16777216], not a list");
  EXPECT_EQ(parse_error("[train]\nseed = 1979-05-27\n"),
            "x.toml:2: train.seed must be an integer >= 0, not a value of another kind");
  EXPECT_EQ(override_error("guard.spike=0.5"),
            "on the command line: guard.spike (0.5) must be 0 (no limit) or above 1: it counts usual norms");
  EXPECT_EQ(override_error("train.batch_size=0"),
            "on the command line: train.batch_size must be an integer in [1, 16777216] or \"auto\", not 0");
  EXPECT_EQ(override_error("train.batch_size="),
            "on the command line: train.batch_size needs a value (integer in [1, 16777216] or \"auto\")");
  EXPECT_EQ(override_error("data.train=\xff\xfe"), "on the command line: the value of data.train is not valid UTF-8");
}

TEST_F(LoadTest, AnAutomaticBatchSizeKeepsTheNumberItStandsInFor) {
  const Config c = load({"", "gqa-180m", {"train.batch_size=auto"}});
  EXPECT_TRUE(c.train.automatic_batch_size);
  EXPECT_EQ(c.train.batch_size, 8);
  EXPECT_NE(dump(c).find("batch_size = \"auto\""), std::string::npos);
  const std::string file = write("auto.toml", dump(c));
  EXPECT_EQ(load({file, "", {}}), c) << "its preset still says the number";
  const Config number = load({file, "", {"train.batch_size=4"}});
  EXPECT_FALSE(number.train.automatic_batch_size);
  EXPECT_EQ(number.train.batch_size, 4);
  EXPECT_EQ(differing_keys(c, number), std::vector<std::string>{"train.batch_size"});
}

TEST_F(LoadTest, OverridesTakeWordsNumbersAndLists) {
  const Config c = load({"",
                         "",
                         {"data.train=a.txt,b c.txt", "model.family=qwen3", "optim.lr=1e-3", "train.max_tokens=1e9",
                          "model.tied=true", "data.eval=[\"x,y\", 'z']", " train.seed = 7 "}});
  EXPECT_EQ(c.data.train, (std::vector<std::string>{"a.txt", "b c.txt"}));
  EXPECT_EQ(c.data.eval, (std::vector<std::string>{"x,y", "z"}));
  EXPECT_EQ(c.model.family, "qwen3");
  EXPECT_EQ(c.optim.lr, 1e-3);
  EXPECT_EQ(c.train.max_tokens, 1'000'000'000);
  EXPECT_TRUE(c.model.tied);
  EXPECT_EQ(c.train.seed, 7);
  EXPECT_EQ(load({"", "", {"data.train=2024"}}).data.train, std::vector<std::string>{"2024"});
  EXPECT_EQ(load({"", "", {"data.buckets=64,128"}}).data.buckets, (std::vector<std::int64_t>{64, 128}));
  EXPECT_EQ(load({"", "", {"data.buckets=[64]"}}).data.buckets, std::vector<std::int64_t>{64});
  EXPECT_EQ(load({"", "", {"data.buckets=64"}}).data.buckets, std::vector<std::int64_t>{64});
  EXPECT_EQ(load({"", "", {"data.train=\"a,b\""}}).data.train, std::vector<std::string>{"a,b"});
  EXPECT_TRUE(load({"", "", {"data.eval=x", "data.eval="}}).data.eval.empty());
}

TEST_F(LoadTest, RulesAboutSeveralKeysPointAtTheLastOneSet) {
  const std::string steps = "train.max_steps = 100\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"train.seq_len = 8\n",
       "train.max_steps, train.max_tokens, train.epochs and train.max_hours are all 0: set one of them, so that "
       "training ends"},
      {"train.max_hours = 2\n",
       "x.toml:1: train.max_hours (2) alone ends training, and optim.schedule (\"cosine\") counts to the last step: "
       "set "
       "train.fit_hours = true, so that the steps follow the hours, or train.max_steps, or optim.schedule = "
       "\"constant\""},
      {steps + "train.fit_hours = true\n",
       "x.toml:2: train.fit_hours is on and train.max_hours is 0: set the hours that the steps are to fit"},
      {steps + "train.patience = 3\n",
       "x.toml:2: train.patience (3) counts evaluations, and train.eval_every is 0: set the steps between them"},
      {steps + "train.target_loss = 2.5\n",
       "x.toml:2: train.target_loss (2.5) needs evaluations, and train.eval_every is 0: set the steps between them"},
      {steps + "model.heads = 3\n",
       "x.toml:2: model.hidden (256) must be a multiple of model.heads (3) unless model.head_dim is set"},
      {steps + "model.kv_heads = 3\n", "x.toml:2: model.heads (4) must be a multiple of model.kv_heads (3)"},
      {steps + "model.head_dim = 33\n",
       "x.toml:2: model.head_dim (33) must be even: rotary positions turn pairs of elements"},
      {steps + "optim.min_lr = 1\n", "x.toml:2: optim.min_lr (1) must not be above optim.lr (0.0003)"},
      {steps + "optim.cautious_decay = true\n",
       "x.toml:2: optim.cautious_decay is for the matrices that Muon updates, and optim.name is \"adamw\"; set it to "
       "\"muon\", or optim.cautious_decay to false"},
      {steps + "train.batch_size = 1000000\ntrain.seq_len = 1000000\n",
       "x.toml:3: train.batch_size (1000000) times train.seq_len (1000000) must be below 2^31 tokens; raise "
       "train.accumulate "
       "instead"},
      {steps + "data.train = \"a.txt\"\ndata.documents = 5\n",
       "x.toml:3: data.documents (5) counts generated documents; it must be 0 for other data than \"ping\""},
      {steps + "data.train = []\n", "x.toml:2: data.train is empty: name text files, a folder, or \"ping\""},
      {steps + "model.rope_scaling = \"llama3\"\nmodel.rope_low_freq_factor = 4\n",
       "x.toml:3: model.rope_high_freq_factor (4) must be greater than model.rope_low_freq_factor (4)"},
  };
  for (const auto& [text, sentence] : cases) EXPECT_EQ(parse_error(text), sentence) << text;
  EXPECT_EQ(parse_error("train.max_tokens = 1\n"), "no error");
  EXPECT_EQ(parse_error("train.max_hours = 2\ntrain.fit_hours = true\n"), "no error");
  EXPECT_EQ(parse_error("train.max_hours = 2\noptim.schedule = \"constant\"\n"), "no error");
  EXPECT_EQ(parse_error("train.max_hours = 2\ntrain.epochs = 1\n"), "no error");
  EXPECT_EQ(parse_error(steps + "train.patience = 3\ntrain.target_loss = 1\ntrain.eval_every = 10\n"), "no error");
  EXPECT_EQ(override_error("model.kv_heads=3").substr(0, 20), "on the command line:");
}

}  // namespace
}  // namespace redline::config
