// The only file that knows the TOML library.
#include "config/toml.h"

#define TOML_EXCEPTIONS 1
#include <toml++/toml.h>

#include <algorithm>

#include "base/error.h"

namespace redline::config {
namespace {

Value value_of(const toml::node& node) {
  if (const auto b = node.value_exact<bool>()) return *b;
  if (const auto i = node.value_exact<std::int64_t>()) return *i;
  if (const auto d = node.value_exact<double>()) return *d;
  if (const auto s = node.value_exact<std::string>()) return *s;
  if (const toml::array* array = node.as_array()) {
    if (!array->empty() && array->is_homogeneous<std::int64_t>()) {
      std::vector<std::int64_t> numbers;
      for (const toml::node& element : *array) numbers.push_back(element.value_exact<std::int64_t>().value_or(0));
      return numbers;
    }
    std::vector<std::string> list;
    for (const toml::node& element : *array) {
      const auto s = element.value_exact<std::string>();
      if (!s) return {};
      list.push_back(*s);
    }
    return list;
  }
  return {};
}

void flatten(const toml::table& table, const std::string& prefix, std::vector<Setting>& out) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    const toml::table* inner = node.as_table();
    const int line = static_cast<int>(std::max(key.source().begin.line, toml::source_index{1}));
    out.push_back({name, inner ? Value() : value_of(node), line, inner != nullptr});
    if (inner) flatten(*inner, name + ".", out);
  }
}

}  // namespace

std::vector<Setting> read_toml(std::string_view text, std::string_view file_name) {
  std::vector<Setting> settings;
  try {
    flatten(toml::parse(text), "", settings);
  } catch (const toml::parse_error& error) {
    fail_user("{}:{}: not valid TOML: {}", file_name, error.source().begin.line, error.description());
  }
  std::ranges::stable_sort(settings, {}, &Setting::line);
  return settings;
}

std::optional<Value> read_toml_value(std::string_view text) {
  try {
    const toml::table table = toml::parse("value = " + std::string(text));
    const toml::node* node = table.get("value");
    if (!node || table.size() != 1) return std::nullopt;
    return value_of(*node);
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

}  // namespace redline::config
