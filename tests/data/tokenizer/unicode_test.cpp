// UTF-8 and NFC: what is valid, what stands in for what is not, and normal forms of the Unicode version that
// tokenizer.json means.
#include "data/tokenizer/unicode.h"

#include <gtest/gtest.h>

#include <chrono>

#include "data/tokenizer/bpe.h"
#include "data/utf8.h"

namespace redline::data {
namespace {

TEST(Utf8Test, FindsTheFirstBadByte) {
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("plain text of more than eight bytes"));
  EXPECT_TRUE(is_utf8("é世\U0001f642\U0010ffff\ud7ff\ue000"));
  EXPECT_EQ(valid_utf8("12345678\xff"), 8u);
  EXPECT_EQ(valid_utf8("é\xc3"), 2u);
  EXPECT_EQ(valid_utf8("a\x80"), 1u);
  EXPECT_EQ(valid_utf8("\xc0\x80"), 0u);          // overlong
  EXPECT_EQ(valid_utf8("\xe0\x9f\xbf"), 0u);      // overlong
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), 0u);      // surrogate
  EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80"), 0u);  // beyond U+10FFFF
  EXPECT_EQ(valid_utf8("\xf5\x80\x80\x80"), 0u);
}

TEST(Utf8Test, EachLongestBadPartBecomesOneReplacement) {
  const std::string r = "\ufffd";
  EXPECT_EQ(replace_bad_utf8("good é"), "good é");
  EXPECT_EQ(replace_bad_utf8("a\xe4\xb8z"), "a" + r + "z");
  EXPECT_EQ(replace_bad_utf8("\xf0\x9f\x99"), r);
  EXPECT_EQ(replace_bad_utf8("\xf0\x80\x80\x80"), r + r + r + r);
  EXPECT_EQ(replace_bad_utf8("\xed\xa0\x80"), r + r + r);
  EXPECT_EQ(replace_bad_utf8("\xff\xfe\x41"), r + r + "A");
  EXPECT_EQ(replace_bad_utf8("\xe4\xb8\xe4\xb8\x96"), r + "世");
}

TEST(ByteLevelTest, EveryByteHasItsCharacter) {
  std::string bytes;
  for (int b = 0; b < 256; ++b) bytes += static_cast<char>(b);
  EXPECT_EQ(bytes_of_token(token_of_bytes(bytes)), bytes);
  EXPECT_EQ(token_of_bytes(" a\n"), "ĠaĊ");
  EXPECT_FALSE(bytes_of_token("a▁"));
  EXPECT_FALSE(bytes_of_token("a b"));
}

std::string nfc(std::string_view text) {
  std::string scratch;
  return std::string(to_nfc(text, scratch));
}

TEST(NfcTest, ComposesAndReorders) {
  EXPECT_EQ(nfc("plain é"), "plain é");
  EXPECT_EQ(nfc("cafe\u0301 x"), "café x");
  EXPECT_EQ(nfc("a\u0301\u0323"), "ạ\u0301");
  EXPECT_EQ(nfc("\u0301"), "\u0301");
  EXPECT_EQ(nfc("\u212b \u2126"), "Å Ω");  // singletons
  EXPECT_EQ(nfc("\u1112\u1161\u11ab"), "한");
  EXPECT_EQ(nfc("\uac00\u11a8"), "각");
  EXPECT_EQ(nfc("\u09c7\u09be"), "\u09cb");  // a second half that is no combining mark
  EXPECT_EQ(nfc("\u0958"), "\u0915\u093c");  // composition exclusion
  EXPECT_EQ(nfc("世界e\u0301世"), "世界é世");
}

TEST(NfcTest, WhatIsNewerThanItsTablesStaysAsItIs) {
  // U+1ACC is a mark of Unicode 14, U+11935 U+11930 compose from Unicode 13 on: the library does neither.
  EXPECT_EQ(nfc("a\u1acc\u0334"), "a\u1acc\u0334");
  EXPECT_EQ(nfc("\U00011935\U00011930"), "\U00011935\U00011930");
  EXPECT_EQ(nfc("\u1acc\u0301\u0323"), "\u1acc\u0323\u0301");
}

TEST(NfcTest, ManyMarksTakeNoQuadraticTime) {
  std::string text = "a";
  for (int i = 0; i < 200'000; ++i) text += i % 2 == 0 ? "\u0301" : "\u0323";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(nfc(text).size(), text.size());  // ạ is as long as a and the first U+0323
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

}  // namespace
}  // namespace redline::data
