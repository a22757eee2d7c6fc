// The line about work that cannot stop to tell.
#include "report/background_line.h"

#include <gtest/gtest.h>

#include <atomic>

namespace redline::report {
namespace {

struct Shown {
  int asked;
  std::string text;
};

// What is on a terminal after work that lasts until the words were asked for three times, or a moment where nobody
// asks.
Shown shown(const std::string& words, double quiet) {
  std::FILE* file = std::tmpfile();
  std::atomic<int> asked = 0;
  {
    LiveLine line(file, true);
    const BackgroundLine background(
        line,
        [&](double seconds) {
          EXPECT_GE(seconds, quiet);
          ++asked;
          return words;
        },
        quiet);
    for (int i = 0; i < (quiet > 0 ? 20 : 5000) && asked < 3; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  std::rewind(file);
  std::string text(1000, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return {asked, text};
}

TEST(BackgroundLine, ShowsAgainAndAgainAndIsGoneAtTheEnd) {
  const Shown s = shown("working", 0);
  EXPECT_GE(s.asked, 3);
  EXPECT_TRUE(s.text.starts_with("\rworking\x1b[K\rworking\x1b[K")) << s.text;
  EXPECT_TRUE(s.text.ends_with("\r\x1b[K")) << s.text;
}

TEST(BackgroundLine, WhatHasNothingToSayOrIsOverInAMomentShowsNothing) {
  EXPECT_EQ(shown("", 0).text, "");
  const Shown quick = shown("working", 60);  // and its end does not wait for that
  EXPECT_EQ(quick.asked, 0);
  EXPECT_EQ(quick.text, "");
}

}  // namespace
}  // namespace redline::report
