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
    if (!array->empty() && std::ranges::all_of(*array, [](const toml::node& n) { return n.is_number(); })) {
      std::vector<double> numbers;
      for (const toml::node& element : *array) numbers.push_back(element.value<double>().value_or(0));
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

// The library walks down the parts of a key by recursion, and 50,000 of them are more than a stack holds. So the dots
// of a key, outside of strings and comments, are counted before it sees them; values inside each other it counts
// itself. Returns what is wrong, and the line.
std::pair<std::string, int> bounds_problem(std::string_view text) {
  constexpr int kMostDots = 8;
  if (text.size() > kMostTomlBytes)
    return {fmt::format("larger than the {} KiB that a configuration may have", kMostTomlBytes >> 10), 1};
  int dots = 0, line = 1;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size()) - 1;
    } else if (c == '"' || c == '\'') {
      const std::string_view three = text.substr(at, 3);
      const bool several = three == "\"\"\"" || three == "\'\'\'";
      const std::string_view quotes = three.substr(0, several ? 3 : 1);
      for (at += quotes.size(); at < text.size() && !text.substr(at).starts_with(quotes); ++at) {
        if (text[at] == '\n' && !several) break;  // the library will tell that it has no end
        line += text[at] == '\n';
        at += c == '"' && text[at] == '\\';
      }
      at += quotes.size() - 1;
      while (several && at + 1 < text.size() && text[at + 1] == c) ++at;  // quotes inside, right before the end
    } else if (c == '.') {
      if (++dots > kMostDots) return {fmt::format("a key of more than {} parts", kMostDots), line};
    } else if (std::string_view("=,\n[]{}").find(c) != std::string_view::npos) {
      dots = 0;
      line += c == '\n';
    }
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
  if (const auto [problem, line] = bounds_problem(text); !problem.empty())
    fail_user("{}:{}: {}", file_name, line, problem);
  try {
    flatten(toml::parse(text), "", settings);
  } catch (const toml::parse_error& error) {
    fail_user("{}:{}: not valid TOML: {}", file_name, error.source().begin.line, error.description());
  }
  std::ranges::stable_sort(settings, {}, &Setting::line);
  return settings;
}

std::optional<Value> read_toml_value(std::string_view text) {
  if (!bounds_problem(text).first.empty()) return std::nullopt;
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
