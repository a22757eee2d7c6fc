// Tells files, presets and overrides apart.
#include "cli/config_words.h"

#include <algorithm>

#include "base/error.h"
#include "base/files.h"
#include "config/load.h"
#include "config/toml.h"
#include "model/init_from.h"
#include "perf/ladder.h"

namespace redline::cli {

void ConfigWords::declare(Arguments& arguments) {
  arguments.words(
      "CONFIG, key=value", words,
      "a TOML file or a preset, then keys to change, e.g. train.batch_size=64; `redline config --keys` lists the keys");
  arguments.text("--preset", "NAME", preset,
                 "start from a shipped configuration; `redline config --presets` lists them");
  std::vector<std::string> tiers;
  for (const perf::Tier& known : perf::tiers()) tiers.emplace_back(known.name);
  arguments.choice(
      "--tier", "NAME", tier, tiers,
      "keys of a tier put over the configuration: safe, fast or fastest; `redline ladder --tier` measures them");
  arguments.text("--overlay", "FILE", overlay,
                 "a TOML file of keys put over the configuration, as `redline tune` writes one");
}

namespace {

// The keys of an overlay file as overrides, each checked to be a key with a valid value.
std::vector<std::string> overlay_keys(const std::string& file) {
  std::vector<std::string> keys;
  if (!real_files().exists(file)) fail_user("--overlay {}: no such file; `redline tune` writes one", file);
  config::Config scratch;
  for (const config::Setting& s : config::read_toml(read_at_most(real_files(), file, config::kMostTomlBytes), file)) {
    if (s.table) continue;
    const std::string place = fmt::format("{}:{}", file, s.line);
    const config::Key* const key = config::find_key(s.name);
    if (!key) fail_user("{}: {}", place, config::unknown_key(s.name));
    config::assign(*key, s.value, place, scratch);
    keys.push_back(fmt::format("{}={}", s.name, config::literal(s.value)));
  }
  return keys;
}

}  // namespace

config::Sources sources_of(const ConfigWords& given) {
  config::Sources sources;
  sources.preset = given.preset;
  if (!given.tier.empty()) sources.overrides = perf::tier_called(given.tier).keys;
  if (!given.overlay.empty())
    for (std::string& key : overlay_keys(given.overlay)) sources.overrides.push_back(std::move(key));
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
