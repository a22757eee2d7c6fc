// redline config, and the words with which other commands name a configuration.
#include "cli/config.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "config/load.h"
#include "config/toml.h"
#include "data/input/byte_stream.h"
#include "data/input/parquet.h"
#include "data/input/text_input.h"
#include "io/json.h"
#include "io/manifest.h"
#include "io/safetensors.h"
#include "model/family.h"
#include "model/hf_config.h"
#include "perf/ladder.h"
#include "train/on_ranks.h"
#include "train/recipe.h"

namespace redline::cli {
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
    if (!key) fail_user("{}: {}", place, config::unknown_key(s.name, config::literal(s.value)));
    config::assign(*key, s.value, place, scratch);
    keys.push_back(fmt::format("{}={}", s.name, config::literal(s.value)));
  }
  return keys;
}

// A file of text, by its name, where a configuration is asked for.
void refuse_text(const std::string& word) {
  constexpr std::string_view kTexts[] = {".txt", ".text", ".md", ".markdown", ".rst", ".html", ".htm", ".tex"};
  const Path path = word;
  const bool in_parts = data::compression_of(path) != data::Compression::none || data::is_parquet(path) ||
                        (data::is_json_lines(path) && path.filename() != "config.json");
  const bool text = in_parts || std::ranges::find(kTexts, path.extension().string()) != std::end(kTexts);
  std::error_code error;
  if (!text || !std::filesystem::is_regular_file(path, error)) return;
  fail_user(
      "{}: a file of text, and no configuration; `redline train {}` trains on all text of its folder, and `redline "
      "train quick {}{}` on the file alone, with the model of a preset",
      word, shell_word(parent_of(path).string()), shell_word("data.train=" + word),
      in_parts ? " data.tokenizer=bytes" : "");
}

}  // namespace

void ConfigWords::declare(Arguments& arguments, bool with_folders) {
  arguments.words(
      with_folders ? "CONFIG | DIR, key=value" : "CONFIG, key=value", words,
      fmt::format("a TOML file or a preset{}, then keys to change, e.g. train.batch_size=64; `redline config --keys` "
                  "lists the keys",
                  with_folders ? ", or a folder of text, for which the rest is chosen" : ""));
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
    refuse_text(config);
    sources.file = config;
  } else if (!given.preset.empty() && given.preset != config) {
    fail_user("two presets: '{}' and --preset {}", config, given.preset);
  } else {
    sources.preset = config;
  }
  return sources;
}

config::Config load_config(const config::Sources& sources) {
  return config::load(sources, [model = model::complete_model(real_files())](config::Config& config) {
    model(config);
    train::complete_recipe(config);
  });
}

// The config.json of a model without weights, which is enough to measure it: the file itself, or the one of a folder.
std::optional<Path> bare_model(const std::string& given) {
  const Path path = given;
  std::error_code ignored;
  if (path.extension() == ".json" && std::filesystem::is_regular_file(path, ignored)) return path;
  if (given.empty() || !real_files().exists(path / "config.json")) return {};
  for (const char* other : {"checkpoints", io::kManifest})
    if (real_files().exists(path / other)) return {};
  if (io::has_weights(real_files(), path)) return {};
  return path / "config.json";
}

config::Config load_to_measure(const config::Sources& sources, bool say, std::int64_t ranks) {
  bool endless = false;
  config::Config config = config::load(sources, [&](config::Config& c) {
    // A run has its model already: the folder that it began with may be gone.
    if (!c.model.init_from.empty() && c.origins.written("model.hidden") && !real_files().exists(c.model.init_from))
      model::settle_family(c);
    else if (const auto file = bare_model(c.model.init_from)) {
      model::take_model(c, model::read_hf_config(real_files(), *file), file->string());
      model::settle_family(c);
    } else
      model::complete_model(real_files())(c);
    train::complete_recipe(c);
    const config::Train& t = c.train;
    endless = t.max_steps == 0 && t.max_tokens == 0 && t.epochs == 0 && t.max_hours == 0;
    if (endless) c.train.max_tokens = 1;  // for the rules over several keys
  });
  if (endless) config.train.max_tokens = 0;
  if (ranks > 0) train::share_micro_batches(config, ranks);
  if (config::stand_in_for_data(config) && say)
    log::note("data.train names nothing: random tokens of the model's vocabulary take its place, in full rows");
  return config;
}

std::string name_of(const config::Sources& sources) {
  if (!sources.file.empty()) return Path(sources.file).stem().string();
  if (!sources.preset.empty()) return sources.preset;
  std::string start;
  constexpr std::string_view kStart = "model.init_from=";
  for (const std::string& word : sources.overrides)
    if (word.starts_with(kStart)) start = word.substr(kStart.size());
  std::erase(start, '"');
  while (start.ends_with('/')) start.pop_back();
  if (Path(start).filename() == "config.json" && Path(start).has_parent_path())
    start = Path(start).parent_path().string();
  return start.empty() ? "quick" : Path(start).filename().string();
}

// The first sentence of a preset's file, without its name.
std::vector<PresetWords> preset_words() {
  std::vector<PresetWords> all;
  for (const config::EmbeddedFile& file : config::embedded_configs()) {
    std::string about;
    std::string_view rest = file.text;
    while (rest.starts_with("# ") && about.find(". ") == about.npos) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      about += std::string(rest.substr(2, end - 2)) + " ";
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    about = about.substr(0, about.find(". "));
    const std::string own_name = std::string(file.name) + ": ";
    if (about.starts_with(own_name)) about.erase(0, own_name.size());
    all.push_back({std::string(file.name), about});
  }
  return all;
}

namespace {

io::Json json_of(const config::Value& value) {
  return std::visit(
      [](const auto& v) -> io::Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::monostate>)
          return nullptr;
        else
          return v;
      },
      value);
}

// {"model": {"layers": 4, ...}, ...}; a key that is unset is null.
io::Json config_as_json(const config::Config& c) {
  io::Json out = io::Json::object();
  for (const config::Key& key : config::keys()) {
    const std::size_t dot = key.name.find('.');
    io::Json& section = dot == key.name.npos ? out : out[std::string(key.name.substr(0, dot))];
    section[std::string(key.name.substr(dot == key.name.npos ? 0 : dot + 1))] = json_of(config::read(key, c));
  }
  return out;
}

io::Json keys_as_json(const std::vector<config::Key>& keys) {
  const config::Config defaults;
  io::Json rows = io::Json::array();
  for (const config::Key& key : keys)
    rows.push_back({{"key", key.name},
                    {"takes", config::expected(key)},
                    {"unit", key.unit},
                    {"default", json_of(config::read(key, defaults))},
                    {"meaning", key.help},
                    {"on_resume", config::in_words(key.on_resume)}});
  return rows;
}

std::string lower(std::string_view text) {
  std::string out;
  for (const char c : text) out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// The keys that have all words in their name or meaning, or that another trainer calls so. None is a UserError.
std::vector<config::Key> keys_about(const std::vector<std::string>& words) {
  std::vector<config::Key> keys = model::keys_with_families();
  for (const std::string& word : words) {
    const std::string wanted = lower(word), here = config::key_in_other_trainers(word);
    std::vector<config::Key> found;
    std::vector<std::string> names;
    for (const config::Key& key : keys) {
      names.emplace_back(key.name);
      if (key.name == here || lower(fmt::format("{} {}", key.name, key.help)).find(wanted) != std::string::npos)
        found.push_back(key);
    }
    if (found.empty()) {
      const std::string guess = config::nearest(word, names);
      fail_user("--keys: no key has '{}' in its name or meaning; {}", word,
                guess.empty() ? "`redline config --keys` lists all of them" : fmt::format("did you mean '{}'?", guess));
    }
    keys = std::move(found);
  }
  return keys;
}

}  // namespace

int run_config(const Words& words) {
  Arguments arguments("config", "print the resolved configuration: every key with its value and meaning",
                      "[CONFIG] [key=value ...] [--keys [WORD ...] | --markdown | --presets] [--json]",
                      {"redline config                           the defaults of `redline train`",
                       "redline config ping-95m train.batch_size=16 > my.toml",
                       "redline config --keys                    all keys; with `batch`, those about batches"});
  ConfigWords config;
  bool keys = false, markdown = false, presets = false, json = false;
  config.declare(arguments);
  arguments.flag(
      "--keys", keys,
      "one line a key: what it takes, its default, its meaning; with words, the keys that have them in their "
      "name or meaning");
  arguments.flag("--markdown", markdown, "the same as a Markdown page");
  arguments.flag("--presets", presets, "the shipped configurations");
  arguments.json(json);
  if (!arguments.parse(words)) return kDone;
  if (keys + markdown + presets > 1) fail_user("--keys, --markdown and --presets cannot be combined");

  const std::string_view list = keys ? "--keys" : markdown ? "--markdown" : presets ? "--presets" : "";
  if (!list.empty() && !(config.preset + config.tier + config.overlay).empty())
    fail_user("{} is not about a configuration: leave --preset, --tier and --overlay out", list);
  if (!list.empty() && !keys && !config.words.empty())
    fail_user("{} takes no words, and '{}' is one; --keys takes words to look for", list, config.words[0]);
  if (markdown && json) fail_user("--markdown and --json: one form at a time");

  if (keys) {
    const std::vector<config::Key> about = keys_about(config.words);
    json ? print_json(keys_as_json(about)) : print(config::describe_keys(about));
  } else if (markdown) {
    print(config::keys_as_markdown(model::keys_with_families()));
  } else if (presets) {
    io::Json rows = io::Json::array();
    for (const PresetWords& preset : preset_words()) {
      rows.push_back({{"preset", preset.name}, {"about", preset.about}});
      if (!json) print(fmt::format("{:<14} {}\n", preset.name, preset.about));
    }
    if (json) print_json(rows);
  } else {
    const config::Config resolved = load_config(sources_of(config));
    json ? print_json(config_as_json(resolved)) : print_data(config::dump(resolved));
  }
  return kDone;
}

}  // namespace redline::cli
