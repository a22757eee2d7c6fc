// Layers of settings: defaults, preset, file, command line. Each later one wins, and each remembers where it came from.
#include "config/load.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/files.h"
#include "config/keys.h"
#include "config/presets.h"
#include "config/toml.h"

namespace redline::config {
namespace {

struct Loading {
  Config config;

  bool shipped = false;  // what is being applied is a preset

  void set(const Key& key, const Value& value, const std::string& place) {
    assign(key, value, place, config);
    config.origins.set(key.name, place, shipped);
  }
};

void apply(const std::vector<Setting>& settings, std::string_view file_name, Loading& loading) {
  for (const Setting& s : settings) {
    const std::string place = fmt::format("{}:{}", file_name, s.line);
    const Key* key = find_key(s.name);
    if (key && !s.table) {
      loading.set(*key, s.value, place);
    } else if (key) {
      fail_user("{}: {} is a key ({}), not a section", place, s.name, expected(*key));
    } else if (is_section(s.name)) {
      if (!s.table)
        fail_user("{}: {} is a section, not a key: its keys are written as {}.NAME = VALUE", place, s.name, s.name);
    } else if (s.table) {
      std::vector<std::string> sections;
      for (const Key& k : keys()) sections.emplace_back(k.name.substr(0, k.name.find('.')));
      std::string guess = section_in_other_trainers(s.name);
      if (guess.empty()) guess = nearest(s.name, sections);
      const auto last = std::ranges::unique(sections).begin();
      fail_user("{}: unknown section '{}'; {}", place, s.name,
                guess.empty() ? fmt::format("the sections are {}", fmt::join(std::next(sections.begin()), last, ", "))
                              : fmt::format("did you mean '{}'?", guess));
    } else {
      fail_user("{}: {}", place, unknown_key(s.name));
    }
  }
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

std::vector<std::string> split_at_commas(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    if (const std::string_view part = trimmed(text.substr(0, comma)); !part.empty()) parts.emplace_back(part);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parts;
}

struct Override {
  const Key* key;
  Value value;
};

// "key=value": the value as TOML where it is, else the word itself; a key that holds words takes any value as one.
Override read_override(const std::string& word) {
  const std::size_t equals = word.find('=');
  if (equals == std::string::npos) fail_user("{}: '{}' is not of the form key=value", kCommandLine, word);
  const std::string_view name = trimmed(std::string_view(word).substr(0, equals));
  const std::string_view text = trimmed(std::string_view(word).substr(equals + 1));
  const Key* key = find_key(name);
  if (!key) fail_user("{}: {}", kCommandLine, unknown_key(name));

  const bool numbers = std::holds_alternative<Field<std::vector<std::int64_t>>>(key->field) ||
                       std::holds_alternative<Field<std::vector<double>>>(key->field);
  if (numbers && !text.starts_with('[')) {  // 64,128
    if (const std::optional<Value> several = read_toml_value(fmt::format("[{}]", text))) return {key, *several};
  }
  const bool list = std::holds_alternative<Field<std::vector<std::string>>>(key->field);
  const bool words = list || std::holds_alternative<Field<std::string>>(key->field);
  if (text.empty() && !list) fail_user("{}: {} needs a value ({})", kCommandLine, name, expected(*key));

  const std::optional<Value> value = read_toml_value(text);
  const bool quoted = value && (std::holds_alternative<std::string>(*value) ||
                                std::holds_alternative<std::vector<std::string>>(*value));
  if (value && (quoted || !words)) return {key, *value};
  // A value that goes into the run's config.toml must come back out of it.
  if (!read_toml_value(literal(std::string(text))))
    fail_user("{}: the value of {} is not valid UTF-8", kCommandLine, name);
  if (list) return {key, split_at_commas(text)};
  return {key, std::string(text)};
}

std::string_view preset_text(const std::string& name, std::string_view place) {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : embedded_configs()) {
    if (file.name == name) return file.text;
    names.emplace_back(file.name);
  }
  const std::string guess = nearest(name, names);
  fail_user("{}: unknown preset '{}'; {}the presets are {}", place, name,
            guess.empty() ? "" : fmt::format("did you mean '{}'? ", guess), fmt::join(names, ", "));
}

std::string read_file(const std::string& file) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) {
    std::vector<std::string> names;
    for (const EmbeddedFile& preset : embedded_configs()) names.emplace_back(preset.name);
    const std::string guess = nearest(Path(file).stem().string(), names);
    fail_user("{}: no such file{}", file,
              guess.empty() ? "; give a TOML file or one of the presets that `redline config --presets` lists"
                            : fmt::format("; there is a preset '{}'", guess));
  }
  if (std::filesystem::is_directory(status)) fail_user("{}: a folder, not a TOML file", file);
  if (!std::filesystem::is_regular_file(status) && !std::filesystem::is_fifo(status))
    fail_user("{}: not a file that can be read to its end", file);
  if (std::filesystem::is_fifo(status)) {  // what a shell makes of <(...)
    std::ifstream pipe(file, std::ios::binary);
    if (!pipe) fail_user("{}: the pipe cannot be read; give a file", file);
    std::string text(kMostTomlBytes + 1, '\0');  // read_toml() refuses what fills it
    pipe.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(pipe.gcount()));
    return text;
  }
  try {
    return read_at_most(real_files(), file, kMostTomlBytes);
  } catch (const MachineError& e) {
    throw UserError(e.what());  // a configuration that cannot be read is the user's to mend
  }
}

}  // namespace

Config load(const Sources& sources, const Complete& complete) {
  std::vector<Setting> settings;
  if (!sources.file.empty()) settings = read_toml(read_file(sources.file), sources.file);
  std::vector<Override> overrides;
  for (const std::string& word : sources.overrides) overrides.push_back(read_override(word));

  // The preset is named by --preset, then the command line's last preset=, then the file.
  std::string preset = sources.preset;
  std::string place(kCommandLine);
  for (const Override& o : overrides) {
    if (const auto* name = std::get_if<std::string>(&o.value);
        name && o.key->name == "preset" && sources.preset.empty())
      preset = *name;
  }
  for (const Setting& s : settings) {
    if (const auto* name = std::get_if<std::string>(&s.value); name && s.name == "preset" && preset.empty()) {
      preset = *name;
      place = fmt::format("{}:{}", sources.file, s.line);
    }
  }
  if (preset.empty() && sources.file.empty()) preset = "quick";

  Loading loading;
  if (!preset.empty()) {
    const std::string label = fmt::format("preset {}", preset);
    loading.shipped = true;
    apply(read_toml(preset_text(preset, place), label), label, loading);
    loading.shipped = false;
  }
  apply(settings, sources.file, loading);
  for (const Override& o : overrides) loading.set(*o.key, o.value, std::string(kCommandLine));
  loading.config.preset = preset;
  if (complete) complete(loading.config);
  resolve(loading.config);
  return loading.config;
}

Config parse(std::string_view text, std::string_view file_name, const Complete& complete) {
  Loading loading;
  apply(read_toml(text, file_name), file_name, loading);
  if (complete) complete(loading.config);
  resolve(loading.config);
  return loading.config;
}

std::vector<std::string> differing_keys(const Config& a, const Config& b) {
  std::vector<std::string> names;
  for (const Key& key : keys()) {
    if (read(key, a) != read(key, b)) names.emplace_back(key.name);
  }
  return names;
}

}  // namespace redline::config
