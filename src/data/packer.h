// Decides from lengths alone which pieces of documents make the next batch: a pure function of the settings and of the
// pieces offered, in their order. It holds no tokens, so statistics use it as well as the loader.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "data/batch.h"
#include "data/pieces.h"

namespace redline::data {

enum class Packing {
  pad,     // at most one piece a row: the baseline
  bucket,  // pieces of similar length, as many as rows of their bucket's length the batch has tokens for
  pack,    // best fit, pieces whole
  stream,  // joined and cut at the end of the batch, in their order
};
inline constexpr std::array kPackings = {Packing::pad, Packing::bucket, Packing::pack, Packing::stream};
Packing packing_named(std::string_view name);
std::string_view name_of(Packing packing);

struct PackerSettings {
  BatchShape shape;
  Packing packing = Packing::pack;
  bool truncate = false;  // documents longer than a row lose their rest instead of being split, before they are offered
  // Their longest lengths; those above seq_len do not count, seq_len itself always does.
  std::vector<std::int64_t> buckets = {};
  std::int64_t lookahead = 0;  // pieces that may wait; 0: as many as the packing gains from
  // Documents of a batch that is handed out may be cut to this many tokens. A batch gets fewer pieces then, so that
  // there is room for their parts. 0: documents stay whole.
  std::int64_t cut_later = 0;
  // The most tokens of all batches together. The first pieces are offered up to so many, and no other after the first
  // that would be too much; one is offered in any case. 0: all.
  std::int64_t most_tokens = 0;

  Cut cut() const { return {shape.seq_len, truncate}; }  // of what is offered
  // The most pieces of a batch. Each later cut makes one more, and takes so many tokens.
  std::int64_t most_pieces() const { return shape.documents() - (cut_later > 0 ? shape.tokens() / cut_later : 0); }
};

// Powers of two from 64 up to a row: the edges of "bucket" where none are given.
std::vector<std::int64_t> default_buckets(std::int64_t seq_len);

// An offered piece, or (stream) the part of it that a batch had room for.
struct PlacedPiece {
  std::int64_t piece = 0;  // the number it was offered under
  std::int64_t begin = 0, length = 0;
  bool last = false;  // nothing of it is left to be placed
};

// The caller offers pieces while the packer wants() them and there are any, then places them one by one:
//
//   for (;;) {
//     while (packer.wants() && more pieces) packer.offer(...);
//     if (const auto piece = packer.place()) ... else the batch is closed (empty, when nothing waits)
//   }
//
// A piece of no tokens must not be offered, nor one of more than a row.
class Packer {
 public:
  struct Waiting {
    std::int64_t piece = 0, length = 0;
    bool ends = true;        // its last token has no target
    std::int64_t begin = 0;  // > 0: the rest of a piece, from this token on
    std::int32_t bucket = 0;
  };

  explicit Packer(PackerSettings settings);

  bool wants() const { return waiting_.size() < lookahead_; }
  void offer(std::int64_t piece, std::int64_t length, bool ends);
  std::optional<PlacedPiece> place();  // nothing: the batch is closed, and the next call opens another

  std::span<const Waiting> waiting() const { return waiting_; }  // in the order in which they would be offered again
  std::size_t lookahead() const { return lookahead_; }           // the most that wait
  void clear();                                                  // as if nothing had been offered
  const PackerSettings& settings() const { return settings_; }

 private:
  std::int64_t room() const { return settings_.shape.tokens() - tokens_; }
  std::int32_t bucket_of(std::int64_t length) const;
  std::int64_t bucket_capacity(std::size_t bucket) const;
  std::int32_t bucket_to_open() const;
  std::size_t choose() const;
  std::size_t best_fit() const;
  PlacedPiece take(std::size_t chosen);

  PackerSettings settings_;
  std::size_t lookahead_;
  std::vector<Waiting> waiting_;             // oldest first
  std::vector<std::int64_t> bucket_counts_;  // of waiting_
  std::int64_t tokens_ = 0, pieces_ = 0;     // of the open batch
  std::int32_t open_bucket_ = 0;
};

// The result of packing pieces of given lengths once.
struct Packed {
  std::int64_t batches = 0, rows = 0, pieces = 0;
  std::int64_t real_tokens = 0;
  std::int64_t cut_pieces = 0;      // the only ones of their documents that a stream cut all the same
  std::int64_t capped_batches = 0;  // closed by max_segments with room for more tokens
  double score_pairs = 0;           // (query, key) pairs that the mask keeps
  // Sums over the batches before the documents ran out, which stand for a longer corpus. 0: there was none.
  std::int64_t steady_tokens = 0, steady_slots = 0;
};

// Rows have settings.shape.seq_len tokens. The last batches, which are not full, count with the rows they use: in
// training the next epoch fills the rest. `tick` hears of pieces now and then as they are offered.
Packed run_packer(const PackerSettings& settings, std::span<const PieceLength> pieces,
                  const std::function<void(std::int64_t pieces)>& tick = {});

}  // namespace redline::data
