// What model/ knows of families and config/ does not: their names, and what each decides of a configuration.
#include "model/family.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "base/files.h"
#include "config/load.h"
#include "testing/paths.h"

namespace redline::model {
namespace {

std::string refusal(const std::string& text) {
  try {
    config::parse(text, "x.toml", settle_family);
  } catch (const UserError& e) {
    return e.what();
  }
  return "no error";
}

TEST(SettleFamily, AnUnknownNameIsRefusedWithTheNearestOne) {
  EXPECT_EQ(refusal("train.max_steps = 1\nmodel.family = \"lama\"\n"),
            "x.toml:2: model.family must be one of llama | qwen3 | olmo2, not \"lama\"; did you mean \"llama\"?");
  EXPECT_EQ(refusal("model.family = \"mixtral\"\n"),
            "x.toml:1: model.family must be one of llama | qwen3 | olmo2, not \"mixtral\"");
}

TEST(SettleFamily, QkNormIsWhatTheFamilyHas) {
  const std::string steps = "train.max_steps = 1\n";
  EXPECT_EQ(config::parse(steps, "x.toml", settle_family).model.qk_norm, false);
  EXPECT_EQ(config::parse(steps + "model.family = \"qwen3\"\n", "x.toml", settle_family).model.qk_norm, true);
  EXPECT_EQ(refusal(steps + "model.qk_norm = false\n"), "no error");
  EXPECT_EQ(refusal(steps + "model.qk_norm = true\n"),
            "x.toml:2: model.qk_norm must be false for model.family \"llama\"; it is true for qwen3, olmo2");
  EXPECT_EQ(refusal("model.qk_norm = false\nmodel.family = \"qwen3\"\n"),
            "x.toml:2: model.qk_norm must be true for model.family \"qwen3\"; it is false for llama");
}

TEST(Documentation, IsWhatTheTableOfKeysSays) {
  const Path page = Path(testing::source_folder()) / "docs" / "config.md";
  const std::string text = config::keys_as_markdown(keys_with_families());
  if (std::getenv("REDLINE_UPDATE_DOCS")) real_files().replace(page, text);
  EXPECT_EQ(real_files().read(page), text) << "run tests_model once with REDLINE_UPDATE_DOCS=1";
}

}  // namespace
}  // namespace redline::model
