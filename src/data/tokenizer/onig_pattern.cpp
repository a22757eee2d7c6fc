// Translates split patterns from Oniguruma to PCRE2: a walk over the pattern that copies what both engines read alike,
// spells out what they read differently, and refuses the rest.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizer/split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "data/tokenizer/unicode.h"
#include "data/utf8.h"
#include "io/json.h"

namespace redline::data {
namespace {

// PCRE2 knows the Unicode version it was built with. Where it is older than the one that tokenizer.json means, the code
// points it takes for unassigned are added by number.

struct ClassText {
  std::string text;
  bool exact_negation = true;  // false: [^...] around it is right, but \P{...} inside a larger class is not
};

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

// \s
ClassText spaces() {
  return {
      "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"};
}

// \S
ClassText not_spaces() {
  return {
      "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"
      "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"};
}

// A general category or script by its name, case and "_" ignored; empty text where it is not known.
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

// \w, which Oniguruma takes for less inside [...].
ClassText word_characters(bool in_class) {
  std::string text;
  for (const char* name : {"L", "M", "Nd", "Nl", "Pc"}) text += property(name).text;
  // Letters in circles and squares, which are alphabetic too.
  text += "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";
  if (!in_class) text += "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";  // the other numbers of Latin-1
  return {text, false};
}

// Lu, Ll, Lt: they mean something else under (?i).
bool depends_on_case(std::string_view name) {
  const std::string_view category = category_of(name);
  return category == "Lu" || category == "Ll" || category == "Lt";
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(std::uint32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::string literal(std::uint32_t c) {
  return is_letter(c) || (c >= '0' && c <= '9') ? std::string(1, static_cast<char>(c)) : fmt::format("\\x{{{:x}}}", c);
}

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : in_(pattern), where_(where) {}

  std::string run() {
    alternatives(false, 0);
    if (at_ < in_.size()) refuse("a \")\" without its \"(\"");
    return std::move(out_);
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  static constexpr int kDeepest = 100;

  [[noreturn]] void refuse(const std::string& what) const {
    fail_user("{}: the split pattern {} has {}, which redline does not support", where_, io::in_quotes(in_), what);
  }
  bool next_is(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  bool take(std::string_view text) {
    if (!next_is(text)) return false;
    at_ += text.size();
    return true;
  }

  // Up to the end of a group, or of the pattern.
  void alternatives(bool caseless, int depth) {
    if (depth > kDeepest) refuse("groups nested too deep");
    std::size_t atom = kNone;  // where in out_ begins what a quantifier would repeat
    std::uint32_t previous = 0;
    bool first = true;
    while (at_ < in_.size() && in_[at_] != ')') {
      const char c = in_[at_];
      const bool beginning = std::exchange(first, false);
      const std::uint32_t before = std::exchange(previous, 0);
      const std::size_t start = out_.size();
      if (c == '|') {
        ++at_;
        out_ += '|';
        atom = kNone;
      } else if (c == '(') {
        if (take("(?i)")) {
          if (!beginning) refuse("\"(?i)\" that is not at the beginning");
          out_ += "(?i)";
          caseless = first = true;
        } else {
          atom = group(caseless, depth) ? start : kNone;
        }
      } else if (c == '[') {
        char_class(caseless);
        atom = start;
      } else if (c == '*' || c == '+' || c == '?' || c == '{') {
        if (c == '{' && !interval()) {
          ++at_;
          out_ += literal('{');
          atom = start;
          continue;
        }
        if (atom == kNone) refuse(fmt::format("\"{}\" with nothing to repeat", c));
        quantifier(atom);
        atom = kNone;
      } else if (c == '.') {
        ++at_;
        out_ += "[^\\x{a}]";
        atom = start;
      } else if (c == '^' || c == '$') {
        ++at_;
        out_ += c;
        atom = kNone;
      } else if (c == '\\') {
        atom = escape(caseless, before, previous) ? start : kNone;
      } else {
        const CodePoint point = decode_utf8(in_.data() + at_);
        at_ += point.size;
        add_literal(point.value, caseless, before);
        previous = point.value;
        atom = start;
      }
    }
  }

  // False for what cannot be repeated: lookaround.
  bool group(bool caseless, int depth) {
    bool repeats = true;
    const std::size_t start = at_;
    if (take("(?:") || take("(?i:") || take("(?-i:") || take("(?>")) {
      const std::string_view opening = in_.substr(start, at_ - start);
      if (opening == "(?i:") caseless = true;
      if (opening == "(?-i:") caseless = false;
      out_ += opening;
    } else if (take("(?=") || take("(?!") || take("(?<=") || take("(?<!")) {
      out_ += in_.substr(start, at_ - start);
      repeats = false;
    } else if (next_is("(?") || next_is("(*")) {
      refuse(fmt::format("the group {}", io::in_quotes(in_.substr(at_, 4))));
    } else {
      ++at_;
      out_ += '(';
    }
    alternatives(caseless, depth + 1);
    if (!take(")")) refuse("a \"(\" without its \")\"");
    out_ += ')';
    return repeats;
  }

  void add_literal(std::uint32_t c, bool caseless, std::uint32_t before) {
    if (caseless) {
      if (c >= 0x80) refuse("a character beyond ASCII under (?i)");
      // Oniguruma folds a ligature into these two letters, PCRE2 does not.
      const auto lower = [](std::uint32_t x) { return static_cast<char>(is_letter(x) ? (x | 0x20) : 0); };
      const std::string pair = {lower(before), lower(c)};
      for (const char* fold : {"ff", "fi", "fl", "ss", "st"})
        if (pair == fold) refuse(fmt::format("\"{}\" under (?i)", pair));
    }
    out_ += literal(c);
  }

  struct Repeat {
    std::string low, high;
    bool exact;
    std::size_t end;
  };
  // {n}, {n,}, {,m} or {n,m} at this place; anything else is a brace as it stands.
  std::optional<Repeat> interval() const {
    std::size_t i = at_ + 1;
    Repeat r{"", "", false, 0};
    while (i < in_.size() && is_digit(in_[i])) r.low += in_[i++];
    if (i < in_.size() && in_[i] == ',') {
      ++i;
      while (i < in_.size() && is_digit(in_[i])) r.high += in_[i++];
    } else {
      r.exact = true;
    }
    if (i >= in_.size() || in_[i] != '}' || (r.low.empty() && (r.exact || r.high.empty()))) return std::nullopt;
    r.end = i + 1;
    return r;
  }

  void quantifier(std::size_t atom) {
    const auto wrap = [&] {
      out_.insert(atom, "(?:");
      out_ += ')';
    };
    if (in_[at_] == '{') {
      const Repeat r = *interval();
      if (r.low.size() > 4 || r.high.size() > 4) refuse("a repeat of more than 9999");
      at_ = r.end;
      out_ += fmt::format("{{{}{}{}}}", r.low.empty() ? "0" : r.low, r.exact ? "" : ",", r.high);
      // After an interval Oniguruma reads "+" as a repeat of the whole, and "{n}?" as optional.
      if (take("+")) {
        wrap();
        out_ += '+';
      } else if (r.exact && take("?")) {
        wrap();
        out_ += '?';
      } else if (take("?")) {
        out_ += '?';
      }
    } else {
      out_ += in_[at_++];
      if (next_is("?") || next_is("+")) out_ += in_[at_++];
    }
    if (at_ < in_.size() && (in_[at_] == '*' || in_[at_] == '+' || in_[at_] == '?' || (in_[at_] == '{' && interval())))
      refuse("a repeat of a repeat");
  }

  // A code point written as an escape, if it is one; at_ stands on the backslash.
  std::optional<std::uint32_t> escaped_character() {
    const char c = in_[at_ + 1];
    constexpr std::pair<char, std::uint32_t> kNamed[] = {{'t', 9},  {'n', 10}, {'v', 11}, {'f', 12},
                                                         {'r', 13}, {'a', 7},  {'e', 27}};
    for (const auto& [name, value] : kNamed) {
      if (c != name) continue;
      at_ += 2;
      return value;
    }
    if (c == 'x' || c == 'u') {
      at_ += 2;
      const bool braces = c == 'x' && take("{");
      const std::size_t most = braces ? 6 : c == 'x' ? 2 : 4;
      std::uint32_t value = 0;
      std::size_t digits = 0;
      for (; at_ < in_.size() && digits < most; ++digits, ++at_) {
        const char h = in_[at_];
        if (is_digit(h))
          value = value * 16 + static_cast<std::uint32_t>(h - '0');
        else if (is_letter(static_cast<unsigned char>(h)) && (h | 0x20) <= 'f')
          value = value * 16 + static_cast<std::uint32_t>((h | 0x20) - 'a' + 10);
        else
          break;
      }
      const bool whole = digits > 0 && (braces ? take("}") : c == 'x' || digits == 4);
      if (!whole || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) refuse("a malformed \\x or \\u");
      if (c == 'x' && !braces && value >= 0x80) refuse("a byte beyond ASCII");
      return value;
    }
    if (static_cast<unsigned char>(c) < 0x80 && !is_letter(static_cast<unsigned char>(c)) && !is_digit(c)) {
      at_ += 2;
      return static_cast<std::uint32_t>(c);
    }
    return std::nullopt;
  }

  struct Set {
    ClassText inside;
    bool negated;
  };
  // \s, \S, \d, \D, \w, \W, \p{...}, \P{...}; at_ stands on the backslash.
  std::optional<Set> escaped_set(bool caseless, bool in_class) {
    const char c = in_[at_ + 1];
    const auto simple = [&](ClassText inside, bool negated) {
      at_ += 2;
      return Set{std::move(inside), negated};
    };
    if (c == 's') return simple(spaces(), false);
    if (c == 'S') return simple(not_spaces(), false);
    if (c == 'd' || c == 'D') return simple(property("Nd"), c == 'D');
    if (c == 'w' || c == 'W') return simple(word_characters(in_class), c == 'W');
    if (c != 'p' && c != 'P') return std::nullopt;
    const std::size_t close = in_.find('}', at_);
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || close == in_.npos) refuse("\\p without {...}");
    std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    bool negated = c == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    ClassText inside = property(name);
    if (inside.text.empty()) refuse(fmt::format("the property {}", io::in_quotes(name)));
    if (caseless && depends_on_case(name)) refuse(fmt::format("\\p{{{}}} under (?i)", name));
    at_ = close + 1;
    return Set{std::move(inside), negated};
  }

  // False for what cannot be repeated: anchors.
  bool escape(bool caseless, std::uint32_t before, std::uint32_t& previous) {
    if (at_ + 1 >= in_.size()) refuse("a \"\\\" at its end");
    if (next_is("\\A") || next_is("\\z")) {
      out_ += in_.substr(at_, 2);
      at_ += 2;
      return false;
    }
    if (const auto set = escaped_set(caseless, false)) {
      out_ += (set->negated ? "[^" : "[") + set->inside.text + "]";
      return true;
    }
    const std::size_t start = at_;
    if (const auto c = escaped_character()) {
      add_literal(*c, caseless, before);
      previous = *c;
      return true;
    }
    refuse(fmt::format("the escape {}", io::in_quotes(in_.substr(start, 2))));
  }

  struct Item {
    std::optional<std::uint32_t> character;  // none: a set
    std::string text;
  };
  Item class_item(bool caseless) {
    if (at_ >= in_.size()) refuse("a \"[\" without its \"]\"");
    if (in_[at_] == '[') refuse("a class within a class");
    if (next_is("&&")) refuse("\"&&\" in a class");
    if (in_[at_] != '\\') {
      const CodePoint point = decode_utf8(in_.data() + at_);
      at_ += point.size;
      return {point.value, ""};
    }
    if (at_ + 1 >= in_.size()) refuse("a \"\\\" at its end");
    if (auto set = escaped_set(caseless, true)) {
      if (!set->negated) return {std::nullopt, set->inside.text};
      if (!set->inside.exact_negation || !set->inside.text.starts_with("\\p")) refuse("a negated set inside a class");
      return {std::nullopt, "\\P" + set->inside.text.substr(2)};
    }
    const std::size_t start = at_;
    if (const auto c = escaped_character()) return {c, ""};
    refuse(fmt::format("the escape {} in a class", io::in_quotes(in_.substr(start, 2))));
  }

  void char_class(bool caseless) {
    ++at_;
    const bool negated = take("^");
    out_ += negated ? "[^" : "[";
    const auto check = [&](std::uint32_t c) {
      if (caseless && (c >= 0x80 || (negated && is_letter(c)))) refuse("such a class under (?i)");
    };
    if (next_is("]")) refuse("an empty class");
    while (!take("]")) {
      const std::size_t start = at_;
      const Item low = class_item(caseless);
      if (!low.character) {
        out_ += low.text;
        if (next_is("-") && !next_is("-]")) refuse("a range that begins with a set");
        continue;
      }
      check(*low.character);
      const bool bare_dash = in_[start] == '-';
      if (bare_dash && !next_is("]") && in_[start - 1] != '[' && !(negated && in_[start - 1] == '^'))
        refuse("a \"-\" in the middle of a class");
      if (!next_is("-") || next_is("-]")) {
        out_ += literal(*low.character);
        continue;
      }
      ++at_;
      const Item high = class_item(caseless);
      if (!high.character || *high.character < *low.character) refuse("a range that does not go up");
      check(*high.character);
      out_ += literal(*low.character) + "-" + literal(*high.character);
      if (next_is("-") && !next_is("-]")) refuse("a range of a range");
    }
    out_ += ']';
  }

  std::string_view in_, where_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern, std::string_view where) { return Translator(pattern, where).run(); }

std::string pcre2_word_character() { return "[" + word_characters(true).text + "\\x{200c}\\x{200d}]"; }

}  // namespace redline::data
