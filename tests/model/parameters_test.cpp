// The table of parameters of presets and of Hugging Face folders, and the settings that a family decides.
#include "model/parameters.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "config/load.h"
#include "io/safetensors.h"
#include "model/family.h"
#include "model/fp8_linears.h"
#include "model/hf_config.h"
#include "model/lowering.h"
#include "model/tiny.h"
#include "testing/paths.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::model {
namespace {

using namespace redline::testing;

TEST(Parameters, PresetsHaveTheSizesTheirNamesSay) {
  const auto millions = [](const char* preset) {
    const config::Config c = config::load({.file = "", .preset = preset, .overrides = {}});
    return static_cast<double>(parameter_count(family_of(c.model).table(c.model))) / 1e6;
  };
  EXPECT_NEAR(millions("quick"), 4.96, 0.01);
  EXPECT_NEAR(millions("ping-95m"), 95, 1);
  EXPECT_NEAR(millions("gqa-180m"), 180, 5);
  EXPECT_NEAR(millions("cs336-350m"), 355, 1);  // 303 M in the blocks and one table of 51.5 M
  EXPECT_NEAR(millions("llama-1.36b"), 1358, 1);
  EXPECT_NEAR(millions("llama-1.29b"), 1294, 1);
  EXPECT_NEAR(millions("qwen3-1.8b"), 1830, 20);
  EXPECT_NEAR(millions("olmo2-1.5b"), 1485, 1);
  EXPECT_NEAR(millions("gemma3-1b"), 999.9, 0.1);
  EXPECT_NEAR(millions("mistral-1.3b"), 1330.7, 0.1);
}

// OLMoE-1B-7B as it was published: 6.92 billion parameters, of which a token takes 1.28.
TEST(Parameters, ATokenTakesFewOfManyExperts) {
  config::Model m;
  m.family = "olmoe";
  m.layers = 16;
  m.hidden = 2048;
  m.heads = m.kv_heads = 16;
  m.head_dim = 128;
  m.experts = 64;
  m.experts_per_token = 8;
  m.expert_ffn = 1024;
  m.vocab = 50304;
  const ParameterTable table = family_of(m).table(m);
  EXPECT_NEAR(static_cast<double>(parameter_count(table)) / 1e9, 6.919, 0.001);
  EXPECT_NEAR(static_cast<double>(active_count(table)) / 1e9, 1.282, 0.001);
  m.experts_per_token = m.experts;
  const ParameterTable all = family_of(m).table(m);
  EXPECT_EQ(active_count(all), parameter_count(all));
}

TEST(Parameters, SlicesTileTheFlatArrayAndDecayStopsAtVectors) {
  for (const Family* family : families()) {
    const ParameterTable table = family->table(tiny_model(std::string(family->name)));
    const FlatLayout layout = lay_out(table);
    const auto decayed = ranges_where(table, layout, [](const ParameterSpec& p) { return p.decayed; });
    const auto others = ranges_where(table, layout, [](const ParameterSpec& p) { return !p.decayed; });
    ASSERT_EQ(decayed.size(), 1u);
    ASSERT_EQ(others.size(), 1u);
    EXPECT_EQ(decayed[0], (Range{0, others[0].begin}));
    EXPECT_EQ(others[0].end, layout.total);
    std::int64_t sum = 0;
    std::set<std::int64_t> starts;
    for (const StoredParameter& s : layout.stored) {
      sum += s.elements;
      EXPECT_TRUE(starts.insert(s.offset).second) << s.name;
      EXPECT_EQ(s.offset + s.elements <= decayed[0].end, s.shape.size() == 2) << s.name;
      EXPECT_LE(s.offset + s.elements, layout.total);
    }
    EXPECT_EQ(sum, parameter_count(table));
  }
}

// A stack of matrices has three dimensions, decay, and Hugging Face tensors of two; a matrix may have no decay.
TEST(Parameters, DecayAndTheShapesOfFilesAreWhatTheTableSays) {
  const ParameterTable table = {
      {"scale", {3, 5}, Init::ones, 0, false, {{"scale", {3, 5}}}},
      {"experts", {2, 10, 7}, Init::normal, 1, true, {{"expert 0", {10, 7}}, {"expert 1", {10, 7}}}},
      {"norm", {7}, Init::ones, 0, false, {{"norm", {7}}}},
      {"head", {9, 7}, Init::normal, 1, true, {{"head", {9, 7}}}}};
  const FlatLayout layout = lay_out(table);
  EXPECT_EQ(layout.offsets, (std::vector<std::int64_t>{256, 0, 320, 192}));
  EXPECT_EQ(layout.total, 384);
  const auto named = [&](std::string_view a, std::string_view b) {
    return ranges_where(table, layout, [=](const ParameterSpec& p) { return p.name == a || p.name == b; });
  };
  EXPECT_EQ(named("head", "scale"), (std::vector<Range>{{192, 320}}));
  EXPECT_EQ(named("experts", "norm"), (std::vector<Range>{{0, 192}, {320, 384}}));
  EXPECT_EQ(named("none", "none"), std::vector<Range>{});
  ASSERT_EQ(layout.stored.size(), 5u);
  EXPECT_EQ(layout.stored[2].name, "expert 1");
  EXPECT_EQ(layout.stored[2].offset, 70);
  EXPECT_EQ(layout.stored[2].shape, (std::vector<std::int64_t>{10, 7}));
}

// Rows say how optimizers, products in eight bits and ranks treat a parameter: with other names all of it is the same.
TEST(Parameters, NamesDecideNothing) {
  for (const Family* family : families()) {
    if (family->decoder.experts) continue;  // a layer of theirs has other matrices
    for (const bool tied : {false, true}) {
      const ParameterTable table = family->table(tiny_model(std::string(family->name), tied));
      const FlatLayout layout = lay_out(table);
      ParameterTable renamed = table;
      for (std::size_t i = 0; i < table.size(); ++i) renamed[i].name = fmt::format("layer of {}", table.size() - i);
      config::Optim settings;
      settings.moments = "8bit";
      for (const Optimizer* optimizer : {&kAdamW, &kMuon, &kNorMuon}) {
        const optim::StateTable rows = optimizer->state(table, layout, layout.whole(), settings);
        const optim::StateTable others = optimizer->state(renamed, layout, layout.whole(), settings);
        ASSERT_EQ(rows.size(), others.size()) << family->name;
        for (std::size_t i = 0; i < rows.size(); ++i) {
          EXPECT_EQ(rows[i].range, others[i].range) << rows[i].name;
          EXPECT_EQ(rows[i].dtype, others[i].dtype) << rows[i].name;
        }
        if (optimizer->whole) {
          EXPECT_EQ(optimizer->whole(table, layout), optimizer->whole(renamed, layout));
          EXPECT_EQ(std::ssize(optimizer->whole(renamed, layout)), 2 * 7) << "matrices of two layers";
        }
      }
      const Fp8Candidates fp8 = fp8_candidates(table, 48, true), other = fp8_candidates(renamed, 48, true);
      EXPECT_EQ(fp8.linears, (std::vector<std::string>{"qkv", "out", "gate_up", "down"}));
      EXPECT_EQ(fp8.linears, other.linears);
      EXPECT_EQ(fp8.refused, other.refused);
      const auto units = travelling_units(table, layout), renamed_units = travelling_units(renamed, layout);
      ASSERT_EQ(units.size(), tied ? 4u : 5u) << "embedding, two layers, the head, and what is small";
      ASSERT_EQ(units.size(), renamed_units.size());
      for (std::size_t i = 0; i < units.size(); ++i) {
        EXPECT_EQ(static_cast<const Range&>(units[i]), renamed_units[i]);
        EXPECT_EQ(units[i].kept, i + 1 == units.size());
        EXPECT_EQ(units[i].kept, renamed_units[i].kept);
      }
    }
  }
}

TEST(Parameters, NamesAndShapesAreHuggingFaces) {
  for (const char* name :
       {"llama-mha", "llama3-gqa", "qwen3-gqa", "olmo2-gqa", "qwen2-gqa", "mistral-window", "smollm3-nope",
        "olmo3-window", "gemma3-text", "llama-biases", "olmoe", "qwen3-moe", "mixtral"}) {
    const config::Model model = read_hf_config(real_files(), fixture(name) + "/config.json");
    const io::SafetensorsReader file(fixture(name) + "/model.safetensors");
    const FlatLayout layout = lay_out(family_of(model).table(model));
    EXPECT_EQ(layout.stored.size(), file.tensors().size());
    for (const StoredParameter& s : layout.stored) EXPECT_EQ(file.at(s.name).shape, s.shape) << s.name;
  }
}

TEST(Parameters, TheStartIsDrawnAsTheTableSays) {
  config::Model model = tiny_model("qwen3");
  model.hidden = 96;
  model.init_std = 0.02;
  const ParameterTable table = family_of(model).table(model);
  const FlatLayout layout = lay_out(table);
  std::vector<float> a(static_cast<std::size_t>(layout.total)), b = a, c = a;
  ThreadPool pool(2);
  const auto draw = [&](std::uint64_t seed, const Range& here, std::vector<float>& flat) {
    initialise(table, layout, seed, here, [&](const Range& part, const Normals& from) {
      EXPECT_TRUE(part.begin >= here.begin && part.end <= here.end && !part.empty());
      redline::draw(from, {flat.data() + part.begin, DType::f32, {part.elements()}}, pool);
    });
  };
  draw(1, layout.whole(), a);
  draw(2, layout.whole(), c);
  EXPECT_NE(a, c);
  const Shards shards{layout.total, 3};  // each rank draws its own part
  for (int rank = 0; rank < shards.ranks; ++rank) draw(1, shards.part(rank), b);
  EXPECT_EQ(a, b);
  for (std::size_t i = 0; i < table.size(); ++i) {
    double sum = 0, squares = 0;
    const std::int64_t n = table[i].shape.elements();
    for (std::int64_t e = 0; e < n; ++e) {
      const double x = a[static_cast<std::size_t>(layout.offsets[i] + e)];
      sum += x;
      squares += x * x;
    }
    const double mean = sum / static_cast<double>(n), std = std::sqrt(squares / static_cast<double>(n));
    if (table[i].init == Init::ones) {
      EXPECT_EQ(mean, 1.0);
    } else {
      EXPECT_NEAR(mean / table[i].std, 0, 5 / std::sqrt(static_cast<double>(n))) << table[i].name;
      EXPECT_NEAR(std / table[i].std, 1, 5 / std::sqrt(static_cast<double>(n))) << table[i].name;
    }
  }
}

// What writes into the residual stream: linears, or the norms after them.
TEST(Parameters, ZeroOutIsOfWhatWritesIntoTheResidualStream) {
  for (const Family* family : families()) {
    config::Model model = tiny_model(std::string(family->name));
    const ParameterTable normal = family->table(model);
    model.init = "zero_out";
    const ParameterTable table = family->table(model);
    ASSERT_EQ(table.size(), normal.size());
    const DecoderDescription& d = family->decoder;
    const std::set<std::string> writers = !d.attention_end_norm.empty()
                                              ? std::set<std::string>{"attention end norm", "mlp end norm"}
                                          : d.norm_after ? std::set<std::string>{"attention norm", "mlp norm"}
                                                         : std::set<std::string>{"out", "down"};
    int changed = 0;
    for (std::size_t i = 0; i < table.size(); ++i) {
      const bool writes = writers.contains(table[i].name.substr(table[i].name.find('/') + 1));
      const Init nothing = d.one_plus ? Init::minus_ones : Init::zeros;  // 1 + w is zero
      EXPECT_EQ(table[i].init, writes ? nothing : normal[i].init) << family->name << " " << table[i].name;
      changed += table[i].init != normal[i].init;
    }
    EXPECT_EQ(changed, 2 * model.layers) << family->name;
  }
}

TEST(HfConfig, WhatIsWrittenReadsBackTheSame) {
  for (const Family* family : families()) {
    config::Config c;
    c.model = tiny_model(std::string(family->name), true);
    c.model.max_positions = 128;
    c.model.pad_token = c.model.family == "qwen3" ? 7 : -1;
    if (c.model.family == "llama") {
      c.model.rope_scaling = "llama3";
      c.model.rope_factor = 4;
      c.model.rope_original_len = 64;
    }
    if (c.model.family == "olmo3" || c.model.family == "qwen2") {
      c.model.rope_scaling = "yarn";
      c.model.rope_original_len = 32;
      c.model.rope_beta_fast = 20;
      c.model.rope_attention_factor = c.model.family == "olmo3" ? 1.25 : 0;
      c.model.rope_truncate = c.model.family == "olmo3";
    }
    const Path file = Path(::testing::TempDir()) / fmt::format("hf_config_{}.json", family->name);
    real_files().replace(file, hf_config(c.model, {.max_positions = 128}).dump());
    config::Config back = c;
    back.model = read_hf_config(real_files(), file);
    EXPECT_EQ(config::differing_keys(c, back), std::vector<std::string>{});
  }
}

TEST(HfConfig, WhatCannotBeRunIsRefusedByName) {
  const Path file = Path(::testing::TempDir()) / "refused.json";
  const auto expect_refused = [&](const std::function<void(io::Json&)>& change, std::string_view named) {
    io::Json json = hf_config(tiny_model("llama"), {.max_positions = 128});
    change(json);
    real_files().replace(file, json.dump());
    EXPECT_TRUE(says(error_of([&] { read_hf_config(real_files(), file); }), {named}));
  };
  expect_refused([](io::Json& j) { j["architectures"] = {"MixtralForCausalLM"}; }, "MixtralForCausalLM");
  expect_refused([](io::Json& j) { j["rope_parameters"]["rope_type"] = "dynamic"; }, "dynamic");
  expect_refused([](io::Json& j) { j["rope_parameters"]["rope_scaler"] = 2; }, "rope_scaler");
  expect_refused([](io::Json& j) { j["partial_rotary_factor"] = 0.5; }, "partial_rotary_factor");
  expect_refused([](io::Json& j) { j["sliding_window"] = 24; }, "sliding_window");
  expect_refused([](io::Json& j) { j["quantization_config"] = {{"bits", 4}}; }, "quantization_config");
  expect_refused([](io::Json& j) { j["attention_bias"] = 1; }, "attention_bias");
  expect_refused([](io::Json& j) { j["hidden_act"] = "gelu"; }, "gelu");
  expect_refused([](io::Json& j) { j.erase("hidden_size"); }, "hidden_size");
  expect_refused([](io::Json& j) { j["num_key_value_heads"] = 3; }, "num_key_value_heads");
  expect_refused([](io::Json& j) { j["head_dim"] = 7; }, "head_dim");
  expect_refused([](io::Json& j) { j["rope_parameters"]["full_attention"] = io::Json::object(); }, "full_attention");
  expect_refused([](io::Json& j) { j["max_position_embeddings"] = 0; }, "max_position_embeddings");
  expect_refused([](io::Json& j) { j["is_causal"] = false; }, "is_causal");
  expect_refused([](io::Json& j) { j["rms_norm_eps"] = nullptr; }, "rms_norm_eps");
}

// A key that changes what a model computes is read or refused; one that nobody knows might, unless it is off.
TEST(HfConfig, AKeyThatNobodyKnowsIsRefusedByName) {
  const Path file = Path(::testing::TempDir()) / "unknown.json";
  for (const Family* family : families()) {
    const io::Json plain = hf_config(tiny_model(std::string(family->name)), {.max_positions = 128});
    const auto read = [&](const char* key, const io::Json& value) {
      io::Json json = plain;
      json[key] = value;
      real_files().replace(file, json.dump());
      return error_of([&] { read_hf_config(real_files(), file); });
    };
    for (const char* key : {"clip_qkv", "attn_logit_softcapping", "final_logit_softcapping", "logit_scale",
                            "residual_multiplier", "num_experts", "a_key_of_tomorrow"}) {
      if (family->decoder.experts && std::string_view(key) == "num_experts") continue;  // which they have
      EXPECT_TRUE(says(read(key, 30), {key, "30", family->hf_architecture}));
      EXPECT_EQ(read(key, nullptr), "no error") << key;
    }
    EXPECT_TRUE(says(read("use_bidirectional_attention", true), {"use_bidirectional_attention"}));
    const DecoderDescription& d = family->decoder;
    const auto expect_bias = [&](const char* key, bool may, const std::string& having) {
      const std::string error = read(key, true);
      EXPECT_TRUE(may ? error == "no error" : says(error, {key, family->hf_architecture, "are of " + having})) << error;
    };
    expect_bias("attention_bias", d.attention_bias, "llama, qwen3, olmo2, smollm3, olmo3, gemma3, olmoe, qwen3_moe");
    expect_bias("mlp_bias", d.mlp_bias, "llama, smollm3");
    expect_bias("qkv_bias", d.qkv_bias, "qwen2");
    for (const char* key : {"attention_dropout", "transformers_version", "torch_dtype", "_name_or_path", "use_cache"})
      EXPECT_EQ(read(key, 1), "no error") << key;
  }
}

// What was published before transformers 5 has other keys, and means the same.
TEST(HfConfig, BothSpellingsOfWindowsAndBasesAreRead) {
  const Path file = Path(::testing::TempDir()) / "spellings.json";
  const auto read = [&](const io::Json& json) {
    real_files().replace(file, json.dump());
    return read_hf_config(real_files(), file);
  };
  config::Model gemma = tiny_model("gemma3", true);
  gemma.layers = 7;
  gemma.layer_types.clear();
  gemma.max_positions = 128;
  gemma.rope_scaling = "linear";
  const io::Json now = hf_config(gemma, {.max_positions = 128});
  EXPECT_EQ(now["layer_types"][5], "full_attention");
  EXPECT_EQ(now["layer_types"][6], "sliding_attention");
  EXPECT_EQ(now["rope_parameters"]["sliding_attention"]["rope_theta"], 500);
  io::Json before = now;
  for (const char* key : {"layer_types", "rope_parameters"}) before.erase(key);
  before["sliding_window_pattern"] = 6;
  EXPECT_EQ(read(now), gemma);
  EXPECT_EQ(read(before), gemma);
  before["sliding_window_pattern"] = 3;
  EXPECT_EQ(read(before).layer_types[2], "full_attention");
  io::Json both = now;
  both["rope_local_base_freq"] = 600;
  EXPECT_TRUE(says(error_of([&] { read(both); }), {"rope_local_base_freq", "600", "500"}));
  both["rope_local_base_freq"] = 0;
  EXPECT_TRUE(says(error_of([&] { read(both); }), {"sliding_attention", "above 0"}));
  both = now;
  both["query_pre_attn_scalar"] = 32.5;
  EXPECT_TRUE(says(error_of([&] { read(both); }), "query_pre_attn_scalar"));
  io::Json flat = now;
  flat["rope_parameters"] = {{"rope_theta", 10000.0}, {"rope_type", "default"}};
  EXPECT_TRUE(says(error_of([&] { read(flat); }), {"rope_parameters", "full_attention"}));
  io::Json stretched = now;
  stretched["rope_parameters"]["sliding_attention"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  EXPECT_TRUE(says(error_of([&] { read(stretched); }), {"sliding_attention", "linear"}));
  // What transformers 4 and 5 read differently.
  before["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_TRUE(says(error_of([&] { read(before); }), {"rope_scaling", "\"rope_type\""}));
  io::Json olmo = hf_config(tiny_model("olmo3", true), {.max_positions = 128});
  EXPECT_EQ(error_of([&] { read(olmo); }), "no error");
  // A base of full_attention alone is not that of the others.
  io::Json half = olmo;
  half.erase("rope_theta");
  half["rope_parameters"] = {{"full_attention", {{"rope_theta", 77.0}, {"rope_type", "default"}}}};
  EXPECT_EQ(read(half).rope_theta, 77);
  EXPECT_EQ(read(half).rope_local_theta, 5e5);
  olmo.erase("rope_parameters");
  EXPECT_TRUE(says(error_of([&] { read(olmo); }), {"rope_theta", "transformers 4", "transformers 5"}));

  io::Json qwen = hf_config(tiny_model("qwen2"), {.max_positions = 128});
  qwen.erase("layer_types");
  qwen["max_window_layers"] = 1;
  EXPECT_EQ(read(qwen).layer_types, (std::vector<std::string>{"full_attention", "sliding_attention"}));
  qwen["use_sliding_window"] = false;
  EXPECT_EQ(read(qwen).window, 0) << "sliding_window counts with the switch only";
  qwen["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_TRUE(says(error_of([&] { read(qwen); }), {"layer_types", "use_sliding_window"}));

  io::Json mixture = hf_config(tiny_model("qwen3_moe"), {.max_positions = 128});
  mixture["use_sliding_window"] = true;
  mixture["sliding_window"] = 8;
  EXPECT_EQ(read(mixture).window, 8);
  mixture["max_window_layers"] = 1;
  EXPECT_TRUE(says(error_of([&] { read(mixture); }), {"max_window_layers is 1", "transformers 4", "transformers 5"}));
  mixture["use_sliding_window"] = false;
  EXPECT_EQ(read(mixture).window, 0);

  config::Model smol = tiny_model("smollm3");
  smol.layers = 5;
  smol.window = 0;
  smol.layer_types.clear();
  smol.rope_layers.clear();
  smol.max_positions = 128;
  io::Json json = hf_config(smol, {.max_positions = 128});
  EXPECT_EQ(json["no_rope_layers"], (io::Json{1, 1, 1, 0, 1}));
  json.erase("no_rope_layers");
  EXPECT_EQ(read(json), smol);
  json["no_rope_layer_interval"] = 2;
  EXPECT_EQ(read(json).rope_layers, (std::vector<std::int64_t>{1, 0, 1, 0, 1}));
  json["no_rope_layers"] = {1, 1};
  EXPECT_TRUE(says(error_of([&] { read(json); }), {"no_rope_layers", "5"}));
}

TEST(HfConfig, WhatIsNotSaidIsWhatTheFamilyMeans) {
  const Path file = Path(::testing::TempDir()) / "silent.json";
  for (const Family* family : families()) {
    io::Json json = hf_config(tiny_model(std::string(family->name)), {.max_positions = 128});
    for (const char* key : {"head_dim", "rms_norm_eps", "tie_word_embeddings"}) json.erase(key);
    const bool small = family->hf_defaults.pad_token < 53;  // below tiny_model's vocabulary
    if (small) json.erase("pad_token_id");
    real_files().replace(file, json.dump());
    const config::Model m = read_hf_config(real_files(), file);
    const bool olmo = family->name.starts_with("olmo"), gemma = family->name == "gemma3";
    EXPECT_EQ(m.head_dim, family->name == "qwen3" ? 128 : gemma ? 256 : m.hidden / m.heads) << family->name;
    EXPECT_EQ(m.norm_eps, olmo || family->name == "mixtral" ? 1e-5 : 1e-6) << family->name;
    EXPECT_EQ(m.pad_token, olmo ? 1 : gemma ? 0 : -1) << family->name;
    EXPECT_EQ(m.tied, gemma || family->name == "smollm3") << family->name;
  }
}

TEST(HfConfig, OlderKeysSayTheSame) {
  const Path file = Path(::testing::TempDir()) / "older.json";
  for (const char* scaling : {"none", "linear", "llama3"}) {
    config::Model m = tiny_model("llama");
    m.rope_scaling = scaling;
    m.rope_theta = 5000;
    m.max_positions = 128;
    io::Json json = hf_config(m, {.max_positions = 128});
    json.erase("rope_parameters");
    if (json.contains("rope_scaling")) {
      json["rope_scaling"].erase("rope_theta");
      json["rope_scaling"]["type"] = json["rope_scaling"]["rope_type"];
      json["rope_scaling"].erase("rope_type");
    }
    real_files().replace(file, json.dump());
    EXPECT_EQ(read_hf_config(real_files(), file), m) << scaling;
  }
}

// Which of two the weights were trained with, nobody knows.
TEST(HfConfig, ContradictionsAreRefused) {
  const Path file = Path(::testing::TempDir()) / "both.json";
  const auto read_with = [&](const std::function<void(io::Json&)>& change) {
    io::Json json = hf_config(tiny_model("llama"), {.max_positions = 128});
    change(json);
    real_files().replace(file, json.dump());
    return read_hf_config(real_files(), file);
  };
  const auto expect_refused = [&](const std::function<void(io::Json&)>& change,
                                  std::initializer_list<std::string_view> named) {
    EXPECT_TRUE(says(error_of([&] { read_with(change); }), named));
  };
  expect_refused([](io::Json& j) { j["rope_theta"] = 500; }, {"rope_theta", "500", "rope_parameters"});
  expect_refused([](io::Json& j) { j["model_type"] = "qwen3"; }, {"model_type", "qwen3", "LlamaForCausalLM"});
  expect_refused([](io::Json& j) { j["layer_types"] = {"full_attention"}; }, {"layer_types", "1 layer"});
  const io::Json linear = {{"type", "linear"}, {"factor", 4.0}};
  expect_refused([&](io::Json& j) { j["rope_scaling"] = linear; }, {"rope type", "linear", "default"});
  expect_refused(
      [&](io::Json& j) {
        j["rope_scaling"] = linear;
        j["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 8.0}};
      },
      {"factor", "4", "8"});
  expect_refused(
      [&](io::Json& j) {
        j["rope_scaling"] = linear;
        j["rope_scaling"]["rope_type"] = "llama3";
        j.erase("rope_parameters");
      },
      {"rope_scaling.type", "linear", "llama3"});
  // transformers takes rope_scaling where both are there, and nothing of the other.
  expect_refused(
      [&](io::Json& j) {
        j["rope_scaling"] = linear;
        j["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 7000.0}};
        j.erase("rope_theta");
      },
      {"rope_theta", "rope_scaling"});
  const config::Model agreed = read_with([&](io::Json& j) {
    j["rope_scaling"] = linear;
    j["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 500.0}};
    j["rope_theta"] = 500;
  });
  EXPECT_EQ(agreed.rope_scaling, "linear");
  EXPECT_EQ(agreed.rope_factor, 4);
  EXPECT_EQ(agreed.rope_theta, 500);
}

TEST(HfConfig, MistralHasAWindowInEveryLayerOrNone) {
  const Path file = Path(::testing::TempDir()) / "mistral.json";
  io::Json json = hf_config(tiny_model("mistral"), {.max_positions = 128});
  const auto read = [&] {
    real_files().replace(file, json.dump());
    return read_hf_config(real_files(), file);
  };
  EXPECT_EQ(read().window, 5);
  EXPECT_TRUE(has_window(read(), 0) && has_window(read(), 1));
  json["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_TRUE(says(error_of(read), {"layer_types", "full_attention", "MistralForCausalLM"}));
  json.erase("layer_types");
  json["sliding_window"] = 0;
  EXPECT_TRUE(says(error_of(read), {"sliding_window", "0"}));
  json["sliding_window"] = nullptr;
  EXPECT_EQ(read().window, 0);
  json.erase("sliding_window");
  EXPECT_EQ(read().window, 4096) << "what silence means";
  json["num_attention_heads"] = 16;
  json["head_dim"] = 2;
  json.erase("num_key_value_heads");
  EXPECT_EQ(read().kv_heads, 8) << "what silence means";
  json["num_key_value_heads"] = nullptr;
  EXPECT_EQ(read().kv_heads, 16);
}

TEST(Rope, LinearScalingSlowsEveryPositionDown) {
  config::Model m = tiny_model("llama");
  const std::vector<float> plain = rope_table(m, 4)[0].make();
  m.rope_scaling = "linear";
  m.rope_factor = 2;
  const std::vector<float> slow = rope_table(m, 7)[0].make();
  const auto d = static_cast<std::size_t>(m.head_dim);
  for (std::size_t i = 0; i < 4 * d; ++i) EXPECT_FLOAT_EQ(plain[i], slow[i / d * 2 * d + i % d]);
}

// The frequencies and the factor of turned queries and keys, read off the second row of a table.
void expect_rope(const config::Model& m, double factor, const std::vector<double>& every, std::size_t step) {
  const std::vector<float> table = rope_table(m, 2)[0].make();
  const auto d = static_cast<std::size_t>(m.head_dim);
  for (std::size_t i = 0; i < every.size(); ++i) {
    const double c = table[d + i * step], s = table[d + d / 2 + i * step];
    EXPECT_NEAR(std::hypot(c, s), factor, 1e-6 * factor) << i;
    EXPECT_NEAR(std::atan2(s, c), every[i], 3e-6 * every[i]) << i;
  }
}

// What transformers 5.22 has for these keys (ROPE_INIT_FUNCTIONS["yarn"]): some of the frequencies, and the factor.
TEST(Rope, YarnIsWhatTransformersComputes) {
  config::Model m = tiny_model("qwen3");
  m.rope_scaling = "yarn";
  m.head_dim = 128, m.rope_theta = 1e6, m.rope_factor = 4, m.rope_original_len = 32768;
  expect_rope(m, 1.138629436111989,
              {1.0, 0.17782793939113617, 0.03162277862429619, 0.005375321488827467, 0.0006029411451891065,
               4.4456985051510856e-05, 7.905693564680405e-06, 1.405853367941745e-06},
              8);
  m.head_dim = 16, m.rope_theta = 1e4, m.rope_factor = 8, m.rope_original_len = 64;
  m.rope_beta_fast = 16, m.rope_beta_slow = 2, m.rope_attention_factor = 1.5;
  expect_rope(m, 1.5,
              {1.0, 0.17787811160087585, 0.012500000186264515, 0.0039528473280370235, 0.0012499999720603228,
               0.00039528473280370235, 0.0001250000059371814, 3.9528473280370235e-05},
              1);

  // mscale and mscale_all_dim of a config.json become the factor.
  io::Json json = hf_config(tiny_model("qwen3"), {.max_positions = 163840});
  json["head_dim"] = 64;
  json["rope_parameters"] = {{"rope_type", "yarn"},   {"rope_theta", 1e4},
                             {"factor", 40},          {"mscale", 1.0},
                             {"mscale_all_dim", 0.7}, {"original_max_position_embeddings", 4096}};
  json.erase("rope_theta");
  const Path file = Path(::testing::TempDir()) / "yarn.json";
  const auto read = [&] {
    real_files().replace(file, json.dump());
    return read_hf_config(real_files(), file);
  };
  expect_rope(read(), 1.0879546075066122,
              {1.0, 0.3162277638912201, 0.10000000149011612, 0.026879360899329185, 0.005500000435858965,
               0.0007905694073997438, 2.499999936844688e-05, 7.905694474175107e-06},
              4);
  json["rope_parameters"]["factor"] = nullptr;
  EXPECT_EQ(read().rope_factor, 40) << "max_position_embeddings over the original ones";
  json["rope_parameters"].erase("factor");  // transformers asks for the key
  EXPECT_TRUE(says(error_of(read), {"factor"}));
  json["rope_parameters"]["factor"] = 40;
  json["rope_parameters"]["attention_factor"] = 0.0;
  EXPECT_TRUE(says(error_of(read), {"attention_factor", "0"}));
  json["rope_parameters"].erase("attention_factor");
  json["rope_parameters"]["truncate"] = false;
  expect_rope(read(), 1.0879546075066122,
              {1.0, 0.3162277638912201, 0.10000000149011612, 0.02771085873246193, 0.005524062551558018,
               0.0007226381567306817, 2.499999936844688e-05, 7.905694474175107e-06},
              4);
}

// Layers with a window have a base of their own, and no scaling.
TEST(Rope, TheLocalTableIsNotStretched) {
  config::Model m = tiny_model("olmo3");
  m.rope_scaling = "yarn";
  const std::vector<ConstantSpec> tables = rope_table(m, 3);
  ASSERT_EQ(tables.size(), 2u);
  config::Model plain = m;
  plain.rope_scaling = "none";
  plain.rope_theta = m.rope_local_theta;
  EXPECT_EQ(tables[1].make(), rope_table(plain, 3)[0].make());
  EXPECT_NE(tables[0].make(), tables[1].make());
}

std::string refusal(const std::string& text) {
  return error_of([&] { config::parse(text, "x.toml", settle_family); });
}

TEST(SettleFamily, AnUnknownNameIsRefusedWithTheNearestOne) {
  EXPECT_TRUE(says(refusal("train.max_steps = 1\nmodel.family = \"lama\"\n"),
                   {"x.toml:2", "model.family", "llama | qwen3 | olmo2", "\"lama\"", "mean \"llama\""}));
  const std::string far = refusal("model.family = \"gpt-neox\"\n");
  EXPECT_TRUE(says(far, {"x.toml:1", "model.family", "\"gpt-neox\""}));
  EXPECT_FALSE(says(far, {"mean"}));
}

TEST(SettleFamily, QkNormIsWhatTheFamilyHas) {
  const std::string steps = "train.max_steps = 1\n";
  EXPECT_EQ(config::parse(steps, "x.toml", settle_family).model.qk_norm, false);
  EXPECT_EQ(config::parse(steps + "model.family = \"qwen3\"\n", "x.toml", settle_family).model.qk_norm, true);
  EXPECT_EQ(refusal(steps + "model.qk_norm = false\n"), "no error");
  EXPECT_TRUE(
      says(refusal(steps + "model.qk_norm = true\n"), {"x.toml:2", "must be false", "\"llama\"", "qwen3, olmo2"}));
  EXPECT_TRUE(says(refusal("model.qk_norm = false\nmodel.family = \"qwen3\"\n"),
                   {"x.toml:2", "must be true", "\"qwen3\"", "llama"}));
}

TEST(SettleFamily, SettingsOfOtherFamiliesAreRefused) {
  const auto of = [](const std::string& family, const std::string& line) {
    return refusal("train.max_steps = 1\nmodel.layers = 2\nmodel.family = \"" + family + "\"\n" + line + "\n");
  };
  EXPECT_TRUE(says(of("llama", "model.window = 16"), {"x.toml:4", "model.window", "\"llama\"", "mistral"}));
  EXPECT_EQ(of("mistral", "model.window = 16"), "no error");
  const std::string types = "model.layer_types = [\"sliding_attention\", \"full_attention\"]";
  EXPECT_TRUE(says(of("mistral", "model.window = 16\n" + types), {"model.layer_types", "\"mistral\"", "gemma3"}));
  EXPECT_EQ(of("qwen3", "model.window = 16\n" + types), "no error");
  EXPECT_TRUE(says(of("qwen3", types), {"model.layer_types", "model.window", "0"}));
  EXPECT_TRUE(says(of("qwen3", "model.window = 16\nmodel.layer_types = [\"full_attention\", \"full_attention\"]"),
                   {"model.layer_types", "model.window", "16"}));
  EXPECT_TRUE(says(of("olmo3", "model.window = 16\nmodel.layer_types = [\"sliding_attention\"]"),
                   {"model.layer_types", "1", "model.layers", "2"}));
  EXPECT_TRUE(says(of("qwen3", "model.rope_layers = [1, 0]"), {"model.rope_layers", "smollm3"}));
  EXPECT_TRUE(says(of("llama", "model.rope_local_theta = 5.0"), {"model.rope_local_theta", "gemma3"}));
  EXPECT_TRUE(says(of("llama", "model.query_pre_attn_scalar = 5"), {"model.query_pre_attn_scalar", "gemma3"}));
  EXPECT_TRUE(says(of("llama", "model.qkv_bias = true"), {"model.qkv_bias", "must be false", "qwen2"}));
  EXPECT_EQ(of("llama", "model.attention_bias = true\nmodel.mlp_bias = true"), "no error");
  EXPECT_TRUE(says(of("llama", "model.attention_bias = true\nmodel.qkv_bias = false"),
                   {"model.qkv_bias", "model.attention_bias"}));
  EXPECT_TRUE(says(of("mistral", "model.attention_bias = true"), {"model.attention_bias", "mistral", "llama"}));
  EXPECT_TRUE(says(of("qwen3", "model.mlp_bias = true"), {"model.mlp_bias", "qwen3", "smollm3"}));
  EXPECT_TRUE(says(of("gemma3", "model.rope_truncate = false"), {"model.rope_truncate", "gemma3"}));
  EXPECT_TRUE(says(of("llama", "model.rope_scaling = \"yarn\"\nmodel.rope_beta_fast = 1.0"),
                   {"model.rope_beta_fast", "model.rope_beta_slow"}));
}

TEST(SettleFamily, SettingsOfExpertsGoTogether) {
  const auto of = [](const std::string& family, const std::string& settings) {
    try {
      const std::string text = "train.max_steps = 1\nmodel.family = \"" + family + "\"\nmodel.layers = 2\n" + settings;
      const config::Model m = config::parse(text, "x.toml", settle_family).model;
      return fmt::format("{} {} {} {}", m.ffn, m.expert_ffn, *m.norm_topk, m.dense_layers.size());
    } catch (const UserError& e) {
      return std::string(e.what());
    }
  };
  const std::string some = "model.experts = 4\nmodel.experts_per_token = 2\n";
  EXPECT_EQ(of("olmoe", some + "model.ffn = 48"), "48 48 false 0");
  EXPECT_EQ(of("mixtral", some + "model.expert_ffn = 40"), "40 40 true 0");
  EXPECT_EQ(of("qwen3_moe", some + "model.ffn = 48\nmodel.expert_ffn = 40\nmodel.dense_layers = [1]"), "48 40 true 1");
  EXPECT_TRUE(says(of("olmoe", ""), {"model.experts is 0", "olmoe"}));
  EXPECT_TRUE(says(of("llama", "model.experts = 4"), {"model.experts", "olmoe, qwen3_moe, mixtral"}));
  EXPECT_TRUE(says(of("llama", "model.norm_topk = true"), {"model.norm_topk", "llama"}));
  EXPECT_TRUE(
      says(of("llama", "model.router_balance = \"model\""),
           {"x.toml:4", "model.router_balance is not for model.family \"llama\"", "olmoe, qwen3_moe, mixtral"}));
  EXPECT_TRUE(says(of("olmoe", "model.experts = 4"), {"model.experts_per_token is 0", "from 1 to", "4"}));
  EXPECT_TRUE(says(of("olmoe", "model.experts = 4\nmodel.experts_per_token = 5"), {"experts_per_token is 5"}));
  EXPECT_TRUE(says(of("mixtral", some + "model.norm_topk = false"), {"model.norm_topk must be true", "mixtral"}));
  EXPECT_TRUE(says(of("olmoe", some + "model.ffn = 48\nmodel.expert_ffn = 40"), {"48", "40", "set one of the two"}));
  EXPECT_TRUE(says(of("olmoe", some + "model.dense_layers = [1]"), {"model.dense_layers", "qwen3_moe"}));
  EXPECT_TRUE(says(of("qwen3_moe", some + "model.dense_layers = [2]"), {"layer 2", "model.layers is 2"}));
  EXPECT_TRUE(says(of("qwen3_moe", some + "model.dense_layers = [0, 1]"), {"none has experts"}));
}

// Where all layers have experts one width has two names: the one on the command line is meant.
TEST(SettleFamily, WidthsOfExpertsFollowTheCommandLine) {
  const auto widths = [](const config::Sources& sources) {
    const config::Model m = config::load(sources, settle_family).model;
    return fmt::format("{} {}", m.ffn, m.expert_ffn);
  };
  const std::string olmoe = "model.family=olmoe", steps = "train.max_steps=1";
  for (const std::string name : {"model.ffn=512", "model.expert_ffn=512"})
    EXPECT_EQ(widths({.file = "", .preset = "moe-1b", .overrides = {steps, olmoe, name}}), "512 512") << name;
  const testing::TempFolder temp;
  const std::string own = (temp.path() / "config.toml").string();  // a run's has both
  real_files().replace(
      own, config::dump(config::load({.file = "", .preset = "moe-1b", .overrides = {steps, olmoe}}, settle_family)));
  for (const std::string name : {"model.ffn=48", "model.expert_ffn=48"})
    EXPECT_EQ(widths({.file = own, .preset = "", .overrides = {name}}), "48 48") << name;
  EXPECT_TRUE(testing::says(testing::error_of([&] {
                              widths({.file = own, .preset = "", .overrides = {"model.ffn=48", "model.expert_ffn=32"}});
                            }),
                            {"48", "32", "set one of the two"}));
}

// A run that began before the key means transformers' balance, where it has experts to balance.
TEST(SettleFamily, AnOlderRunHasTheBalanceOfItsExperts) {
  const auto of = [](const std::string& settings) {
    return config::parse("train.max_steps = 1\n" + settings, "x.toml", settle_family).model.router_balance;
  };
  EXPECT_EQ(of("model.family = \"olmoe\"\nmodel.experts = 4\nmodel.experts_per_token = 2\n"), "model");
  EXPECT_EQ(of("model.family = \"llama\"\n"), "layer");
  EXPECT_EQ(of("model.family = \"llama\"\nmodel.router_balance = \"layer\"\n"), "layer");
}

TEST(SettleFamily, EveryFamilyIsLoweredForACard) {
  for (const Family* family : families()) {
    config::Config c;
    c.model = tiny_model(std::string(family->name));
    EXPECT_NO_THROW(lower(c.model, lowering_options(c, device::Kind::cuda))) << family->name;
  }
}

TEST(Documentation, IsWhatTheTableOfKeysSays) {
  const Path page = Path(source_folder()) / "docs" / "config.md";
  const std::string text = config::keys_as_markdown(keys_with_families());
  if (std::getenv("REDLINE_UPDATE_DOCS")) real_files().replace(page, text);
  EXPECT_EQ(real_files().read(page), text) << "run tests_model once with REDLINE_UPDATE_DOCS=1";
}

}  // namespace
}  // namespace redline::model
