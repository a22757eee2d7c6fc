// Where a loader stands between two batches.
#pragma once

#include <cstdint>
#include <vector>

#include "data/feed.h"

namespace redline::data {

// All that is needed to go on from a point between two batches. Small: it lives in the checkpoint.
struct LoaderState {
  struct Piece {
    std::int64_t document = 0, begin = 0;  // a document (or what is left of it, from token `begin`) read but not placed
    bool operator==(const Piece&) const = default;
  };
  FeedPlace next;                                          // where the next document is drawn
  std::vector<Piece> waiting;                              // the packer's lookahead, in order
  std::int64_t truncated_tokens = 0, empty_documents = 0;  // dropped and passed over so far
  bool operator==(const LoaderState&) const = default;
};

}  // namespace redline::data
