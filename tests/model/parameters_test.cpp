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
#include "config/load.h"
#include "io/safetensors.h"
#include "model/family.h"
#include "model/fp8_linears.h"
#include "model/hf_config.h"
#include "model/lowering.h"
#include "model/tiny.h"
#include "testing/paths.h"
#include "testing/says.h"

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
  EXPECT_NEAR(millions("cs336-350m"), 406, 1);  // 303 M in the blocks and two tables of 51.5 M
  EXPECT_NEAR(millions("llama-1.36b"), 1294, 5);
  EXPECT_NEAR(millions("qwen3-1.8b"), 1830, 20);
  EXPECT_NEAR(millions("olmo2-1.5b"), 1485, 1);
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
  for (const char* name : {"llama-mha", "llama3-gqa", "qwen3-gqa", "olmo2-gqa"}) {
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
  const auto into = [](std::vector<float>& flat) {
    return [&flat](std::int64_t offset, std::span<const float> values) {
      ASSERT_LE(static_cast<std::size_t>(offset) + values.size(), flat.size());
      std::ranges::copy(values, flat.begin() + offset);
    };
  };
  initialise(table, layout, 1, into(a));
  initialise(table, layout, 1, into(b));
  initialise(table, layout, 2, into(c));
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
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
    int zeros = 0;
    for (std::size_t i = 0; i < table.size(); ++i) {
      const std::string part = table[i].name.substr(table[i].name.find('/') + 1);
      const bool writes =
          family->name == "olmo2" ? part == "attention norm" || part == "mlp norm" : part == "out" || part == "down";
      EXPECT_EQ(table[i].init, writes ? Init::zeros : normal[i].init) << family->name << " " << table[i].name;
      zeros += table[i].init == Init::zeros;
    }
    EXPECT_EQ(zeros, 2 * model.layers) << family->name;
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
  expect_refused([](io::Json& j) { j["rope_parameters"]["rope_type"] = "yarn"; }, "yarn");
  expect_refused([](io::Json& j) { j["attention_bias"] = true; }, "attention_bias");
  expect_refused([](io::Json& j) { j["hidden_act"] = "gelu"; }, "gelu");
  expect_refused([](io::Json& j) { j.erase("hidden_size"); }, "hidden_size");
  expect_refused([](io::Json& j) { j["num_key_value_heads"] = 3; }, "num_key_value_heads");
  expect_refused([](io::Json& j) { j["head_dim"] = 7; }, "head_dim");
  expect_refused([](io::Json& j) { j["rope_parameters"]["full_attention"] = io::Json::object(); }, "full_attention");
  expect_refused([](io::Json& j) { j["max_position_embeddings"] = 0; }, "max_position_embeddings");
}

TEST(HfConfig, WhatIsNotSaidIsWhatTheFamilyMeans) {
  const Path file = Path(::testing::TempDir()) / "silent.json";
  for (const Family* family : families()) {
    io::Json json = hf_config(tiny_model(std::string(family->name)), {.max_positions = 128});
    for (const char* key : {"head_dim", "rms_norm_eps", "pad_token_id"}) json.erase(key);
    real_files().replace(file, json.dump());
    const config::Model m = read_hf_config(real_files(), file);
    EXPECT_EQ(m.head_dim, family->name == "qwen3" ? 128 : m.hidden / m.heads) << family->name;
    EXPECT_EQ(m.norm_eps, family->name == "olmo2" ? 1e-5 : 1e-6) << family->name;
    EXPECT_EQ(m.pad_token, family->name == "olmo2" ? 1 : -1) << family->name;
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

TEST(HfConfig, MistralWithoutAWindowIsReadAsLlama) {
  const Path file = Path(::testing::TempDir()) / "mistral.json";
  io::Json json = hf_config(tiny_model("llama"), {.max_positions = 128});
  const config::Model llama = [&] {
    real_files().replace(file, json.dump());
    return read_hf_config(real_files(), file);
  }();
  json["architectures"] = {"MistralForCausalLM"};
  json["model_type"] = "mistral";
  const auto read = [&] {
    real_files().replace(file, json.dump());
    return read_hf_config(real_files(), file);
  };
  EXPECT_TRUE(says(error_of(read), {"sliding_window", "4096"})) << "what silence means";
  json["sliding_window"] = 24;
  EXPECT_TRUE(says(error_of(read), {"sliding_window", "24"}));
  json["sliding_window"] = nullptr;
  std::vector<std::string> notes;
  {
    const log::Listener listener([&](bool, std::string_view text) { notes.emplace_back(text); });
    EXPECT_EQ(read(), llama);
    read();
  }
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_TRUE(says(notes[0], {"mistral.json", "MistralForCausalLM", "LlamaForCausalLM", "window"}));
  json["num_attention_heads"] = 16;
  json["head_dim"] = 2;
  json.erase("num_key_value_heads");
  EXPECT_EQ(read().kv_heads, 8) << "what silence means";
  json["num_key_value_heads"] = nullptr;
  EXPECT_EQ(read().kv_heads, 16);
}

TEST(Rope, LinearScalingSlowsEveryPositionDown) {
  config::Model m = tiny_model("llama");
  const std::vector<float> plain = rope_table(m, 4)[0].data;
  m.rope_scaling = "linear";
  m.rope_factor = 2;
  const std::vector<float> slow = rope_table(m, 7)[0].data;
  const auto d = static_cast<std::size_t>(m.head_dim);
  for (std::size_t i = 0; i < 4 * d; ++i) EXPECT_FLOAT_EQ(plain[i], slow[i / d * 2 * d + i % d]);
}

std::string refusal(const std::string& text) {
  return error_of([&] { config::parse(text, "x.toml", settle_family); });
}

TEST(SettleFamily, AnUnknownNameIsRefusedWithTheNearestOne) {
  EXPECT_TRUE(says(refusal("train.max_steps = 1\nmodel.family = \"lama\"\n"),
                   {"x.toml:2", "model.family", "llama | qwen3 | olmo2", "\"lama\"", "mean \"llama\""}));
  const std::string far = refusal("model.family = \"mixtral\"\n");
  EXPECT_TRUE(says(far, {"x.toml:1", "model.family", "\"mixtral\""}));
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

TEST(Documentation, IsWhatTheTableOfKeysSays) {
  const Path page = Path(source_folder()) / "docs" / "config.md";
  const std::string text = config::keys_as_markdown(keys_with_families());
  if (std::getenv("REDLINE_UPDATE_DOCS")) real_files().replace(page, text);
  EXPECT_EQ(real_files().read(page), text) << "run tests_model once with REDLINE_UPDATE_DOCS=1";
}

}  // namespace
}  // namespace redline::model
