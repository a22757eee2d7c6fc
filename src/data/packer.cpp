// A short list of waiting pieces, from which each batch is filled.
#include "data/packer.h"

#include <algorithm>

#include "base/error.h"

namespace redline::data {
namespace {

// On ping in rows of 1024, 64 waiting pieces fill 99.8% of a batch of 8 rows; more gain nothing that can be seen.
constexpr std::size_t kLookahead = 64;

// Enough for one bucket to be full at all times up to 1,056 rows of 1024 with the default edges; what waits is part of
// every checkpoint, about ten bytes a piece.
constexpr std::int64_t kMostInBuckets = std::int64_t{1} << 15;

constexpr std::int64_t kSmallestBucket = 64;
constexpr std::int64_t kBetweenTicks = 1 << 14;  // pieces

// Rows that the pieces of a batch take up.
std::int64_t rows_used(const PackerSettings& settings, std::int64_t pieces, std::int64_t tokens, std::int64_t longest) {
  const std::int64_t row = settings.shape.seq_len;
  if (settings.packing == Packing::pad) return pieces;
  std::int64_t slots = tokens;
  if (settings.packing == Packing::bucket) slots = pieces * *std::ranges::lower_bound(settings.buckets, longest);
  const std::int64_t most = settings.shape.max_segments;  // which the next epoch's pieces count against, too
  return std::max((slots + row - 1) / row, (pieces + most - 1) / most);
}

}  // namespace

Packing packing_named(std::string_view name) {
  if (name == "pad") return Packing::pad;
  if (name == "bucket") return Packing::bucket;
  if (name == "stream") return Packing::stream;
  REDLINE_CHECK(name == "pack", "unknown packing {}", name);
  return Packing::pack;
}

std::string_view name_of(Packing packing) {
  switch (packing) {
    case Packing::pad: return "pad";
    case Packing::bucket: return "bucket";
    case Packing::pack: return "pack";
    case Packing::stream: break;
  }
  return "stream";
}

std::vector<std::int64_t> default_buckets(std::int64_t seq_len) {
  std::vector<std::int64_t> edges;
  for (std::int64_t edge = kSmallestBucket; edge < seq_len; edge *= 2) edges.push_back(edge);
  edges.push_back(seq_len);
  return edges;
}

Packer::Packer(PackerSettings settings) : settings_(std::move(settings)), lookahead_(kLookahead) {
  const BatchShape& shape = settings_.shape;
  REDLINE_CHECK(shape.rows > 0 && shape.seq_len > 0 && settings_.most_pieces() > 0, "a batch has room for something");
  if (settings_.packing == Packing::stream) lookahead_ = 1;
  if (settings_.lookahead > 0) lookahead_ = static_cast<std::size_t>(settings_.lookahead);
  if (settings_.packing != Packing::bucket) return;

  std::vector<std::int64_t>& edges = settings_.buckets;
  if (edges.empty()) edges = default_buckets(shape.seq_len);
  std::erase_if(edges, [&](std::int64_t edge) { return edge <= 0 || edge >= shape.seq_len; });
  edges.push_back(shape.seq_len);
  std::ranges::sort(edges);
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());  // clang 14 cannot compile std::ranges::unique
  bucket_counts_.assign(edges.size(), 0);
  // One more than can wait without any bucket being full.
  std::int64_t enough = 1;
  for (std::size_t b = 0; b < edges.size(); ++b) enough += bucket_capacity(b) - 1;
  if (settings_.lookahead == 0) lookahead_ = static_cast<std::size_t>(std::min(enough, kMostInBuckets));
}

std::int64_t Packer::bucket_capacity(std::size_t bucket) const {
  return std::min(settings_.shape.tokens() / settings_.buckets[bucket], settings_.most_pieces());
}

std::int32_t Packer::bucket_of(std::int64_t length) const {
  const auto it = std::ranges::lower_bound(settings_.buckets, length);
  return static_cast<std::int32_t>(it - settings_.buckets.begin());
}

void Packer::offer(std::int64_t piece, std::int64_t length, bool ends) {
  REDLINE_CHECK(wants(), "{} pieces wait already", waiting_.size());
  REDLINE_CHECK(length > 0 && length <= settings_.shape.seq_len, "a piece of {} tokens", length);
  Waiting w{piece, length, ends};
  if (settings_.packing == Packing::bucket) {
    w.bucket = bucket_of(length);
    ++bucket_counts_[static_cast<std::size_t>(w.bucket)];
  }
  waiting_.push_back(w);
}

std::optional<PlacedPiece> Packer::place() {
  if (pieces_ == 0 && settings_.packing == Packing::bucket && !waiting_.empty()) open_bucket_ = bucket_to_open();
  const std::size_t chosen = choose();
  if (chosen == waiting_.size()) {
    tokens_ = pieces_ = 0;
    return std::nullopt;
  }
  return take(chosen);
}

// The full bucket with the oldest piece; when none is full (the end of an epoch, or batches too large for the list),
// that of the oldest of all.
std::int32_t Packer::bucket_to_open() const {
  const auto full = [&](const Waiting& w) {
    const auto bucket = static_cast<std::size_t>(w.bucket);
    return bucket_counts_[bucket] >= bucket_capacity(bucket);
  };
  const auto it = std::ranges::find_if(waiting_, full);
  return it == waiting_.end() ? waiting_.front().bucket : it->bucket;
}

std::size_t Packer::choose() const {
  const std::size_t none = waiting_.size();
  if (waiting_.empty() || pieces_ == settings_.most_pieces()) return none;
  switch (settings_.packing) {
    case Packing::pad: return pieces_ < settings_.shape.rows ? 0 : none;
    case Packing::stream: return room() > 0 ? 0 : none;
    case Packing::pack: return best_fit();
    case Packing::bucket: break;
  }
  if (pieces_ == bucket_capacity(static_cast<std::size_t>(open_bucket_))) return none;
  const auto it = std::ranges::find(waiting_, open_bucket_, &Waiting::bucket);
  return static_cast<std::size_t>(it - waiting_.begin());
}

// The oldest opens a batch, so that nothing waits for ever; then the largest that fits, the older of equals. Small ones
// gather in the list by that and close the gaps at the end.
std::size_t Packer::best_fit() const {
  if (pieces_ == 0) return 0;
  std::size_t best = waiting_.size();
  std::int64_t best_length = 0;
  const std::int64_t most = room();
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    const std::int64_t length = waiting_[i].length;
    if (length <= most && length > best_length) {
      best = i;
      best_length = length;
    }
  }
  return best;
}

// The rest of a piece that a stream cut opens the next batch, unless it is one token without a target: it was the
// target of the last token placed here.
PlacedPiece Packer::take(std::size_t chosen) {
  const auto it = waiting_.begin() + static_cast<std::ptrdiff_t>(chosen);
  const std::int64_t left = it->length - it->begin;
  PlacedPiece placed{it->piece, it->begin, std::min(left, room())};
  placed.last = left == placed.length || (left == placed.length + 1 && it->ends);
  tokens_ += placed.length;
  ++pieces_;
  if (settings_.packing == Packing::bucket) --bucket_counts_[static_cast<std::size_t>(it->bucket)];
  if (placed.last)
    waiting_.erase(it);
  else
    it->begin += placed.length;
  return placed;
}

void Packer::clear() {
  waiting_.clear();
  std::ranges::fill(bucket_counts_, 0);
  tokens_ = pieces_ = 0;
}

Packed run_packer(const PackerSettings& given, std::span<const PieceLength> offered,
                  const std::function<void(std::int64_t)>& tick) {
  Packer packer(given);
  const PackerSettings& settings = packer.settings();
  const BatchShape& shape = settings.shape;
  Packed out;
  std::int64_t next = 0, pieces = 0, tokens = 0, longest = 0;
  const auto count = static_cast<std::int64_t>(offered.size());
  for (;;) {
    while (packer.wants() && next < count) {
      const PieceLength& piece = offered[static_cast<std::size_t>(next)];
      packer.offer(next, piece.length, piece.ends);
      if (++next % kBetweenTicks == 0 && tick) tick(kBetweenTicks);
    }
    if (const auto placed = packer.place()) {
      ++pieces;
      tokens += placed->length;
      longest = std::max(longest, placed->length);
      out.cut_pieces += placed->last && placed->begin > 0 && offered[static_cast<std::size_t>(placed->piece)].sole;
      out.score_pairs += 0.5 * static_cast<double>(placed->length) * static_cast<double>(placed->length + 1);
      continue;
    }
    if (pieces == 0) break;
    const bool ended = next == count;
    ++out.batches;
    out.pieces += pieces;
    out.real_tokens += tokens;
    out.rows += ended ? std::min(shape.rows, rows_used(settings, pieces, tokens, longest)) : shape.rows;
    if (!ended) {
      out.steady_tokens += tokens;
      out.steady_slots += shape.tokens();
      out.capped_batches += pieces == shape.documents() && settings.packing != Packing::pad && tokens < shape.tokens();
    }
    pieces = tokens = longest = 0;
  }
  return out;
}

}  // namespace redline::data
