// Tells files, presets and overrides apart.
#include "cli/config_words.h"

#include <algorithm>

#include "base/error.h"
#include "config/keys.h"
#include "config/presets.h"
#include "model/init_from.h"

namespace redline::cli {

void ConfigWords::declare(Arguments& arguments) {
  arguments.words(
      "CONFIG, key=value", words,
      "a TOML file or a preset, then keys to change, e.g. train.batch_size=64; `redline config --keys` lists the keys");
  arguments.text("--preset", "NAME", preset,
                 "start from a shipped configuration; `redline config --presets` lists them");
}

config::Sources sources_of(const ConfigWords& given) {
  config::Sources sources;
  sources.preset = given.preset;
  std::string config;
  for (const std::string& word : given.words) {
    const std::size_t equals = word.find('=');
    // The folders of a sweep's runs have an '=' in their names.
    const bool file = equals != word.npos && !config::find_key(word.substr(0, equals)) && real_files().exists(word);
    if (equals != word.npos && !file) {
      sources.overrides.push_back(word);
    } else if (config.empty()) {
      config = word;
    } else {
      fail_user("'{}': the configuration is already '{}'; a key is changed as key=value", word, config);
    }
  }
  const auto presets = config::embedded_configs();
  const bool is_preset = std::ranges::find(presets, config, &config::EmbeddedFile::name) != presets.end();
  if (config.empty() || real_files().exists(config) || !is_preset) {
    sources.file = config;
  } else if (!given.preset.empty() && given.preset != config) {
    fail_user("two presets: '{}' and --preset {}", config, given.preset);
  } else {
    sources.preset = config;
  }
  return sources;
}

config::Config load_config(const config::Sources& sources) {
  return config::load(sources, model::complete_model(real_files()));
}

std::string name_of(const config::Sources& sources) {
  if (!sources.file.empty()) return Path(sources.file).stem().string();
  return sources.preset.empty() ? "quick" : sources.preset;
}

}  // namespace redline::cli
