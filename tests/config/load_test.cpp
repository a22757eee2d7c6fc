// Configurations from files, presets and the command line: which source wins, what is said of each
// mistake, and that each preset is the model it is named for.
#include "config/load.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "base/files.h"
#include "config/keys.h"
#include "testing/paths.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::config {
namespace {

using testing::error_of;
using testing::says;

std::string parse_error(const std::string& text) {
  return error_of([&] { parse(text, "x.toml"); });
}

std::string override_error(const std::string& word) {
  return error_of([&] { load({"", "", {word}}); });
}

// A mistake, and what the sentence about it says: where it stands, the key, what would be right.
struct Mistake {
  std::string text;
  std::vector<std::string_view> parts;
};
void expect_said(const std::vector<Mistake>& mistakes, std::string (*error)(const std::string&)) {
  for (const Mistake& m : mistakes)
    for (const std::string_view part : m.parts) EXPECT_TRUE(says(error(m.text), {part})) << m.text;
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
  const auto load_error = [](const std::string& file) { return error_of([&] { load({file, "", {}}); }); };
  const std::string missing = (folder_.path() / "quik.toml").string();
  EXPECT_TRUE(says(load_error(missing), {missing + ": ", "no such file", "'quick'"}));
  EXPECT_TRUE(says(load_error(folder_.path().string()), {folder_.path().string() + ": ", "folder"}));
  const std::string broken = write("b.toml", "[train]\n\nseq_len = = 3\n");
  EXPECT_TRUE(says(load_error(broken), {broken + ":3: ", "TOML"}));
  const std::string binary = write("c.toml", std::string("\xff\xfe\x00\x01", 4));
  EXPECT_TRUE(says(load_error(binary), {binary + ":1: ", "TOML"}));
  EXPECT_TRUE(says(parse_error("[train]\nseq_len = 1\nseq_len = 2\n"), {"x.toml:3: "}));
}

TEST_F(LoadTest, UnknownNamesAreSaid) {
  expect_said({{"[model]\nlayers = 2\n[train]\n# x\nbatchsize = 3\n",
                {"x.toml:5: ", "'train.batchsize'", "'train.batch_size'?"}},
               {"train.lr = 3\n", {"x.toml:1: ", "'train.lr'", "'optim.lr'?"}},
               {"[trian]\nlr = 3\n", {"x.toml:1: ", "section 'trian'", "'train'?"}},
               {"train = 3\n", {"x.toml:1: ", "train is a section", "train.NAME"}},
               {"[train.seq_len]\nx = 1\n", {"x.toml:1: ", "train.seq_len is a key"}},
               {"[train]\nwarmup_ratio = 0.1\n",
                {"x.toml:2: ", "'train.warmup_ratio'", "'optim.warmup_steps' (integer >= 0, steps)"}},
               {"[optimizer]\nlr = 3\n", {"x.toml:1: ", "section 'optimizer'", "'optim'?"}},
               {"[TrainingArguments]\nx = 1\n", {"x.toml:1: ", "'TrainingArguments'", "'train'?"}},
               {"[zebra]\n",
                {"section 'zebra'",
                 "model, data, train, optim, precision, kernels, memory, checkpoint, guard, parallel, log"}}},
              parse_error);
  expect_said({{"lr=3", {"on the command line: ", "'lr'", "'optim.lr'?"}},
               {"modle.layers=3", {"'modle.layers'", "'model.layers'?"}},
               {"zebra=3", {"'zebra'", "docs/config.md"}},
               {"train.seq_len", {"'train.seq_len'", "key=value"}},
               {"offload_optimizer=true", {"'offload_optimizer'", "'memory.fit'"}},
               {"learning_rate=1e-3", {"on the command line: ", "'learning_rate'", "'optim.lr' (number >= 0)"}},
               {"output_dir=x", {"flag '--out'"}}},
              override_error);
  const std::string preset = error_of([] { load({"", "lama-1.36b", {}}); });
  EXPECT_TRUE(says(preset, {"on the command line: ", "preset 'lama-1.36b'", "'llama-1.36b'?",
                            "gqa-180m, llama-1.29b, llama-1.36b, mistral-1.3b, moe-1b, olmo2-1.5b, olmoe-1b-7b"}));
  const std::string file = write("p.toml", "\npreset = \"nothing like it\"\n");
  EXPECT_TRUE(says(error_of([&] { load({file, "", {}}); }), {file + ":2: unknown preset"}));
}

TEST_F(LoadTest, NamesFromElsewhereAreKnown) {
  const std::pair<const char*, const char*> names[] = {// clang-format off
      {"lr", "optim.lr"}, {"steps", "train.max_steps"}, {"max_iters", "train.max_steps"}, {"epochs", "train.epochs"},
      {"num_train_epochs", "train.epochs"}, {"gradient_accumulation_steps", "train.accumulate"},
      {"per_device_train_batch_size", "train.batch_size"}, {"intermediate_size", "model.ffn"},
      {"hidden_size", "model.hidden"}, {"num_layers", "model.layers"}, {"num_hidden_layers", "model.layers"},
      {"n_layer", "model.layers"}, {"n_head", "model.heads"}, {"n_embd", "model.hidden"},
      {"save_every", "checkpoint.every"}, {"save-steps", "checkpoint.every"}, {"eval_interval", "train.eval_every"},
      {"max_length", "train.seq_len"}, {"block_size", "train.seq_len"}, {"Vocab_Size", "model.vocab"},
      {"max_grad_norm", "optim.clip"}};
  // clang-format on
  for (const auto& [there, here] : names) EXPECT_TRUE(says(unknown_key(there), {fmt::format("'{}'", here)}));
}

// A row of the table that names no key, or a word that is a key itself, would mislead.
TEST_F(LoadTest, NamesFromElsewhereLeadToKeys) {
  for (const Key& key : keys()) {
    const std::string here = key_in_other_trainers(key.name);
    if (!here.empty() && here != "train.seed") {
      EXPECT_EQ(here, key.name);
    }
  }
  std::istringstream words(
      "arch n_layers d_model num_heads n_kv_heads head_size d_ff n_vocab wd tie_weights pad_id rope_base "
      "n_positions rms_norm_eps resid_pdrop initializer_range dataset val_data tokenizer_name text_column "
      "num_workers prefetch_factor bs n_ctx grad_accum iters tokens random_seed eval_steps eval_iters "
      "generate_every gradient_checkpointing max_lr eta_min warmup scheduler betas beta_2 epsilon grad_clip "
      "dtype save_total_limit logging_steps report_to pretrained document_separator");
  for (std::string there; words >> there;)
    EXPECT_TRUE(find_key(key_in_other_trainers(there))) << there << " " << key_in_other_trainers(there);
}

// What another trainer's key and value set there, they set here: redline takes the answer as it stands.
TEST_F(LoadTest, SettingsFromElsewhereAreAnsweredWithOnesThatAreTaken) {
  for (const Elsewhere& e : settings_elsewhere()) {
    EXPECT_TRUE(says(unknown_key(e.key, e.value), {fmt::format("'{}'", e.here)}));
    EXPECT_EQ(error_of([&] { load({"", "quick", {std::string(e.here)}}); }), "no error") << e.here;
  }
  EXPECT_TRUE(says(override_error("compile_mode=max-autotune"), {"'kernels.tuning=max'"}));
  EXPECT_TRUE(says(override_error("compile_mode=never"), {"'kernels.tuning' (off | on | max)"}));
  EXPECT_TRUE(says(parse_error("[train]\nuse_zero1 = true\n"), {"x.toml:2: ", "'parallel.mode=zero1'"}));
  EXPECT_TRUE(says(parse_error("[model]\nfused_qkv = true\n"), {"nothing to set", "one product"}));
  EXPECT_TRUE(says(override_error("tf32=True"), {"'precision.matmul=tf32'"}));
  EXPECT_TRUE(says(override_error("zero_optimization.stage=1"), {"'parallel.mode=zero1'"}));
  EXPECT_TRUE(says(override_error("zero_optimization.stage=2"), {"'parallel.mode' (auto | ddp | zero1 | fsdp)"}));
  EXPECT_TRUE(says(override_error("zero_optimization.offload_optimizer.device=cpu"), {"'memory.fit'"}));
}

std::vector<std::string> marked_words(const std::string& cell) {
  std::vector<std::string> words;
  for (std::size_t begin = cell.find('`'); begin != cell.npos; begin = cell.find('`', begin)) {
    const std::size_t end = cell.find('`', begin + 1);
    if (end == cell.npos) break;
    words.push_back(cell.substr(begin + 1, end - begin - 1));
    begin = end + 1;
  }
  return words;
}

// docs/coming_from.md: the program answers each name of the first column with the first name of the last one, or says
// that there is nothing to set.
TEST(ComingFrom, TheProgramSaysWhatThePageSays) {
  std::istringstream page(real_files().read(Path(testing::source_folder()) / "docs" / "coming_from.md"));
  std::size_t rows = 0;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| `")) continue;
    const std::size_t first_end = line.find(" |", 2), last = line.rfind("| ", line.size() - 3);
    const std::string here = line.substr(last + 2);
    const std::vector<std::string> ours = marked_words(here);
    for (const std::string& word : marked_words(line.substr(2, first_end - 2))) {
      const std::size_t equals = std::min(word.find('='), word.size());
      const std::string said =
          unknown_key(word.substr(0, equals), equals < word.size() ? word.substr(equals + 1) : std::string());
      if (here.starts_with("nothing to set"))
        EXPECT_TRUE(says(said, {"nothing to set"})) << line;
      else
        EXPECT_TRUE(says(said, {fmt::format("'{}'", ours.at(0))})) << line;
      ++rows;
    }
    for (const std::string& key : ours) {
      const std::string name = key.substr(0, key.find('='));
      EXPECT_TRUE(!is_section(name.substr(0, name.find('.'))) || find_key(name)) << name << " in " << line;
    }
  }
  EXPECT_GT(rows, 150u);
}

TEST_F(LoadTest, SizesAndDepthsAreBounded) {
  std::string dots = "a";
  for (int i = 0; i < 50'000; ++i) dots += ".a";
  EXPECT_TRUE(says(parse_error("\n" + dots + " = 1\n"), {"x.toml:2: ", "8 parts"}));
  EXPECT_TRUE(says(parse_error("[" + dots + "]\n"), {"x.toml:1: ", "8 parts"}));
  EXPECT_TRUE(says(parse_error("x = {a = \"\"\"q\"\"\"\", " + dots + " = 1}\n"), {"x.toml:1: ", "8 parts"}));
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
  EXPECT_TRUE(says(error_of([&] { load({large, "", {}}); }), {"at most 1048576"}));
  EXPECT_TRUE(says(parse_error(std::string(2 << 20, '\n')), {"larger", "1024 KiB"}));
}

TEST_F(LoadTest, WrongValuesAreSaid) {
  const std::string_view batch = "integer in [1, 16777216] or \"auto\"", lists = "list of integers in [1, 16777216]";
  expect_said({{"[train]\nbatch_size = \"many\"\n", {"x.toml:2: train.batch_size", batch, "string \"many\""}},
               {"[train]\nbatch_size = 2.5\n", {"x.toml:2: train.batch_size", batch, "not 2.5"}},
               {"[train]\nmax_steps = 9223372036854775807\n",
                {"train.max_steps", "integer >= 0", "9223372036854775807", "2^53"}},
               {"[train]\nmax_steps = 1e20\n", {"train.max_steps", "integer >= 0", "1e+20", "2^53"}},
               {"[optim]\nlr = -1\n", {"x.toml:2: optim.lr", "number >= 0", "not -1"}},
               {"[optim]\nlr = nan\n", {"optim.lr", "number >= 0", "not nan"}},
               {"[optim]\nlr = inf\n", {"optim.lr", "number >= 0", "not inf"}},
               {"[model]\ndropout = 1.0\n", {"model.dropout", "number in [0, 1)", "not 1.0"}},
               {"[data]\npacking = \"best\"\n", {"data.packing", "pack | stream | bucket | pad", "\"best\""}},
               {"[model]\ntied = 1\n", {"model.tied", "true | false", "not 1"}},
               {"[data]\ntrain = [1, 2]\n", {"data.train", "list of strings", "[1, 2]"}},
               {"[data]\nbuckets = [64, 0]\n", {"data.buckets", lists, "[64, 0]"}},
               {"[data]\nbuckets = [\"64\"]\n", {"data.buckets", lists, "a list"}},
               {"[train]\nseed = 1979-05-27\n", {"train.seed", "integer >= 0", "another kind"}}},
              parse_error);
  expect_said({{"guard.spike=0.5", {"on the command line: guard.spike (0.5)", "above 1"}},
               {"train.batch_size=0", {"train.batch_size", batch, "not 0"}},
               {"train.batch_size=", {"train.batch_size", "value", batch}},
               {"data.train=\xff\xfe", {"data.train", "UTF-8"}}},
              override_error);
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
  expect_said(
      {{"train.seq_len = 8\n", {"train.max_steps, train.max_tokens, train.epochs and train.max_hours", "0"}},
       {"train.max_hours = 2\n",
        {"x.toml:1: train.max_hours (2)", "optim.schedule (\"cosine\")", "train.fit_hours = true"}},
       {steps + "train.fit_hours = true\n", {"x.toml:2: train.fit_hours", "train.max_hours is 0"}},
       {steps + "train.patience = 3\n", {"x.toml:2: train.patience (3)", "train.eval_every is 0"}},
       {steps + "train.target_loss = 2.5\n", {"x.toml:2: train.target_loss (2.5)", "train.eval_every is 0"}},
       {steps + "model.heads = 3\n", {"x.toml:2: model.hidden (256)", "multiple of model.heads (3)", "model.head_dim"}},
       {steps + "model.kv_heads = 3\n", {"x.toml:2: model.heads (4)", "multiple of model.kv_heads (3)"}},
       {steps + "model.head_dim = 33\n", {"x.toml:2: model.head_dim (33)", "even"}},
       {steps + "optim.min_lr = 1\n", {"x.toml:2: optim.min_lr (1)", "above optim.lr (0.0003)"}},
       {steps + "optim.cautious_decay = true\n", {"x.toml:2: optim.cautious_decay", "optim.name is \"adamw\""}},
       {steps + "train.batch_size = 1000000\ntrain.seq_len = 1000000\n",
        {"x.toml:3: train.batch_size (1000000)", "train.seq_len (1000000)", "2^31 tokens", "train.accumulate"}},
       {steps + "data.train = \"a.txt\"\ndata.documents = 5\n", {"x.toml:3: data.documents (5)", "\"ping\""}},
       {steps + "optim.warmup_fraction = 0.1\noptim.warmup_steps = 5\n",
        {"x.toml:3: optim.warmup_steps (5)", "optim.warmup_fraction (0.1)"}},
       {"train.max_hours = 2\ntrain.fit_hours = true\noptim.warmup_fraction = 0.1\n",
        {"x.toml:3: optim.warmup_fraction (0.1)", "optim.warmup_steps"}},
       {steps + "model.rope_scaling = \"llama3\"\nmodel.rope_low_freq_factor = 4\n",
        {"x.toml:3: model.rope_high_freq_factor (4)", "model.rope_low_freq_factor (4)"}}},
      parse_error);
  for (const std::string& right :
       {std::string("train.max_tokens = 1\n"), std::string("train.max_hours = 2\ntrain.fit_hours = true\n"),
        std::string("train.max_hours = 2\noptim.schedule = \"constant\"\n"),
        std::string("train.max_hours = 2\ntrain.epochs = 1\n"),
        steps + "train.patience = 3\ntrain.target_loss = 1\ntrain.eval_every = 10\n"})
    EXPECT_EQ(parse_error(right), "no error") << right;
  EXPECT_EQ(override_error("model.kv_heads=3").substr(0, 20), "on the command line:");
}

// Nobody trains on data that he did not name: only the built-in run and ping's own model have some.
TEST_F(LoadTest, DataHaveNoDefault) {
  EXPECT_TRUE(Config().data.train.empty());
  const std::string file = write("a.toml", "[train]\nmax_steps = 7\n");
  EXPECT_TRUE(says(error_of([&] { require_data(load({file, "", {}})); }), {"data.train", "data.train=texts/", "ping"}));
  const std::string empty = write("b.toml", "train.max_steps = 7\ndata.train = []\n");
  EXPECT_TRUE(says(error_of([&] { require_data(load({empty, "", {}})); }), {empty + ":2: data.train"}));
  for (const EmbeddedFile& preset : embedded_configs()) {
    const bool has_data = preset.name == "quick" || preset.name.starts_with("ping-95m");
    Config c = load({"", std::string(preset.name), {}});
    EXPECT_EQ(error_of([&] { require_data(c); }) == "no error", has_data) << preset.name;
    EXPECT_EQ(stand_in_for_data(c), !has_data);
    EXPECT_EQ(c.data.train[0], has_data ? "ping" : fmt::format("random:{}", c.model.vocab));
    require_data(c);
  }
  EXPECT_EQ(load({}).data.train, std::vector<std::string>{"ping"});
  EXPECT_EQ(parse("train.max_steps = 7\n", "config.toml").data.train[0], "ping") << "as a run of old meant it";
}

TEST_F(LoadTest, WeightsToStartFromAreNotOfTheQuickPreset) {
  const Config c = load({"", "", {"model.init_from=somewhere", "train.max_steps=5"}});
  EXPECT_EQ(c.preset, "");
  EXPECT_EQ(c.optim, Optim());
  EXPECT_TRUE(c.data.train.empty());
  EXPECT_EQ(load({"", "quick", {"model.init_from=somewhere"}}).preset, "quick");
  EXPECT_EQ(load({"", "", {"model.init_from=somewhere", "model.init_from=\"\""}}).preset, "quick");
}

// What is inside the program is what stands in configs/.
TEST(Presets, AreTheFilesOfConfigs) {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : embedded_configs()) {
    names.push_back(std::string(file.name) + ".toml");
    EXPECT_EQ(real_files().read(Path(testing::source_folder()) / "configs" / names.back()), file.text) << file.name;
  }
  EXPECT_EQ(names, real_files().list(Path(testing::source_folder()) / "configs"));
}

// Parameters without the norms' and routers' weights, which are below a thousandth, and with so many experts.
std::int64_t matrix_parameters(const Model& m, std::int64_t experts) {
  const std::int64_t attention = m.hidden * m.head_dim * (2 * m.heads + 2 * m.kv_heads);
  const std::int64_t mlp = experts > 0 ? experts * (m.expert_ffn > 0 ? m.expert_ffn : m.ffn) : m.ffn;
  return m.layers * (attention + 3 * m.hidden * mlp) + (m.tied ? 1 : 2) * m.vocab * m.hidden;
}

TEST(Presets, HaveTheSizesTheyAreNamedFor) {
  const std::vector<std::pair<std::string, double>> sizes = {
      {"ping-95m", 95e6},       {"ping-95m-256", 95e6},      {"gqa-180m", 180e6},         {"gqa-180m-adamw", 180e6},
      {"cs336-350m", 350e6},    {"cs336-350m-adamw", 350e6}, {"llama-1.36b", 1.36e9},     {"llama-1.29b", 1.29e9},
      {"qwen3-1.8b", 1.8e9},    {"olmo2-1.5b", 1.48e9},      {"cs336-350m-90min", 370e6}, {"gemma3-1b", 1e9},
      {"mistral-1.3b", 1.33e9}, {"moe-1b", 1.07e9},          {"olmoe-1b-7b", 6.92e9},     {"qwen3-30b-a3b", 30.5e9}};
  for (const auto& [name, size] : sizes) {
    const Model m = load({"", name, {}}).model;
    const auto parameters = static_cast<double>(matrix_parameters(m, m.experts));
    EXPECT_NEAR(parameters / size, 1.0, 0.02) << name << " " << parameters;
  }
  const std::vector<std::pair<std::string, double>> active = {
      {"moe-1b", 181e6}, {"olmoe-1b-7b", 1.28e9}, {"qwen3-30b-a3b", 3.3e9}};
  for (const auto& [name, size] : active) {
    const Model m = load({"", name, {}}).model;
    const auto parameters = static_cast<double>(matrix_parameters(m, m.experts_per_token));
    EXPECT_NEAR(parameters / size, 1.0, 0.02) << name << " " << parameters;
  }
  EXPECT_EQ(matrix_parameters(load({"", "moe-1b", {}}).model, 4),
            matrix_parameters(load({"", "gqa-180m", {}}).model, 0))
      << "a token takes as much of one as of the other";
}

TEST(Masters, InBf16HaveNoAverageAndNoNorms) {
  EXPECT_EQ(load({"", "quick", {"precision.masters=bf16"}}).precision.masters, "bf16");
  for (const char* other : {"train.average=ema", "log.norms_every=5"}) {
    const std::string refused = error_of([&] { load({"", "quick", {"precision.masters=bf16", other}}); });
    const std::string key = std::string(other).substr(0, std::string(other).find('='));
    EXPECT_TRUE(says(refused, {key, "precision.masters", "set one of them back"})) << refused;
  }
}

// A preset with Muon has the settings of its original beside it, and eight bits are AdamW's.
TEST(Presets, WithMuonHaveATwinWithAdamw) {
  for (const char* name : {"gqa-180m", "cs336-350m"}) {
    const std::string twin = fmt::format("{}-adamw", name);
    EXPECT_EQ(load({"", name, {}}).model, load({"", twin, {}}).model) << name;
    EXPECT_EQ(load({"", twin, {"optim.moments=8bit"}}).optim.name, "adamw");
    const std::string refused = error_of([&] { load({"", name, {"optim.moments=8bit"}}); });
    EXPECT_TRUE(says(refused, {"optim.moments", "muon", twin}));
  }
  const std::string other = error_of([] { load({"", "quick", {"optim.name=muon", "optim.moments=8bit"}}); });
  EXPECT_TRUE(says(other, {"optim.name = \"adamw\""}));
  const Config once = load({"", "ping-95m", {}}), twice = load({"", "ping-95m-256", {"model.dropout=0.1"}});
  EXPECT_EQ(once.model, twice.model);
  EXPECT_EQ(2 * once.train.batch_size * once.train.accumulate, twice.train.batch_size * twice.train.accumulate);
  EXPECT_NEAR(twice.optim.lr / once.optim.lr, 1.414, 1e-3);
}

// The configuration of a run that an earlier redline made: whole, but for the keys that are younger.
std::string old_run_text(std::vector<std::string> overrides) {
  std::string text, line;
  std::istringstream lines(dump(load({"", "quick", std::move(overrides)})));
  while (std::getline(lines, line))
    if (!line.starts_with("eval_tokens") && !line.starts_with("minutes")) text += line + "\n";
  return text;
}

TEST(OldRuns, KeysThatTheyLackMeanWhatTheyMeant) {
  const std::string text = old_run_text({"train.eval_batches=16"});
  const Config run = parse(text, "config.toml");
  EXPECT_EQ(run.train.eval_tokens, 0);
  EXPECT_EQ(run.train.eval_batches, 16);
  EXPECT_EQ(run.checkpoint.minutes, 0);

  const testing::TempFolder temp;
  const std::string file = (temp.path() / "config.toml").string();
  real_files().replace(file, text);
  const Config own = load({.file = file, .preset = "", .overrides = {"optim.lr=1e-3"}, .of_run = true});
  EXPECT_EQ(own.train.eval_tokens, 0);
  EXPECT_EQ(own.train.eval_batches, 16);
  EXPECT_EQ(own.checkpoint.minutes, 0);
  EXPECT_EQ(own.preset, "quick");
  const Config asked = load({.file = file, .preset = "", .overrides = {"train.eval_tokens=99"}, .of_run = true});
  EXPECT_EQ(asked.train.eval_tokens, 99);
  EXPECT_EQ(asked.train.eval_batches, 0);
  // A new run that starts from the same file has the defaults.
  EXPECT_EQ(load({file, "", {}}).checkpoint.minutes, 15);
}

// A preset may have changed since the run began: it has nothing to say about a run's own file.
TEST(OldRuns, ThePresetOfARunIsANameAlone) {
  const testing::TempFolder temp;
  const std::string file = (temp.path() / "config.toml").string();
  real_files().replace(file, "preset = \"ping-95m\"\n[train]\nmax_steps = 5\n");
  EXPECT_EQ(load({.file = file, .preset = "", .overrides = {}, .of_run = true}).model.layers, Model{}.layers);
  EXPECT_NE(load({file, "", {}}).model.layers, Model{}.layers);
}

TEST(OldRuns, GoOnAsTheyBeganWithAnotherFileThatDoesNotSayOtherwise) {
  const Config run = parse(old_run_text({"train.eval_batches=16"}), "config.toml");
  const auto keep_in = [&](std::vector<std::string> overrides) {
    std::vector<std::string> kept;
    const Config c =
        load({"", "quick", std::move(overrides)}, [&](Config& with) { kept = keep_old_meanings(run, with); });
    return std::pair(c, kept);
  };
  const auto [plain, kept] = keep_in({});
  EXPECT_EQ(plain.train.eval_tokens, 0);
  EXPECT_EQ(plain.train.eval_batches, 16);
  EXPECT_EQ(plain.checkpoint.minutes, 0);
  EXPECT_EQ(kept, (std::vector<std::string>{"train.eval_tokens", "checkpoint.minutes", "train.eval_batches"}));
  const auto [written, still] = keep_in({"train.eval_tokens=500", "checkpoint.minutes=2"});
  EXPECT_EQ(written.train.eval_tokens, 500);
  EXPECT_EQ(written.train.eval_batches, 0);
  EXPECT_EQ(written.checkpoint.minutes, 2);
  EXPECT_TRUE(still.empty());
  // A run of today keeps nothing: what the file says counts.
  const Config today = load({"", "quick", {"checkpoint.minutes=3"}});
  Config other = load({"", "quick", {}});
  EXPECT_TRUE(keep_old_meanings(today, other).empty());
  EXPECT_EQ(other.checkpoint.minutes, 15);
}

TEST(Evaluation, TokensOrBatchesSayHowMuchItCovers) {
  const auto settled = [](std::vector<std::string> overrides) {
    const Train t = load({"", "quick", std::move(overrides)}).train;
    return std::pair(t.eval_tokens, t.eval_batches);
  };
  using Pair = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(settled({}), (Pair{4096, 0}));
  EXPECT_EQ(settled({"train.eval_batches=4"}), (Pair{0, 4})) << "what somebody wrote keeps its meaning";
  EXPECT_EQ(settled({"train.eval_tokens=100"}), (Pair{100, 0}));
  EXPECT_TRUE(says(override_error("train.eval_tokens=0"), {"train.eval_tokens", "train.eval_batches", "both 0"}));
  EXPECT_EQ(settled({"train.eval_tokens=0", "train.eval_every=0"}), (Pair{0, 0})) << "nothing is evaluated";
  EXPECT_TRUE(says(error_of([&] {
                     settled({"train.eval_tokens=5", "train.eval_batches=4"});
                   }),
                   {"train.eval_tokens (5)", "train.eval_batches (4)"}));
  EXPECT_TRUE(says(parse_error("[train]\nmax_steps = 1\neval_tokens = 5\neval_batches = 4\n"), {"x.toml:4", "both"}));
  for (const EmbeddedFile& file : embedded_configs())
    EXPECT_EQ(load({"", std::string(file.name), {}}).train.eval_tokens, file.name == "quick" ? 4096 : 65'536)
        << file.name;
}

TEST(Amounts, OfMemoryHaveAUnit) {
  EXPECT_EQ(bytes_of_amount("24GiB"), std::int64_t{24} << 30);
  EXPECT_EQ(bytes_of_amount("1.5 MiB"), std::int64_t{3} << 19);
  EXPECT_EQ(bytes_of_amount(""), std::numeric_limits<std::int64_t>::max());
  for (const char* text : {"24", "24GB", "GiB", "-1GiB", "0GiB", "1e30TiB", "nanGiB", "24GiBs"})
    EXPECT_EQ(bytes_of_amount(text), 0) << text;
}

TEST(Presets, NoneLeansOnAnother) {
  for (const EmbeddedFile& file : embedded_configs()) {
    EXPECT_EQ(file.text.find("\npreset"), std::string_view::npos);
    const Path path = Path(testing::source_folder()) / "configs" / (std::string(file.name) + ".toml");
    const Config alone = load({path.string(), "", {}});
    Config loaded = load({"", std::string(file.name), {}});
    EXPECT_EQ(loaded.preset, file.name);
    loaded.preset.clear();
    EXPECT_EQ(alone, loaded);
  }
}

TEST(Presets, NoneIsTheBareDefaults) {
  const Config config = load({.file = "", .preset = "none", .overrides = {"train.max_steps=5"}});
  EXPECT_EQ(config.preset, "");
  EXPECT_TRUE(config.data.train.empty());
  EXPECT_EQ(config.optim.lr, Config{}.optim.lr);
}

TEST(Reasons, StandAboveTheirKeysAndComeBack) {
  Config config = load({.file = "", .preset = "none", .overrides = {"train.max_steps=5"}});
  config.origins.set("train.seq_len", "chosen: rows of = and # as they are", true);
  const std::string text = dump(config);
  EXPECT_TRUE(says(text, "\n# chosen: rows of = and # as they are\nseq_len = 256 "));
  EXPECT_EQ(dump(parse(text, "config.toml")), text);
  testing::TempFolder folder;
  const Path file = folder / "config.toml";
  real_files().replace(file, text);
  const auto again = [&](std::vector<std::string> words) {
    return dump(load({.file = file.string(), .preset = "", .overrides = std::move(words), .of_run = true}));
  };
  EXPECT_EQ(again({}), text);
  EXPECT_EQ(again({"train.seq_len=128"}).find("# chosen"), std::string::npos) << "the user chose it";
}

}  // namespace
}  // namespace redline::config
