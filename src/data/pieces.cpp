// Counting pieces, and finding them again by their number.
#include "data/pieces.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "base/error.h"
#include "base/thread_pool.h"
#include "data/order.h"
#include "data/source.h"

namespace redline::data {
namespace {

constexpr std::int64_t kBlock = 64;       // documents
constexpr std::int64_t kGrain = 1 << 10;  // blocks that a thread counts at a time

}  // namespace

std::vector<PieceLength> pieces_of(std::span<const std::int64_t> lengths, const Cut& cut, bool shuffled) {
  std::vector<PieceLength> pieces;
  for (const std::int64_t length : lengths) {
    if (length < 2) continue;
    const std::int64_t count = cut.pieces(length);
    for (std::int64_t i = 0, begin = 0; i < count; ++i) {
      const std::int64_t end = cut.end(begin, length);
      pieces.push_back({static_cast<std::int32_t>(end - begin), end == length, count == 1});
      begin = end;
    }
  }
  if (!shuffled) return pieces;
  const auto count = static_cast<std::int64_t>(pieces.size());
  std::vector<PieceLength> order(pieces.size());
  for (std::int64_t i = 0; i < count; ++i)
    order[static_cast<std::size_t>(i)] = pieces[static_cast<std::size_t>(shuffled_at(i, count, 0))];
  return order;
}

PieceNumbers::PieceNumbers(const DocumentSource& source, const Cut& cut) : source_(source), cut_(cut) {
  const std::int64_t documents = source.documents(), blocks = (documents + kBlock - 1) / kBlock;
  before_.resize(static_cast<std::size_t>(blocks) + 1);
  std::atomic<std::int64_t> tokens{0};
  const auto count = [&](std::int64_t first, std::int64_t last) {
    std::int64_t sum = 0;
    for (std::int64_t block = first; block < last; ++block) {
      std::int64_t pieces = 0;
      for (std::int64_t d = block * kBlock; d < std::min((block + 1) * kBlock, documents); ++d) {
        const std::int64_t length = source.length(d);
        sum += length;
        pieces += cut.pieces(length);
      }
      before_[static_cast<std::size_t>(block) + 1] = pieces;
    }
    tokens += sum;
  };
  if (blocks <= kGrain) {
    count(0, blocks);
  } else {
    ThreadPool pool;
    pool.for_ranges(blocks, kGrain, count);
  }
  std::partial_sum(before_.begin(), before_.end(), before_.begin());
  pieces_ = before_.back();
  tokens_ = tokens;
  if (pieces_ == documents) before_ = {};
}

PieceNumbers::Place PieceNumbers::at(std::int64_t piece) const {
  REDLINE_CHECK(piece >= 0 && piece < pieces_, "no piece {} among {}", piece, pieces_);
  if (before_.empty()) return {piece, 0, source_.length(piece)};
  const auto block = std::prev(std::ranges::upper_bound(before_, piece));
  std::int64_t document = (block - before_.begin()) * kBlock, rest = piece - *block;
  const std::int64_t of_block = std::min(kBlock, source_.documents() - document);
  if (block[1] - block[0] == of_block) return {document + rest, 0, source_.length(document + rest)};
  for (;; ++document) {
    const std::int64_t length = source_.length(document), pieces = cut_.pieces(length);
    if (rest < pieces) return {document, rest * cut_.row, length};
    rest -= pieces;
  }
}

}  // namespace redline::data
