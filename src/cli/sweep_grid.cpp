// Words to keys and values, and those to names.
#include "cli/sweep_grid.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "config/keys.h"

namespace redline::cli {
namespace {

constexpr std::size_t kLongestName = 120;  // of a folder; file systems take 255 bytes

// At commas outside of brackets and quotes.
std::vector<std::string> split_values(std::string_view text) {
  std::vector<std::string> values(1);
  int depth = 0;
  char quote = 0;
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '[') {
      ++depth;
    } else if (c == ']') {
      --depth;
    } else if (c == ',' && depth <= 0) {
      values.emplace_back();
      continue;
    }
    values.back() += c;
  }
  return values;
}

std::string key_of(const std::string& word) { return word.substr(0, word.find('=')); }

}  // namespace

std::vector<GridKey> read_grid(const std::vector<std::string>& words, const std::vector<std::string>& overrides) {
  std::vector<GridKey> grid;
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    GridKey key{key_of(word), {}};
    if (equals == word.npos || key.name.empty())
      fail_user("--grid {}: give a key and its values, as in --grid optim.lr=1e-3,2e-3", word);
    if (!config::find_key(key.name)) fail_user("--grid {}: {}", word, config::unknown_key(key.name));
    if (std::ranges::find(grid, key.name, &GridKey::name) != grid.end())
      fail_user("--grid {}: {} is in the grid already; give all of its values at once", word, key.name);
    if (std::ranges::find(overrides, key.name, key_of) != overrides.end())
      fail_user("--grid {}: {} is also given as key=value; leave one of the two out", word, key.name);
    key.values = split_values(std::string_view(word).substr(equals + 1));
    if (std::ranges::any_of(key.values, [](const std::string& v) { return v.find_first_not_of(" \t") == v.npos; }))
      fail_user("--grid {}: there is a value missing; values stand between commas, as in {}=A,B", word, key.name);
    grid.push_back(std::move(key));
  }
  return grid;
}

std::vector<std::vector<std::string>> combinations(const std::vector<GridKey>& grid) {
  std::vector<std::vector<std::string>> all = {{}};
  for (const GridKey& key : grid) {
    std::vector<std::vector<std::string>> longer;
    for (const std::vector<std::string>& before : all)
      for (const std::string& value : key.values) {
        longer.push_back(before);
        longer.back().push_back(key.name + "=" + value);
      }
    all = std::move(longer);
  }
  return all;
}

std::vector<std::string> short_names(const std::vector<std::string>& keys) {
  const auto last_part = [](const std::string& key) { return key.substr(key.rfind('.') + 1); };
  std::vector<std::string> names;
  for (const std::string& key : keys)
    names.push_back(std::ranges::count(keys, last_part(key), last_part) == 1 ? last_part(key) : key);
  return names;
}

std::string shown_value(const config::Config& config, const std::string& key) {
  const config::Value value = config::read(*config::find_key(key), config);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* texts = std::get_if<std::vector<std::string>>(&value))
    return fmt::format("{}", fmt::join(*texts, ","));
  return config::literal(value);
}

std::string run_folder_name(const std::vector<std::string>& titles, const std::vector<std::string>& values,
                            const std::vector<std::string>& taken) {
  std::string whole;
  for (std::size_t k = 0; k < titles.size(); ++k)
    whole += fmt::format("{}{}={}", k == 0 ? "" : ",", titles[k], values[k]);
  std::string name;
  for (const char c : whole) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    name += plain || std::string_view("=,._+-").find(c) != std::string_view::npos ? c : '_';
  }
  if (name.size() > kLongestName) name = name.substr(0, kLongestName - 17) + "-" + hex64(hash64(whole));
  std::string free = name;
  for (int n = 2; std::ranges::find(taken, free) != taken.end(); ++n) free = fmt::format("{}-{}", name, n);
  return free;
}

}  // namespace redline::cli
