// Where a loader stands between two batches.
#pragma once

#include <cstdint>
#include <vector>

#include "data/feed.h"

namespace redline::data {

// All that is needed to go on from a point between two batches. Small: it lives in the checkpoint.
struct LoaderState {
  // Counted up when a place comes to mean other tokens. 1 put whole documents in order, 2 their pieces.
  static constexpr std::int64_t kOrder = 2;

  FeedPlace next;                                          // where the next piece is drawn
  std::vector<PieceId> waiting;                            // the packer's lookahead, in order: read but not placed
  std::int64_t truncated_tokens = 0, empty_documents = 0;  // dropped and passed over so far
  std::int64_t order = kOrder;                             // what it was written with
  bool operator==(const LoaderState&) const = default;
};

// A state of another order is a UserError: its place means nothing here.
void require_order(const LoaderState& state);

}  // namespace redline::data
