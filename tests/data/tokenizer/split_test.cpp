// Split patterns: our code for the known families finds PCRE2's pieces, PCRE2 sees the characters that tokenizer.json
// means, and a pattern that cannot be said to PCRE2 is refused by name.
#include "data/tokenizer/split.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/error.h"
#include "base/random.h"
#include "data/tokenizer/unicode.h"
#include "data/utf8.h"
#include "testing/says.h"

namespace redline::data {
namespace {

using redline::testing::says;

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

TEST(SplitTest, OurCodeForTheFamiliesFindsWhatPcre2Finds) {
  for (const std::string_view pattern : {kGpt2Pattern, kLlama3Pattern, kQwenPattern}) {
    const auto ours = family_split(pattern);
    ASSERT_TRUE(ours);
    const auto theirs = compile_pcre2_split(pattern, "test");
    for (std::uint64_t seed = 0; seed < 20'000; ++seed) {
      const std::string text = random_text(seed);
      ASSERT_EQ(pieces(*ours, text), pieces(*theirs, text)) << pattern << "\nseed " << seed << ": " << text;
    }
  }
}

TEST(SplitTest, BothSeeTheSameKindOfEveryCodePoint) {
  for (const std::string_view pattern : {kGpt2Pattern, kLlama3Pattern}) {
    const auto ours = family_split(pattern);
    const auto theirs = compile_pcre2_split(pattern, "test");
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
}

std::string error_of(std::string_view pattern) {
  return testing::error_of([&] { compile_split(pattern, "some.json"); });
}

TEST(SplitTest, WhatIsNotSupportedIsNamed) {
  const auto names = [](std::string_view pattern, std::string_view what) {
    const std::string error = error_of(pattern);
    EXPECT_TRUE(error.starts_with("some.json: ")) << error;
    EXPECT_TRUE(says(error, {what})) << pattern << ": " << error;
  };
  names("\\h", "\\h");
  names("\\bword", "\\b");
  names("(a)\\1", "\\1");
  names("(?<name>a)", "(?<n");
  names("(?m)a", "(?m)");
  names("[[:alpha:]]", "a class within a class");
  names("[a-z&&[^b]]", "&&");
  names("\\p{Klingon}", "Klingon");
  names("(?i)\\p{Lu}", "under (?i)");
  names("(?i:ss)", "\"ss\" under (?i)");
  names("(?i:é)", "under (?i)");
  names("a**", "a repeat of a repeat");
  names("*a", "nothing to repeat");
  names("(a", "without its");
  names("a)", "without its");
  names("a\\", "at its end");
  names("[]a]", "an empty class");
  names("[z-a]", "does not go up");
  names("a*", "can match nothing");
  names("(?=a)", "can match nothing");
  names("\\xff", "a byte beyond ASCII");
  names(std::string(20'000, 'a'), "20000 bytes");
  names(std::string(500, '(') + "a" + std::string(500, ')'), "nested too deep");
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
      const auto split = own ? family_split(pattern) : compile_pcre2_split(pattern, "test");
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
