// Needs no card.
#include <gtest/gtest.h>

#include "ops/add_norm.h"

namespace redline::ops::cuda {
namespace {

TEST(RowsOfGroup, EveryRowIsInOneGroupAndNoneHasARoundMoreThanTheFirst) {
  for (const std::int64_t rows : {1, 2, 263, 264, 265, 529, 16384, 65536, 131072}) {
    for (const std::int64_t at_once : {1, 2, 6, 7}) {
      std::int64_t next = 0;
      const RowRange first = rows_of_group(0, rows, at_once);
      for (std::int64_t group = 0; group < kRowGroups; ++group) {
        const RowRange range = rows_of_group(group, rows, at_once);
        EXPECT_EQ(range.begin, next) << rows << " rows, group " << group;
        EXPECT_LE(range.end - range.begin, first.end - first.begin);
        next = range.end;
      }
      EXPECT_EQ(next, rows) << at_once << " at once";
    }
  }
}

}  // namespace
}  // namespace redline::ops::cuda
