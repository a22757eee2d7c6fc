// Counts with their nouns.
#include "base/counted.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace redline {
namespace {

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

}  // namespace
}  // namespace redline
