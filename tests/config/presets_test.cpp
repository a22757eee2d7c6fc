// The shipped configurations: what is inside the program is what stands in configs/, and each is the model
// it is named for.
#include <gtest/gtest.h>

#include "base/files.h"
#include "config/load.h"
#include "testing/paths.h"

namespace redline::config {
namespace {

TEST(Presets, AreTheFilesOfConfigs) {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : embedded_configs()) {
    names.push_back(std::string(file.name) + ".toml");
    EXPECT_EQ(real_files().read(Path(testing::source_folder()) / "configs" / names.back()), file.text) << file.name;
  }
  EXPECT_EQ(names, real_files().list(Path(testing::source_folder()) / "configs"));
}

// Parameters without the norms' weights, which are below a thousandth.
std::int64_t matrix_parameters(const Model& m) {
  const std::int64_t attention = m.hidden * m.head_dim * (2 * m.heads + 2 * m.kv_heads);
  return m.layers * (attention + 3 * m.hidden * m.ffn) + (m.tied ? 1 : 2) * m.vocab * m.hidden;
}

TEST(Presets, HaveTheSizesTheyAreNamedFor) {
  const std::vector<std::pair<std::string, double>> sizes = {
      {"ping-95m", 95e6},    {"gqa-180m", 180e6},    {"cs336-350m", 350e6},      {"llama-1.36b", 1.36e9},
      {"qwen3-1.8b", 1.8e9}, {"olmo2-1.5b", 1.48e9}, {"cs336-350m-90min", 370e6}};
  for (const auto& [name, size] : sizes) {
    const auto parameters = static_cast<double>(matrix_parameters(load({"", name, {}}).model));
    EXPECT_NEAR(parameters / size, 1.0, 0.18) << name << " " << parameters;
  }
}

TEST(Presets, NoneLeansOnAnother) {
  for (const EmbeddedFile& file : embedded_configs()) {
    EXPECT_EQ(file.text.find("\npreset"), std::string_view::npos);
    const Config alone = parse(file.text, file.name);
    Config loaded = load({"", std::string(file.name), {}});
    EXPECT_EQ(loaded.preset, file.name);
    loaded.preset.clear();
    EXPECT_EQ(alone, loaded);
  }
}

}  // namespace
}  // namespace redline::config
