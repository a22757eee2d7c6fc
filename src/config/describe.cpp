// The key table as text: the resolved dump, the lines of --help, docs/config.md.
#include <algorithm>

#include "base/error.h"
#include "config/keys.h"
#include "config/load.h"

namespace redline::config {
namespace {

struct SplitName {
  std::string_view section, leaf;
};

SplitName split(std::string_view name) {
  const std::size_t dot = name.find('.');
  return dot == std::string_view::npos ? SplitName{"", name} : SplitName{name.substr(0, dot), name.substr(dot + 1)};
}

std::string expected_with_unit(const Key& key) {
  return key.unit.empty() ? expected(key) : fmt::format("{}, {}", expected(key), key.unit);
}

// '|' ends a cell of a Markdown table.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

std::string_view in_words(OnResume on_resume) {
  switch (on_resume) {
    case OnResume::free: return "free";
    case OnResume::rows: return "free while a step keeps its rows, else --allow-change";
    case OnResume::same_data: return "free while the data are the same, else --allow-change; they begin anew";
    case OnResume::allowed: return "--allow-change";
    case OnResume::new_order: return "--allow-change; the data begin anew";
    case OnResume::never: break;
  }
  return "never";
}

std::string dump(const Config& config) {
  std::string out = "# A whole redline configuration: every key, its value, its meaning.\n";
  std::string_view section;
  for (const Key& key : keys()) {
    const auto [in, leaf] = split(key.name);
    if (in != section) out += fmt::format("\n[{}]\n", in);
    section = in;
    const Value value = read(key, config);
    const bool unset = std::holds_alternative<std::monostate>(value);
    const std::string assignment =
        unset ? fmt::format("# {} is unset", leaf) : fmt::format("{} = {}", leaf, literal(value));
    out += fmt::format("{:<32}  # {} ({})\n", assignment, key.help, expected_with_unit(key));
  }
  return out;
}

std::string describe_keys(std::span<const Key> keys) {
  const Config defaults;
  std::size_t name_width = 0, kind_width = 0, default_width = 0;
  for (const Key& key : keys) {
    name_width = std::max(name_width, key.name.size());
    kind_width = std::max(kind_width, expected_with_unit(key).size());
    default_width = std::max(default_width, literal(read(key, defaults)).size());
  }
  std::string out;
  for (const Key& key : keys) {
    out += fmt::format("{:<{}}  {:<{}}  default {:<{}}  {}\n", key.name, name_width, expected_with_unit(key),
                       kind_width, literal(read(key, defaults)), default_width, key.help);
  }
  return out;
}

std::string keys_as_markdown(std::span<const Key> keys) {
  const Config defaults;
  std::string out =
      "# Configuration\n\n"
      "Every key, as the program knows it. A configuration is a TOML file; any key can also be given on the command "
      "line as\n"
      "`train.batch_size=64`. Later sources win: defaults, the preset, the file, the command line. With no file and no "
      "preset\n"
      "the preset is `quick`. A list key takes a string, a list of strings or, on the command line, words joined by "
      "commas.\n\n"
      "*On resume* says what becomes of a key that `redline train --resume` is given another value for:\n"
      "[training.md](training.md#what-may-change).\n";
  std::string_view section = "none yet";
  for (const Key& key : keys) {
    const auto [in, leaf] = split(key.name);
    if (in != section) {
      out += in.empty() ? "\n## Top level\n\n" : fmt::format("\n## [{}]\n\n", in);
      out += "| key | takes | default | meaning | on resume |\n|---|---|---|---|---|\n";
    }
    section = in;
    out += fmt::format("| `{}` | {} | `{}` | {} | {} |\n", key.name, cell(expected_with_unit(key)),
                       cell(literal(read(key, defaults))), cell(key.help), in_words(key.on_resume));
  }
  return out;
}

}  // namespace redline::config
