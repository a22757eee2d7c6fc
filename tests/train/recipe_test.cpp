// Settings that are doubtful, each said once with its key; and the recipe of a run that goes on from weights.
#include "train/recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/files.h"
#include "config/keys.h"
#include "config/load.h"
#include "model/hf_config.h"
#include "testing/paths.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::train {
namespace {

constexpr std::int64_t kSteps = 1000;

config::Config with(std::vector<std::string> overrides, const std::string& preset = "quick") {
  overrides.insert(overrides.begin(), "train.max_steps=1000");
  return config::load({.file = "", .preset = preset, .overrides = std::move(overrides)});
}

std::string doubts_about(const config::Config& config, std::int64_t steps = kSteps) {
  std::string all;
  for (const Doubt& d : doubtful_settings(config, steps)) all += fmt::format("{}: {}\n", d.key, d.sentence);
  return all;
}

TEST(Doubts, PresetsHaveNone) {
  for (const config::EmbeddedFile& file : config::embedded_configs()) {
    const config::Config c = config::load({.file = "", .preset = std::string(file.name), .overrides = {}});
    EXPECT_EQ(doubts_about(c, c.train.max_steps), "") << file.name;
  }
}

TEST(Doubts, RatesAndWarmUps) {
  struct RateCase {
    std::vector<std::string> overrides;
    std::int64_t steps;
    std::vector<std::string_view> parts;  // none: there is no doubt
  };
  const RateCase cases[] = {
      {{"optim.warmup_steps=1000"}, 1000, {"optim.warmup_steps = 1000", "1000 steps", "never reaches optim.lr = 2e-3"}},
      {{"optim.warmup_steps=999"}, 1000, {}},
      {{"optim.warmup_steps=999"}, 0, {}},  // the hours are not over
      {{"optim.warmup_steps=0", "optim.warmup_tokens=1e9"}, 1000, {"optim.warmup_tokens = 1000000000"}},
      {{"optim.warmup_steps=0", "optim.warmup_fraction=1"}, 1000, {"optim.warmup_fraction = 1.0"}},
      {{"optim.warmup_steps=0"}, 1, {}},
      {{"optim.warmup_steps=200", "optim.schedule_start=850"}, 1000, {"200 steps", "150 steps"}},
      {{"optim.lr=0", "optim.min_lr=0"}, 1000, {"optim.lr = 0", "nothing is learned"}},
      {{"optim.lr=1e-2"}, 1000, {}},
      {{"optim.lr=1.1e-2"}, 1000, {"on the command line: optim.lr = 1.1e-2", "AdamW", "1e-2"}},
      {{"optim.lr=4e-2", "optim.name=muon"}, 1000, {}},
      {{"optim.lr=6e-2", "optim.name=muon"}, 1000, {"optim.lr = 6e-2", "Muon", "5e-2"}},
      {{"optim.lr=9e-8", "optim.min_lr=0"}, 1000, {"optim.lr = 9e-8", "1e-7"}},
      {{"optim.lr=2e-7", "optim.min_lr=0"}, 1000, {}},
      {{"optim.name=muon"}, 1000, {"optim.lr = 2e-3", "preset quick", "\"adamw\"", "\"muon\""}},
      {{"optim.name=muon", "optim.lr=2e-3"}, 1000, {}},  // the same, but meant
      {{"optim.name=muon", "optim.lr=3e-3"}, 1000, {}},
  };
  for (const RateCase& c : cases) {
    const std::string said = doubts_about(with(c.overrides), c.steps);
    const std::string name = fmt::format("{}", fmt::join(c.overrides, " "));
    EXPECT_EQ(std::ranges::count(said, '\n'), c.parts.empty() ? 0 : 1) << name << ": " << said;
    for (const std::string_view part : c.parts) EXPECT_TRUE(testing::says(said, part)) << name;
  }
}

// Four times the rows: twice the rate, by the root of the ratio.
TEST(Doubts, PositionsThatTheWeightsDoNotKnow) {
  config::Config c = with({"train.seq_len=256"});
  c.model.max_positions = 128;
  EXPECT_EQ(doubts_about(c), "");  // weights that begin at random know none
  c.model.init_from = "hf";
  EXPECT_TRUE(testing::says(doubts_about(c), {"train.seq_len = 256", "128 positions", "yarn"}));
  c.model.max_positions = 256;
  EXPECT_EQ(doubts_about(c), "");
}

TEST(Doubts, ModelsThatTransformersRefuses) {
  const auto of = [](const std::string& family) {
    return doubts_about(with({"model.family=" + family, "model.hidden=100", "model.heads=3", "model.head_dim=32"}));
  };
  for (const char* family : {"llama", "gemma3"})
    EXPECT_TRUE(testing::says(of(family), {"model.hidden (100)", "model.heads (3)", "transformers"})) << family;
  EXPECT_EQ(of("qwen3"), "");
  const std::vector<std::string> olmoe = {"model.family=olmoe", "model.experts=2", "model.experts_per_token=1",
                                          "model.heads=4", "model.head_dim=32"};
  const auto of_width = [&](const char* hidden) {
    std::vector<std::string> overrides = olmoe;
    overrides.emplace_back(hidden);
    return doubts_about(with(overrides));
  };
  EXPECT_TRUE(testing::says(of_width("model.hidden=96"), {"model.hidden (96)", "model.head_dim (32)", "transformers"}));
  EXPECT_EQ(of_width("model.hidden=128"), "");
}

TEST(Doubts, OneExpertWhoseWeightIsAlwaysOne) {
  EXPECT_EQ(doubts_about(with({"model.experts_per_token=1", "model.norm_topk=false"}, "moe-1b")), "");
  EXPECT_TRUE(testing::says(doubts_about(with({"model.experts_per_token=1"}, "moe-1b")),
                            {"model.experts_per_token: ", "the weight 1", "model.norm_topk=false"}));
  const std::string mixtral = doubts_about(with({"model.experts_per_token=1", "model.family=mixtral"}, "moe-1b"));
  EXPECT_TRUE(testing::says(mixtral, {"take more than one"}));
  EXPECT_EQ(mixtral.find("norm_topk=false"), mixtral.npos) << mixtral;
}

TEST(Doubts, OtherRowsInAPresetGetARateAsAHint) {
  const config::Config preset = with({}, "ping-95m");
  ASSERT_EQ(preset.train.batch_size, 128);
  const auto hints = [](const config::Config& c) {
    std::vector<std::string> all;
    for (const Doubt& d : doubtful_settings(c, kSteps))
      if (d.hint) all.push_back(d.sentence);
    return all;
  };
  const std::vector<std::string> said = hints(with({"train.batch_size=512"}, "ping-95m"));
  ASSERT_EQ(said.size(), 1u);
  EXPECT_TRUE(
      testing::says(said[0], {"train.batch_size = 512", "ping-95m", "128", "optim.lr=2e-4", "optim.min_lr=2e-5"}));
  const std::vector<std::string> more = hints(with({"train.accumulate=4"}, "ping-95m"));
  ASSERT_EQ(more.size(), 1u) << "as many rows a step";
  EXPECT_TRUE(testing::says(more[0], {"train.accumulate = 4", "512 rows", "optim.lr=2e-4", "optim.min_lr=2e-5"}));
  EXPECT_EQ(hints(preset), std::vector<std::string>{});
  EXPECT_EQ(hints(with({"train.batch_size=32", "train.accumulate=4"}, "ping-95m")), std::vector<std::string>{});
  EXPECT_EQ(hints(with({"train.batch_size=512", "optim.lr=1e-4"}, "ping-95m")), std::vector<std::string>{})
      << "the rate was written, too";
}

TEST(Doubts, KeysThatTheUserWroteAndThatDoNothing) {
  struct IdleCase {
    std::vector<std::string> overrides;
    std::string_view key, by;  // no key: it counts
  };
  const IdleCase cases[] = {
      {{"optim.muon_momentum=0.9"}, "optim.muon_momentum = 0.9", "optim.name is \"adamw\""},
      {{"optim.muon_momentum=0.95"}, "optim.muon_momentum", "optim.name"},  // the default, but written
      {{"optim.muon_momentum=0.9", "optim.name=muon", "optim.lr=1e-3"}, "", ""},
      {{"optim.decay_fraction=0.5"}, "optim.decay_fraction = 0.5", "optim.schedule is \"cosine\""},
      {{"optim.decay_fraction=0.5", "optim.schedule=wsd"}, "", ""},
      {{"optim.decay_fraction=0.5", "optim.schedule=wsd", "optim.decay_tokens=1e6"},
       "optim.decay_fraction",
       "optim.decay_tokens is 1000000"},
      {{"optim.min_lr=1e-5", "optim.schedule=constant"}, "optim.min_lr", "optim.schedule is \"constant\""},
      {{"optim.weight_decay_falls=true", "optim.weight_decay=0"}, "optim.weight_decay_falls", "optim.weight_decay"},
      {{"data.buckets=64"}, "data.buckets", "data.packing is \"pack\""},
      {{"train.average_steps=5"}, "train.average_steps", "train.average"},
      {{"train.sample_tokens=5"}, "train.sample_tokens", "train.sample_every"},
      {{"train.sample_tokens=5", "train.sample_every=5"}, "", ""},
      {{"precision.head=fp8"}, "precision.head", "precision.matmul is \"bf16\""},
      {{"model.rope_factor=4"}, "model.rope_factor", "model.rope_scaling is \"none\""},
      {{"model.router_aux=0.02"}, "model.router_aux = 0.02", "model.family is \"llama\""},
      {{"log.router_every=5"}, "log.router_every = 5", "model.family is \"llama\""},
      {{"optim.muon_momentum_from=0.8", "optim.muon_momentum_steps=0", "optim.name=muon", "optim.lr=1e-3"},
       "optim.muon_momentum_from",
       "optim.muon_momentum_steps is 0"},
  };
  for (const IdleCase& c : cases) {
    const std::string said = doubts_about(with(c.overrides));
    const std::string name = fmt::format("{}", fmt::join(c.overrides, " "));
    EXPECT_EQ(std::ranges::count(said, '\n'), c.key.empty() ? 0 : 1) << name << ": " << said;
    EXPECT_TRUE(testing::says(said, {c.key, c.by})) << name;
  }
  // A preset's keys were not written by the user: NorMuon's moment is left over where AdamW takes its place.
  EXPECT_EQ(doubts_about(with({"optim.name=adamw", "optim.lr=3e-4", "optim.min_lr=3e-5"}, "gqa-180m")), "");
  // Every layer of moe-1b has experts, whose width is another key; without a coefficient no balance counts.
  EXPECT_TRUE(testing::says(doubts_about(with({"model.ffn=999"}, "moe-1b")), "model.ffn = 999 has no effect"));
  EXPECT_EQ(doubts_about(with({"model.ffn=999", "model.dense_layers=[0]"}, "moe-1b")), "");
  EXPECT_TRUE(testing::says(doubts_about(with({"model.router_balance=model", "model.router_aux=0"}, "moe-1b")),
                            "model.router_balance = \"model\" has no effect"));
}

// A file with every key, as a run keeps it, was not written by hand: its defaults are no mistakes.
TEST(Doubts, AWholeFileIsQuietButForWhatWasChanged) {
  testing::TempFolder temp;
  const auto doubts_of = [&](const config::Config& c, std::vector<std::string> overrides = {}) {
    real_files().replace(temp.path() / "whole.toml", config::dump(c));
    return doubts_about(
        config::load({.file = (temp.path() / "whole.toml").string(), .preset = "", .overrides = std::move(overrides)}));
  };
  EXPECT_EQ(doubts_of(with({})), "");
  EXPECT_EQ(doubts_of(with({}, "gqa-180m")), "");
  EXPECT_EQ(doubts_of(with({}, "moe-1b")), "");
  EXPECT_TRUE(testing::says(doubts_of(with({"optim.muon_rounds=6"})), {"whole.toml:", "optim.muon_rounds = 6"}));
  EXPECT_TRUE(testing::says(doubts_of(with({}), {"optim.muon_rounds=5"}), "optim.muon_rounds = 5"));
  // A run of an earlier redline lacks what came since.
  std::string older = config::dump(with({}));
  const std::size_t at = older.find("rope_truncate");
  ASSERT_NE(at, std::string::npos);
  older.erase(at, older.find('\n', at) + 1 - at);
  real_files().replace(temp.path() / "older.toml", older);
  EXPECT_EQ(doubts_about(config::load({.file = (temp.path() / "older.toml").string(), .preset = "", .overrides = {}})),
            "");
}

TEST(Rate, IsShort) {
  EXPECT_EQ(short_rate(2e-3), "2e-3");
  EXPECT_EQ(short_rate(1.414e-4), "1.41e-4");
  EXPECT_EQ(short_rate(0), "0");
  EXPECT_EQ(short_rate(1), "1e0");
  EXPECT_EQ(short_rate(1e-20), "1e-20");
}

class GoingOn : public ::testing::Test {
 protected:
  // As the program loads a configuration.
  config::Config load(std::vector<std::string> overrides, const std::string& preset = "") {
    overrides.insert(overrides.begin(), "model.init_from=" + testing::source_folder() + "/tests/fixtures/llama3-gqa");
    return config::load({.file = "", .preset = preset, .overrides = std::move(overrides)}, [&](config::Config& c) {
      model::complete_model(real_files())(c);
      reasons_ = complete_recipe(c);
    });
  }
  std::vector<std::string> reasons_;
};

TEST_F(GoingOn, WithoutARecipeGetsOneWithItsReasons) {
  const config::Config c = load({});
  EXPECT_EQ(c.preset, "");
  EXPECT_EQ(c.optim.name, "adamw");
  EXPECT_EQ(c.optim.lr, 3e-4) << "the most, for a model of 0.2 million parameters";
  EXPECT_EQ(c.optim.min_lr, 3e-5);
  EXPECT_EQ(c.optim.schedule, "cosine");
  EXPECT_EQ(c.optim.warmup_fraction, 0.1);
  EXPECT_EQ(c.train.epochs, 1);
  EXPECT_EQ(c.train.max_steps, 0);
  EXPECT_EQ(c.train.seq_len, 512) << "as many as the model takes";
  EXPECT_EQ(c.train.batch_size * c.train.seq_len * c.train.accumulate, 16'384);
  ASSERT_EQ(reasons_.size(), 3u);
  EXPECT_TRUE(testing::one_says(reasons_, {"optim.lr = 3e-4", "0.234 million", "cube root"}));
  EXPECT_TRUE(testing::one_says(reasons_, {"train.epochs = 1"}));
  EXPECT_TRUE(testing::one_says(reasons_, {"16384 tokens"}));
  EXPECT_EQ(doubts_about(c), "");
}

TEST_F(GoingOn, TheRateFollowsTheSizeOfTheModel) {
  const auto rate_of = [](config::Model m) {
    config::Config c;
    c.model = m;
    c.model.init_from = "somewhere";
    complete_recipe(c);
    return c.optim.lr;
  };
  config::Model llama2_7b;
  llama2_7b.layers = 32, llama2_7b.hidden = 4096, llama2_7b.heads = 32, llama2_7b.ffn = 11008, llama2_7b.vocab = 32000;
  EXPECT_EQ(rate_of(llama2_7b), 2e-5);
  config::Model qwen3_600m;
  qwen3_600m.family = "qwen3";
  qwen3_600m.qk_norm = qwen3_600m.tied = true;
  qwen3_600m.layers = 28, qwen3_600m.hidden = 1024, qwen3_600m.heads = 16, qwen3_600m.kv_heads = 8;
  qwen3_600m.head_dim = 128, qwen3_600m.ffn = 3072, qwen3_600m.vocab = 151'936;
  EXPECT_EQ(rate_of(qwen3_600m), 4.5e-5);
}

TEST_F(GoingOn, WhatSomebodyWroteStays) {
  config::Config c = load({"optim.lr=1e-4", "train.max_steps=50", "train.batch_size=4"});
  EXPECT_TRUE(reasons_.empty());
  EXPECT_EQ(c.optim.lr, 1e-4);
  EXPECT_EQ(c.optim.warmup_fraction, 0);
  EXPECT_EQ(c.train.epochs, 0);
  EXPECT_EQ(c.train.seq_len, 256);
  // An end alone is no recipe for the rate.
  c = load({"train.epochs=3"});
  EXPECT_EQ(c.train.epochs, 3);
  EXPECT_EQ(c.optim.lr, 3e-4);
  EXPECT_EQ(c.optim.warmup_fraction, 0.1);
  EXPECT_EQ(reasons_.size(), 2u);
  c = load({"train.max_hours=2", "train.batch_size=4"});
  EXPECT_EQ(c.optim.schedule, "constant");
  EXPECT_EQ(c.optim.warmup_steps, 20);
  c = load({"train.seq_len=128"});
  EXPECT_EQ(c.train.seq_len, 128);
  EXPECT_EQ(c.train.batch_size * c.train.accumulate, 128);
  // A preset is a recipe.
  c = load({}, "quick");
  EXPECT_TRUE(reasons_.empty());
  EXPECT_EQ(c.train.max_steps, 400);
  EXPECT_EQ(c.optim.lr, 2e-3);
}

TEST_F(GoingOn, AMixtureIsAskedForItsEnd) {
  const std::string error = testing::error_of([&] { load({"data.train=a,b", "data.weights=1,2"}); });
  EXPECT_TRUE(testing::says(error, {"train.max_steps", "train.max_tokens"}));
}

TEST_F(GoingOn, ARunFromScratchIsLeftAlone) {
  config::Config c;
  EXPECT_TRUE(complete_recipe(c).empty());
  EXPECT_EQ(c, config::Config());
}

}  // namespace
}  // namespace redline::train
