// The line of weights on their way.
#include "report/bytes_progress.h"

#include <gtest/gtest.h>

#include <array>

namespace redline::report {
namespace {

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
    std::FILE* file = std::tmpfile();
    ASSERT_TRUE(file);
    {
      LiveLine line(file, true);
      BytesProgress progress("loading weights", quick ? BytesProgress::kQuiet : 0);
      progress.show(line, 1, 2);
      progress.show(line, 2, 2);
    }
    std::rewind(file);
    std::array<char, 100> text{};
    EXPECT_EQ(std::fread(text.data(), 1, text.size(), file) == 0, quick);
    std::fclose(file);
  }
}

}  // namespace
}  // namespace redline::report
