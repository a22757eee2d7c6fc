// Finds the bucket edges that waste least: the longest lengths of K buckets for given pieces, under the packer's rule
// for filling batches.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "data/batch.h"

namespace redline::data {

// Token slots that a piece costs in a bucket with that longest length: the slots of a batch, shared by as many pieces
// as it holds. The cost is the edge itself, or a little more where a batch is no multiple of it.
double slots_per_piece(const BatchShape& shape, std::int64_t edge);

struct BucketEdges {
  std::vector<std::int64_t> edges;  // ascending, none above a row; the last holds the longest piece
  double slots = 0;                 // of all pieces
};

// At most `buckets` edges for so many pieces of each length (none longer than a row). Of equals the fewest edges.
BucketEdges best_bucket_edges(const std::map<std::int64_t, std::int64_t>& pieces, std::int64_t buckets,
                              const BatchShape& shape);

}  // namespace redline::data
