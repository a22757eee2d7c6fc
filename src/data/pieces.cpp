// Counting pieces, finding them again by their number, and the permutations that order them.
#include "data/pieces.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "data/corpus.h"

namespace redline::data {
namespace {

constexpr std::int64_t kBlock = 64;       // documents
constexpr std::int64_t kGrain = 1 << 10;  // blocks that a thread counts at a time

constexpr std::uint64_t kOrderStreams = 0x6F72646572ull;  // "order": keeps these numbers apart from others of the seed
constexpr std::uint64_t kWindowStreams = 0x77696E646F77ull;  // "window"
constexpr int kRounds = 8;

// A permutation of [0, n) that needs no memory: a Feistel network over the next power of two, walked along its cycle
// until it lands inside. At most two rounds of it in the mean, since the power is below 2n.
//
// The halves of an odd number of bits differ by one, and change sides with each round: an even number of rounds brings
// both back.
std::uint64_t permuted(std::uint64_t index, std::uint64_t n, const Random& random) {
  const int bits = std::bit_width(n - 1), low = (bits + 1) / 2, high = bits - low;
  const auto ones = [](int count) { return (std::uint64_t{1} << count) - 1; };
  const std::uint64_t masks[] = {ones(high), ones(low)};
  static_assert(kRounds % 2 == 0);
  do {
    std::uint64_t left = index >> low, right = index & masks[1];
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t next = left ^ (random.bits(right << 3 | round) & masks[round % 2]);
      left = right;
      right = next;
    }
    index = left << low | right;
  } while (index >= n);
  return index;
}

}  // namespace

std::int64_t shuffled_in_window(std::int64_t position, std::int64_t count, std::uint64_t seed, std::int64_t epoch,
                                std::int64_t window) {
  if (count <= 1) return 0;
  const std::uint64_t epoch_seed = Random(seed ^ kWindowStreams, static_cast<std::uint64_t>(epoch)).bits(0);
  const Random random(epoch_seed, static_cast<std::uint64_t>(window));
  return static_cast<std::int64_t>(
      permuted(static_cast<std::uint64_t>(position), static_cast<std::uint64_t>(count), random));
}

std::int64_t shuffled_at(std::int64_t position, std::int64_t count, std::uint64_t seed) {
  if (count == 1) return 0;
  const auto epoch = static_cast<std::uint64_t>(position / count);
  const Random random(seed ^ kOrderStreams, epoch);
  return static_cast<std::int64_t>(
      permuted(static_cast<std::uint64_t>(position % count), static_cast<std::uint64_t>(count), random));
}

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

PieceNumbers::Place place_of(const DocumentSource& source, const PieceId& id, const Cut& cut) {
  if (id.document < 0 || (source.documents() != 0 && id.document >= source.documents()))
    fail_user("{}: there is no document {}", source.name(), id.document);
  const std::int64_t length = source.length(id.document);
  if (id.begin < 0 || id.begin >= (cut.truncate ? std::min(length, cut.row) : length))
    fail_user("{}: document {} of {} tokens has no piece at {}", source.name(), id.document, length, id.begin);
  return {id.document, id.begin, length};
}

PieceOrder::PieceOrder(const DocumentSource& source, const Cut& cut, bool shuffle, std::optional<std::uint64_t> seed)
    : source_(source), cut_(cut), numbers_(source, cut), shuffle_(shuffle), seed_(seed.value_or(source.order_seed())) {}

PieceNumbers::Place PieceOrder::at(std::int64_t epoch, std::int64_t position) const {
  return numbers_.at(shuffle_ ? shuffled_at(epoch * pieces() + position, pieces(), seed_) : position);
}

void PieceOrder::require(const FeedPlace& place) const {
  if (place.epoch < 0 || place.position < 0 || place.position > pieces())
    fail_user("{}: there is no piece {} of epoch {}", source_.name(), place.position, place.epoch);
}

EpochSize PieceOrder::size() const { return {source_.documents(), numbers_.tokens(), pieces()}; }

std::vector<PieceLength> PieceOrder::first_lengths(std::int64_t most) const {
  std::vector<PieceLength> lengths;
  for (std::int64_t i = 0; i < std::min(most, pieces()); ++i) {
    const PieceNumbers::Place place = at(0, i);
    const std::int64_t end = cut_.end(place.begin, place.length);
    if (place.length > 1) lengths.push_back({static_cast<std::int32_t>(end - place.begin), end == place.length});
  }
  return lengths;
}

double PieceOrder::share_before(const FeedPlace& place) const {
  return static_cast<double>(place.position) / static_cast<double>(pieces());
}

}  // namespace redline::data
