// What reaches a terminal: text as it is, and nothing that steers it.
#include "base/visible.h"

#include <gtest/gtest.h>

namespace redline {
namespace {

using namespace std::string_view_literals;

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
