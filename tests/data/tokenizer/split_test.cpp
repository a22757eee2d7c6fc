// Split patterns: our code for the known families finds Oniguruma's pieces, Oniguruma sees the characters that
// tokenizer.json means, and a pattern that does not compile or may give other pieces is refused by name.
#include <gtest/gtest.h>

#include <chrono>

#include "base/error.h"
#include "base/random.h"
#include "data/tokenizer/char_class.h"
#include "data/tokenizer/splitter.h"
#include "data/utf8.h"

namespace redline::data {
namespace {

std::vector<std::string> pieces(const SplitPattern& pattern, std::string_view text) {
  const auto splitter = pattern.splitter();
  std::vector<std::string> result;
  for (std::size_t at = 0; at < text.size();) {
    const Match match = splitter->next(text, at);
    if (match.begin > at) result.push_back("gap:" + std::string(text.substr(at, match.begin - at)));
    if (match.end > match.begin) result.emplace_back(text.substr(match.begin, match.end - match.begin));
    at = match.end;
  }
  return result;
}

// Characters where patterns take turns: quotes, letters of contractions, every kind of space, digits, marks.
std::string random_text(std::uint64_t seed) {
  static const std::vector<std::uint32_t> kCharacters = {
      '\'',   '\'',   ' ',    ' ',    ' ',   '\n',   '\r',   '\t',    0x0b,   0x85,    0xa0,    0x1680, 0x180e,
      0x2003, 0x200b, 0x2028, 0x3000, 's',   'S',    't',    'T',     'r',    'R',     'e',     'E',    'v',
      'm',    'l',    'L',    'd',    0x17f, 0x212a, 'x',    'a',     '1',    '2',     '9',     0x663,  0xbd,
      0x2167, '.',    '-',    '<',    0x301, 0xe9,   0x4e16, 0x1f642, 0xe000, 0x31400, 0x11f50, 0};
  const Random random(seed, 1);
  std::string text;
  const std::uint64_t length = random.below(0, 40);
  const std::uint64_t pool = 4 + random.below(1, kCharacters.size() - 4);  // often few kinds, so that they form runs
  for (std::uint64_t i = 0; i < length; ++i) {
    const std::uint64_t index = (random.below(10 + i, pool) * 7 + seed) % kCharacters.size();
    append_utf8(kCharacters[index], text);
  }
  return text;
}

TEST(SplitTest, OurCodeForTheFamiliesFindsWhatOnigurumaFinds) {
  for (const std::string_view pattern : {kGpt2Pattern, kLlama3Pattern, kQwenPattern}) {
    const auto ours = family_split(pattern);
    ASSERT_TRUE(ours);
    const auto theirs = compile_onig_split(pattern, "test");
    for (std::uint64_t seed = 0; seed < 20'000; ++seed) {
      const std::string text = random_text(seed);
      ASSERT_EQ(pieces(*ours, text), pieces(*theirs, text)) << pattern << "\nseed " << seed << ": " << text;
    }
  }
}

TEST(SplitTest, BothSeeTheSameKindOfEveryCodePoint) {
  for (const std::string_view pattern : {kGpt2Pattern, kLlama3Pattern}) {
    const auto ours = family_split(pattern);
    const auto theirs = compile_onig_split(pattern, "test");
    std::string text;
    for (std::uint32_t c = 0; c < 0x110000; ++c) {
      if (c >= 0xd800 && c < 0xe000) continue;
      text += 'a';
      append_utf8(c, text);
      if (c % 4096 != 4095) continue;
      ASSERT_EQ(pieces(*ours, text), pieces(*theirs, text)) << pattern << " up to code point " << c;
      text.clear();
    }
  }
}

TEST(SplitTest, AnotherPatternIsNotTakenForAFamily) {
  EXPECT_FALSE(family_split(std::string(kGpt2Pattern) + "|x"));
  EXPECT_FALSE(family_split("\\s+"));
}

TEST(SplitTest, ConstructsMeanWhatOnigurumaMeans) {
  const auto split = [](std::string_view pattern, std::string_view text) {
    return pieces(*compile_split(pattern, "test"), text);
  };
  using P = std::vector<std::string>;
  EXPECT_EQ(split("a{2}+", "aaaaa"), (P{"aaaa", "gap:a"}));  // (?:a{2})+, not possessive
  EXPECT_EQ(split("a{,2}b", "aaab"), (P{"gap:a", "aab"}));
  EXPECT_EQ(split("a{x", "a{x"), (P{"a{x"}));
  EXPECT_EQ(split("^b", "b\nb"), (P{"b", "gap:\n", "b"}));  // ^ and $ are of lines
  EXPECT_EQ(split("b$", "b\nb"), (P{"b", "gap:\n", "b"}));
  EXPECT_EQ(split(".+", "ab\nc\r"), (P{"ab", "gap:\n", "c\r"}));
  EXPECT_EQ(split("\\v", "\x0b\n"), (P{"\x0b", "gap:\n"}));
  EXPECT_EQ(split("[^\\S\\n]+", " \t\n "), (P{" \t", "gap:\n", " "}));
  EXPECT_EQ(split("\\s+", "a\u180e\u0085b"), (P{"gap:a\u180e", "\u0085", "gap:b"}));
  EXPECT_EQ(split("(?i)k", "K\u212a"), (P{"K", "\u212a"}));
  EXPECT_EQ(split("\\p{Han}+", "世\U000323af々。"), (P{"世\U000323af々", "gap:。"}));
  EXPECT_EQ(split("\\w+", "a½ⓐ-"), (P{"a½ⓐ", "gap:-"}));
  EXPECT_EQ(split("[\\w]+", "a½ⓐ-"), (P{"a", "gap:½", "ⓐ", "gap:-"}));  // other than outside a class
  EXPECT_EQ(split("[a\\-z]", "a-m"), (P{"a", "-", "gap:m"}));
  EXPECT_EQ(split("\\h+", "fF g"), (P{"fF", "gap: g"}));  // hexadecimal digits
  EXPECT_EQ(split("\\bb", "b ab b"), (P{"b", "gap: ab ", "b"}));
  EXPECT_EQ(split("(a|b)\\1", "abb"), (P{"gap:a", "bb"}));
  EXPECT_EQ(split("(?<name>a)b", "aab"), (P{"gap:a", "ab"}));
  EXPECT_EQ(split("(?m)a.", "a\n"), (P{"a\n"}));
  EXPECT_EQ(split("[a-z&&[^b]]+", "abc"), (P{"a", "gap:b", "c"}));
  EXPECT_EQ(split("[^(\\s|[.,])]+", "a b.c"), (P{"a", "gap: ", "b", "gap:.", "c"}));  // BLOOM's, shortened
  EXPECT_EQ(split("(?i:ss)", "ßSS"), (P{"ß", "SS"}));
  EXPECT_EQ(split("(?i:é)", "É"), (P{"É"}));
  EXPECT_EQ(split("(?i)\\p{Lu}", "a"), (P{"gap:a"}));
  EXPECT_EQ(split("(?:a**)b", "aab"), (P{"aab"}));
  EXPECT_EQ(split("[]a]+", "a]b"), (P{"a]", "gap:b"}));
}

std::string error_of(std::string_view pattern) {
  try {
    compile_split(pattern, "some.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(SplitTest, WhatIsRefusedIsNamed) {
  const auto names = [](std::string_view pattern, std::string_view what) {
    const std::string error = error_of(pattern);
    EXPECT_TRUE(error.starts_with("some.json: ")) << error;
    EXPECT_NE(error.find(what), error.npos) << pattern << ": " << error;
  };
  names("\\p{Klingon}", "{Klingon}");
  names("\\p{Greek}", "{Greek}");  // libonig has it, but maybe of another Unicode version than the library's
  names("[[:alpha:]]", "POSIX bracket");
  names("[[:^punct:]]", "POSIX bracket");
  names("*a", "target of repeat operator is not specified");
  names("(a", "unmatched parenthesis");
  names("a)", "unmatched close parenthesis");
  names("a\\", "end pattern at escape");
  names("[]", "empty char-class");
  names("[z-a]", "empty range in char class");
  names("(a)\\2", "invalid backref number");
  names("\\xc3", "too short multibyte");  // half a character
  names("a*", "can match nothing");
  names("^", "can match nothing");
  names(std::string(20'000, 'a'), "20000 bytes");
  names(std::string(500, '(') + "a" + std::string(500, ')'), "parse depth limit");
}

// Oniguruma compiles these, and only a text tells what they match.
TEST(SplitTest, AMatchThatIsNoPieceEndsWithAnError) {
  for (const char* pattern : {"(?=a)", "a\\K", "(?=a)|b", "(?<=\\Kc)a"}) {
    const auto split = compile_split(pattern, "some.json");
    EXPECT_EQ(pieces(*split, "c"), (std::vector<std::string>{"gap:c"})) << pattern;
    EXPECT_THROW(split->splitter()->next("ca", 1), UserError) << pattern;
  }
}

// Assigned after Unicode 14, the version of Debian 12's libonig.
TEST(SplitTest, NewerCodePointsAreInTheirCategories) {
  const auto matches = [](std::string_view pattern, std::string_view text) {
    return pieces(*compile_split(pattern, "test"), text) == std::vector<std::string>{std::string(text)};
  };
  const std::string_view letter = "\U00031400", digit = "\U00011f50", sign = "\U0001cc00", mark = "\u0897";
  for (const char* pattern :
       {"\\p{L}", "\\p{Letter}", "\\p{Lo}", "\\p{Other_Letter}", "\\w", "[\\w]", "\\p{Han}", "\\P{C}", "a?\\b."})
    EXPECT_TRUE(matches(pattern, letter)) << pattern;
  for (const char* pattern : {"\\p{Nd}", "\\d", "[[:digit:]]", "\\w", "[^\\p{Cn}]"})
    EXPECT_TRUE(matches(pattern, digit)) << pattern;
  for (const char* pattern : {"\\p{S}", "\\p{So}", "\\W"}) EXPECT_TRUE(matches(pattern, sign)) << pattern;
  for (const char* pattern : {"\\p{M}", "\\p{Mn}", "\\p{Arabic}"}) EXPECT_TRUE(matches(pattern, mark)) << pattern;
  for (const char* pattern : {"\\p{C}", "\\p{Cn}", "\\p{Lu}", "\\p{LC}", "\\W", "\\P{L}"})
    EXPECT_FALSE(matches(pattern, letter)) << pattern;
  EXPECT_TRUE(matches("\\p{LC}", "\u1c89"));
  EXPECT_TRUE(matches("\\p{C}", "\U00013439"));  // a newer Cf
}

TEST(SplitTest, ARunawayPatternEndsWithAnError) {
  const auto pattern = compile_split("(?:a+)+b|(?:a|aa)+c|x", "some.json");
  const std::string text(5000, 'a');
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(pattern->splitter()->next(text, 0), UserError);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(SplitTest, LongRunsTakeLinearTime) {
  const auto start = std::chrono::steady_clock::now();
  for (const std::string_view pattern : {kGpt2Pattern, kLlama3Pattern}) {
    for (const bool own : {true, false}) {
      const auto split = own ? family_split(pattern) : compile_onig_split(pattern, "test");
      for (const std::string& unit :
           {std::string("a"), std::string(" "), std::string("\n"), std::string("é"), std::string("!")}) {
        std::string text;
        while (text.size() < 1'000'000) text += unit;
        EXPECT_EQ(pieces(*split, text).size(), 1u) << pattern << " " << own;
        EXPECT_LE(pieces(*split, text + "x").size(), 3u) << pattern << " " << own;
      }
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

}  // namespace
}  // namespace redline::data
