// PCRE2 knows the Unicode version it was built with. Where it is older than the one that tokenizer.json means, the code
// points it takes for unassigned are added by number.
#include "data/tokenizer/onig_properties.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "data/tokenizer/unicode_tables.h"
#include "data/utf8.h"

namespace redline::data {
namespace {

std::string range_text(std::uint32_t low, std::uint32_t high) {
  return low == high ? fmt::format("\\x{{{:x}}}", low) : fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", low, high);
}

struct Code {
  explicit Code(const char* pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &offset,
                             nullptr));
    if (code) data.reset(pcre2_match_data_create_from_pattern(code.get(), nullptr));
  }
  bool matches(std::uint32_t code_point) const {
    std::string text;
    append_utf8(code_point, text);
    return pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, data.get(), nullptr) >
           0;
  }
  std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code{nullptr, pcre2_code_free};
  std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data{nullptr, pcre2_match_data_free};
};

// The part of newer_code_points() that this PCRE2 does not know: about 10 thousand questions, 1 ms, once.
const std::vector<NewerCodePoints>& unknown_to_pcre2() {
  static const std::vector<NewerCodePoints> unknown = [] {
    const Code unassigned("\\p{Cn}");
    REDLINE_CHECK(unassigned.code && unassigned.data, "PCRE2 was built without Unicode");
    std::vector<NewerCodePoints> found;
    for (const NewerCodePoints& r : newer_code_points()) {
      for (std::uint32_t c = r.low; c <= r.high; ++c) {
        if (!unassigned.matches(c)) continue;
        if (!found.empty() && found.back().high == c - 1 && std::string_view(found.back().category) == r.category) {
          found.back().high = c;
        } else {
          found.push_back(r);
          found.back().low = found.back().high = c;
        }
      }
    }
    return found;
  }();
  return unknown;
}

// `\p{Greek}` is the script extensions from PCRE2 10.40 on, `\p{sc:Greek}` the script; before, the other way of writing
// was not there.
bool scripts_are_named() {
  static const bool named = Code("\\p{sc:Han}").code != nullptr;
  return named;
}

struct Script {
  std::string_view name;
  std::array<CodePoints, 4> newer;  // after Unicode 14; {0, 0}: none
};
constexpr Script kScripts[] = {
    {"Han", {{{0x2b739, 0x2b739}, {0x2ebf0, 0x2ee5d}, {0x31350, 0x323af}}}},
    {"Hiragana", {{{0x1b132, 0x1b132}}}},
    {"Katakana", {{{0x1b155, 0x1b155}}}},
    {"Hangul", {}},
    {"Latin", {{{0xa7cb, 0xa7cd}, {0xa7da, 0xa7dc}, {0x1df25, 0x1df2a}}}},
    {"Cyrillic", {{{0x1c89, 0x1c8a}, {0x1e030, 0x1e06d}, {0x1e08f, 0x1e08f}}}},
    {"Arabic", {{{0x897, 0x897}, {0x10ec2, 0x10ec4}, {0x10efc, 0x10eff}}}},
    {"Thai", {}},
};

constexpr std::string_view kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",
                                            "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
                                            "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc"};
constexpr std::pair<std::string_view, std::string_view> kLongNames[] = {
    {"letter", "L"},           {"mark", "M"},
    {"number", "N"},           {"punctuation", "P"},
    {"symbol", "S"},           {"separator", "Z"},
    {"uppercaseletter", "Lu"}, {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"}, {"modifierletter", "Lm"},
    {"otherletter", "Lo"},     {"decimalnumber", "Nd"}};

std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name)
    if (c != '_' && c != ' ' && c != '-') plain += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return plain;
}

// The category's own spelling, or empty.
std::string_view category_of(std::string_view name) {
  const std::string plain = plain_name(name);
  for (const std::string_view category : kCategories)
    if (plain_name(category) == plain) return category;
  for (const auto& [long_name, category] : kLongNames)
    if (long_name == plain) return category;
  return {};
}

}  // namespace

ClassText spaces() {
  return {
      "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"};
}

ClassText not_spaces() {
  return {
      "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"
      "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"};
}

ClassText word_characters(bool in_class) {
  std::string text;
  for (const char* name : {"L", "M", "Nd", "Nl", "Pc"}) text += property(name).text;
  // Letters in circles and squares, which are alphabetic too.
  text += "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";
  if (!in_class) text += "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";  // the other numbers of Latin-1
  return {text, false};
}

ClassText property(std::string_view name) {
  if (const std::string_view category = category_of(name); !category.empty()) {
    ClassText result{fmt::format("\\p{{{}}}", category), true};
    for (const NewerCodePoints& r : unknown_to_pcre2()) {
      if (!std::string_view(r.category).starts_with(category)) continue;
      result.text += range_text(r.low, r.high);
      result.exact_negation = false;
    }
    return result;
  }
  for (const Script& script : kScripts) {
    if (plain_name(script.name) != plain_name(name)) continue;
    ClassText result{fmt::format("\\p{{{}{}}}", scripts_are_named() ? "sc:" : "", script.name), true};
    for (const CodePoints& r : script.newer) {
      if (r.high == 0) continue;
      result.text += range_text(r.low, r.high);
      result.exact_negation = false;
    }
    return result;
  }
  return {};
}

bool depends_on_case(std::string_view name) {
  const std::string_view category = category_of(name);
  return category == "Lu" || category == "Ll" || category == "Lt";
}

}  // namespace redline::data
