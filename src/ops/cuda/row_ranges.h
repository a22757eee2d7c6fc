// The rows of each of kRowGroups groups, where rows are summed on a card.
#pragma once

#include <cstdint>

#include "ops/add_norm.h"

namespace redline::ops::cuda {

struct RowRange {
  std::int64_t begin, end;
};

// Groups take rows `at_once` at a time. All have the same number of rounds, except the last ones. If a few groups had
// one round more, the card would wait for it: 3% of the time where there are 31.
constexpr RowRange rows_of_group(std::int64_t group, std::int64_t rows, std::int64_t at_once) {
  const std::int64_t rounds = (rows + at_once - 1) / at_once, each = (rounds + kRowGroups - 1) / kRowGroups;
  const std::int64_t begin = group * each * at_once, end = begin + each * at_once;
  return {begin < rows ? begin : rows, end < rows ? end : rows};
}

}  // namespace redline::ops::cuda
