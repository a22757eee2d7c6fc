// The lines of work that takes a while.
#include "report/live_line.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>

#include "report/small_run.h"

namespace redline::report {
namespace {

struct Shown {
  int asked;
  std::string text;
};

// What is on a terminal after work that lasts until the words were asked for three times, or a moment where they
// are not asked for.
Shown shown(const std::string& words, double quiet) {
  const Captured out;
  std::atomic<int> asked = 0;
  {
    LiveLine line(out.stream(), true);
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
  return {asked, out.text()};
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

TEST(BytesProgress, SaysHowMuchOfWhatAndWhatIsLeft) {
  const auto text = [](std::uint64_t done, double seconds) {
    return BytesProgress::text("loading weights", done, std::uint64_t{4} << 30, seconds);
  };
  EXPECT_EQ(text(std::uint64_t{1} << 30, 10), "loading weights: 25.0% of 4.00 GiB, 30 s left");
  EXPECT_EQ(text(std::uint64_t{1} << 30, 0.5), "loading weights: 25.0% of 4.00 GiB");
  EXPECT_EQ(text(0, 10), "loading weights: 0.0% of 4.00 GiB");
  EXPECT_EQ(BytesProgress::text("loading weights", 0, 0, 0), "loading weights: 100.0% of 0 B");
}

TEST(BytesProgress, WhatIsOverInAMomentShowsNothing) {
  for (const bool quick : {true, false}) {
    const Captured out;
    {
      LiveLine line(out.stream(), true);
      BytesProgress progress("loading weights", quick ? kQuietSeconds : 0);
      progress.show(line, 1, 2);
      progress.show(line, 2, 2);
    }
    EXPECT_EQ(out.text().empty(), quick);
  }
}

}  // namespace

}  // namespace redline::report
