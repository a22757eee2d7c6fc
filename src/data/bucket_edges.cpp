// Dynamic programming over the distinct lengths: the best k buckets for the shortest j lengths come from the best k-1
// for some shorter ones. Longer edges never cost less, so the place of the last cut moves in one direction with j, and
// halving finds all of them in O(d log d) a bucket: a corpus with 131072 distinct lengths takes no time either.
#include "data/bucket_edges.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace redline::data {
namespace {

std::int64_t pieces_per_batch(const BatchShape& shape, std::int64_t edge) {
  return std::min(shape.tokens() / edge, shape.documents());
}

class Search {
 public:
  Search(const std::map<std::int64_t, std::int64_t>& pieces, const BatchShape& shape) : shape_(shape) {
    for (const auto& [length, count] : pieces) {
      lengths_.push_back(length);
      counts_.push_back(counts_.back() + static_cast<double>(count));
      costs_.push_back(slots_per_piece(shape, length));
    }
  }

  BucketEdges best(std::int64_t buckets) {
    const std::size_t d = lengths_.size();
    std::vector<double> one(d + 1);
    for (std::size_t j = 1; j <= d; ++j) one[j] = slots(0, j);
    tables_ = {one};
    cuts_ = {std::vector<std::size_t>(d + 1, 0)};
    std::size_t chosen = 0;
    for (std::int64_t k = 1; k < std::min(buckets, static_cast<std::int64_t>(d)); ++k) {
      tables_.emplace_back(d + 1, 0.0);
      cuts_.emplace_back(d + 1, 0);
      fill(tables_.size() - 1, 1, d, 0, d - 1);
      if (tables_.back()[d] < tables_[chosen][d]) chosen = tables_.size() - 1;
    }
    BucketEdges found;
    found.slots = tables_[chosen][d];
    std::size_t j = d;
    for (std::size_t k = chosen + 1; k-- > 0 && j > 0; j = cuts_[k][j]) found.edges.push_back(raised(lengths_[j - 1]));
    std::ranges::reverse(found.edges);
    return found;
  }

 private:
  // The longest edge that costs no more, so that a document that comes later and is a little longer fits as well.
  std::int64_t raised(std::int64_t edge) const {
    return std::max(edge, std::min(shape_.tokens() / pieces_per_batch(shape_, edge), shape_.seq_len));
  }
  double slots(std::size_t i, std::size_t j) const { return costs_[j - 1] * (counts_[j] - counts_[i]); }

  // Row k at [low, high], whose cuts lie in [first, last].
  void fill(std::size_t k, std::size_t low, std::size_t high, std::size_t first, std::size_t last) {
    if (low > high) return;
    const std::size_t j = (low + high) / 2;
    double best = std::numeric_limits<double>::infinity();
    std::size_t cut = first;
    for (std::size_t i = first; i <= std::min(last, j - 1); ++i) {
      const double candidate = tables_[k - 1][i] + slots(i, j);
      if (candidate < best) {
        best = candidate;
        cut = i;
      }
    }
    tables_[k][j] = best;
    cuts_[k][j] = cut;
    fill(k, low, j - 1, first, cut);
    fill(k, j + 1, high, cut, last);
  }

  BatchShape shape_;
  std::vector<std::int64_t> lengths_;   // distinct, ascending
  std::vector<double> counts_ = {0.0};  // pieces among the shortest j lengths
  std::vector<double> costs_;           // of a piece in the bucket of that length
  std::vector<std::vector<double>> tables_;
  std::vector<std::vector<std::size_t>> cuts_;
};

}  // namespace

double slots_per_piece(const BatchShape& shape, std::int64_t edge) {
  return static_cast<double>(shape.tokens()) / static_cast<double>(pieces_per_batch(shape, edge));
}

BucketEdges best_bucket_edges(const std::map<std::int64_t, std::int64_t>& pieces, std::int64_t buckets,
                              const BatchShape& shape) {
  REDLINE_CHECK(!pieces.empty() && buckets > 0, "there are pieces and buckets");
  return Search(pieces, shape).best(buckets);
}

}  // namespace redline::data
