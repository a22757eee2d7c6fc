// Operations on keys of the table, whatever their types: check and store a value, write it as TOML, and describe it in
// the resolved dump, in --help and in docs/config.md.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/overloaded.h"
#include "config/keys.h"
#include "config/load.h"
#include "config/toml.h"

namespace redline::config {
namespace {

// Shortest form that reads back the same, and that TOML takes for a float.
std::string float_literal(double x) {
  std::string text = fmt::format("{}", x);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string string_literal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (const auto byte = static_cast<unsigned char>(c); byte < 0x20 || byte == 0x7F) {
          out += fmt::format("\\u{:04X}", byte);
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

// "[a, b]", each element written by `one`.
template <class T, class One>
std::string list_literal(const std::vector<T>& list, const One& one) {
  std::string out = "[";
  for (const T& x : list) out += (out.size() > 1 ? ", " : "") + one(x);
  return out + "]";
}

bool contains(const Range& r, double x) {
  return std::isfinite(x) && (r.low_open ? x > r.low : x >= r.low) && (r.high_open ? x < r.high : x <= r.high);
}

bool allowed(const Key& key, std::string_view choice) {
  return key.choices.empty() || std::ranges::find(key.choices, choice) != key.choices.end();
}

std::string number_text(double x) {
  return std::abs(x) < 1e15 && x == std::floor(x) ? fmt::format("{:.0f}", x) : fmt::format("{}", x);
}

std::string range_text(const Range& r) {
  if (std::isfinite(r.low) && std::isfinite(r.high)) {
    return fmt::format(" in {}{}, {}{}", r.low_open ? '(' : '[', number_text(r.low), number_text(r.high),
                       r.high_open ? ')' : ']');
  }
  if (std::isfinite(r.low)) return fmt::format(" {} {}", r.low_open ? ">" : ">=", number_text(r.low));
  return "";
}

std::string describe(const Value& value) {
  if (std::holds_alternative<std::monostate>(value)) return "a value of another kind";
  if (std::holds_alternative<std::vector<std::string>>(value)) return "a list";
  return (std::holds_alternative<std::string>(value) ? "the string " : "") + literal(value);
}

std::optional<double> as_number(const Value& value) {
  if (const auto* i = std::get_if<std::int64_t>(&value)) return static_cast<double>(*i);
  if (const auto* d = std::get_if<double>(&value)) return *d;
  return std::nullopt;
}

constexpr std::int64_t kLargestInteger = std::int64_t{1} << 53;  // beyond it a double no longer says which one

// The limits of a range without an end.
std::string_view too_large(const Key& key, const Value& value) {
  const std::optional<double> number = as_number(value);
  const bool is = number && std::isfinite(*number) && *number > static_cast<double>(kLargestInteger);
  return is && std::holds_alternative<Field<std::int64_t>>(key.field) && !std::isfinite(key.range.high)
             ? ", which is above 2^53"
             : "";
}

[[noreturn]] void reject(const Key& key, const Value& value, std::string_view place) {
  const std::string what = expected(key);
  const bool list = std::holds_alternative<Field<std::vector<std::string>>>(key.field);
  const char* article = !key.choices.empty() && !list ? "one of " : what[0] == 'i' ? "an " : what[0] == 't' ? "" : "a ";
  fail_user("{}: {} must be {}{}, not {}{}", place, key.name, article, what, describe(value), too_large(key, value));
}

// Whole numbers written as 1e9 are what people type for token counts.
std::optional<std::int64_t> as_integer(const Value& value) {
  if (const auto* i = std::get_if<std::int64_t>(&value))
    return *i >= -kLargestInteger && *i <= kLargestInteger ? std::optional(*i) : std::nullopt;
  const auto* d = std::get_if<double>(&value);
  if (d && std::abs(*d) <= static_cast<double>(kLargestInteger) && *d == std::floor(*d))
    return static_cast<std::int64_t>(*d);
  return std::nullopt;
}

std::string join(const std::vector<std::string_view>& words, std::string_view between) {
  return fmt::format("{}", fmt::join(words, between));
}

}  // namespace

std::string expected(const Key& key) {
  return std::visit(
      overloaded{
          [](const Field<bool>&) -> std::string { return "true | false"; },
          [](const Field<std::optional<bool>>&) -> std::string { return "true | false"; },
          [&](const Field<std::int64_t>&) { return "integer" + range_text(key.range); },
          [&](const AutomaticInteger&) {
            return fmt::format("integer{} or \"{}\"", range_text(key.range), kAutomatic);
          },
          [&](const Field<double>&) { return "number" + range_text(key.range); },
          [&](const Field<std::string>&) {
            return key.choices.empty() ? std::string("string") : join(key.choices, " | ");
          },
          [&](const Field<std::vector<std::string>>&) -> std::string {
            return key.choices.empty() ? "list of strings" : "list of " + join(key.choices, " | ");
          },
          [&](const Field<std::vector<std::int64_t>>&) { return "list of integers" + range_text(key.range); },
          [&](const Field<std::vector<double>>&) { return "list of numbers" + range_text(key.range); },
      },
      key.field);
}

Value read(const Key& key, const Config& config) {
  return std::visit(overloaded{
                        [&](const Field<std::optional<bool>>& f) -> Value {
                          const std::optional<bool>& b = f.read(config);
                          return b ? Value(*b) : Value();
                        },
                        [&](const AutomaticInteger& f) -> Value {
                          return f.automatic.read(config) ? Value(std::string(kAutomatic)) : f.number.read(config);
                        },
                        [&](const auto& f) -> Value { return f.read(config); },
                    },
                    key.field);
}

void assign(const Key& key, const Value& value, std::string_view place, Config& config) {
  const auto boolean = [&]() -> bool {
    if (const auto* b = std::get_if<bool>(&value)) return *b;
    reject(key, value, place);
  };
  const auto integer = [&]() -> std::int64_t {
    const std::optional<std::int64_t> i = as_integer(value);
    if (!i || !contains(key.range, static_cast<double>(*i))) reject(key, value, place);
    return *i;
  };
  const auto numbers = [&]<class Number>(std::vector<Number>& to, const std::optional<Number>& one) {
    std::vector<Number> list;
    if (const auto* several = std::get_if<std::vector<Number>>(&value))
      list = *several;
    else if (const auto* whole = std::get_if<std::vector<std::int64_t>>(&value))
      list.assign(whole->begin(), whole->end());
    else if (one)
      list = {*one};
    else if (const auto* none = std::get_if<std::vector<std::string>>(&value); !none || !none->empty())
      reject(key, value, place);  // [] alone tells no type
    for (const Number x : list)
      if (!contains(key.range, static_cast<double>(x))) reject(key, value, place);
    to = std::move(list);
  };
  std::visit(overloaded{
                 [&](const Field<bool>& f) { f.edit(config) = boolean(); },
                 [&](const Field<std::optional<bool>>& f) { f.edit(config) = boolean(); },
                 [&](const Field<std::int64_t>& f) { f.edit(config) = integer(); },
                 [&](const AutomaticInteger& f) {
                   const auto* s = std::get_if<std::string>(&value);
                   const bool automatic = s && *s == kAutomatic;
                   if (!automatic) f.number.edit(config) = integer();
                   f.automatic.edit(config) = automatic;
                 },
                 [&](const Field<double>& f) {
                   const std::optional<double> d = as_number(value);
                   if (!d || !contains(key.range, *d)) reject(key, value, place);
                   f.edit(config) = *d;
                 },
                 [&](const Field<std::string>& f) {
                   const auto* s = std::get_if<std::string>(&value);
                   if (!s || !allowed(key, *s)) reject(key, value, place);
                   f.edit(config) = *s;
                 },
                 [&](const Field<std::vector<std::string>>& f) {
                   std::vector<std::string> list;
                   if (const auto* s = std::get_if<std::string>(&value)) {
                     list = {*s};
                   } else if (const auto* several = std::get_if<std::vector<std::string>>(&value)) {
                     list = *several;
                   } else {
                     reject(key, value, place);
                   }
                   for (const std::string& s : list)
                     if (!allowed(key, s)) reject(key, s, place);
                   f.edit(config) = std::move(list);
                 },
                 [&](const Field<std::vector<std::int64_t>>& f) { numbers(f.edit(config), as_integer(value)); },
                 [&](const Field<std::vector<double>>& f) { numbers(f.edit(config), as_number(value)); },
             },
             key.field);
}

void assign_old_meanings(Config& config) {
  for (const Key& key : keys()) {
    if (key.before.empty()) continue;
    const std::optional<Value> before = read_toml_value(key.before);
    assign(key, before ? *before : Value(), "its meaning in runs without it", config);
  }
}

std::string literal(const Value& value) {
  return std::visit(
      overloaded{
          [](std::monostate) -> std::string { return "unset"; },
          [](bool b) -> std::string { return b ? "true" : "false"; },
          [](std::int64_t i) { return fmt::format("{}", i); },
          [](double d) { return float_literal(d); },
          [](const std::string& s) { return string_literal(s); },
          [](const std::vector<std::string>& list) { return list_literal(list, string_literal); },
          [](const std::vector<std::int64_t>& list) { return fmt::format("[{}]", fmt::join(list, ", ")); },
          [](const std::vector<double>& list) { return list_literal(list, float_literal); },
      },
      value);
}

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
    if (std::string place = config.origins.prefix({key.name}); place.starts_with(kChosen)) {
      place.resize(place.size() - std::string_view(": ").size());
      out += fmt::format("# {}\n", place);
    }
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
