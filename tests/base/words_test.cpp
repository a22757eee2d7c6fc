// Counts with their nouns; what reaches a terminal: text as it is, and nothing that steers it.
#include "base/words.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace redline {
namespace {

using namespace std::string_view_literals;

TEST(Counted, OneIsOneAndTheOthersAreMany) {
  EXPECT_EQ(counted(1, "file"), "1 file");
  EXPECT_EQ(counted(0, "file"), "0 files");
  EXPECT_EQ(counted(std::size_t{2}, "file"), "2 files");
  EXPECT_EQ(counted(std::int64_t{-1}, "step"), "-1 steps");
  EXPECT_EQ(counted(11, "training step"), "11 training steps");
}

TEST(Counted, NounsThatHissTakeOneLetterMore) {
  EXPECT_EQ(counted(1, "batch"), "1 batch");
  EXPECT_EQ(counted(3, "batch"), "3 batches");
  EXPECT_EQ(counted(2, "pass"), "2 passes");
}

TEST(Counted, TheNounAloneForCountsWrittenInAnotherWay) {
  EXPECT_EQ(noun_for(1.0, "token"), "token");
  EXPECT_EQ(noun_for(1.5, "token"), "tokens");
}

TEST(Visible, TextStays) {
  for (const std::string_view text : {""sv, "plain\ttext\n"sv, "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"sv})
    EXPECT_EQ(visible(text), text);
}

TEST(Visible, WhatSteersATerminalIsShown) {
  EXPECT_EQ(visible("\x1b]0;title\x07\x1b[2J"), "\\x1b]0;title\\x07\\x1b[2J");
  EXPECT_EQ(visible("a\rb\0c\x7f"sv), "a\\x0db\\x00c\\x7f");
  EXPECT_EQ(visible("\xc2\x9b"
                    "31m"),
            "\\u009b31m")
      << "CSI in one character";
  EXPECT_EQ(visible("\x9b"
                    "31m"),
            "\\x9b31m")
      << "and in one byte";
  EXPECT_EQ(visible("a\xe2\x80\xae"
                    "b"),
            "a\\u202eb");
}

TEST(Visible, BrokenUtf8IsShownByteByByte) {
  EXPECT_EQ(visible("\xff"), "\\xff");
  EXPECT_EQ(visible("\xc3"), "\\xc3");
  EXPECT_EQ(visible("\xc3(\xe2\x82"), "\\xc3(\\xe2\\x82");
  EXPECT_EQ(visible("\xc0\x9b"), "\\xc0\\x9b") << "a longer form than need be";
  EXPECT_EQ(visible("\xe0\x82\x9b"), "\\xe0\\x82\\x9b");
  EXPECT_EQ(visible("\xed\xa0\x80"), "\\xed\\xa0\\x80");
}

}  // namespace
}  // namespace redline
