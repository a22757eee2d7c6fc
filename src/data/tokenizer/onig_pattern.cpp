// A walk over the pattern that copies what both engines read alike, spells out what they read differently, and refuses
// the rest.
#include "data/tokenizer/onig_pattern.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "data/tokenizer/onig_properties.h"
#include "data/utf8.h"
#include "io/json.h"

namespace redline::data {
namespace {

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
