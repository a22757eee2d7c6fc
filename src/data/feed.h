// Pieces of documents in the order in which a run reads them, some at a time: a chunk. What a chunk holds is decided
// one after another (take); reading and tokenizing it is left to any thread (make). What comes out does not depend on
// how many there are.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "data/input/text_input.h"
#include "data/loader_state.h"
#include "data/pieces.h"

namespace redline::data {

struct FeedOptions {
  Cut cut = {};
  bool shuffle = true;
  std::int64_t shuffle_buffer = 2048;      // pieces that a stream shuffles among themselves
  bool repeat = true;                      // over epochs; else the documents come once
  std::optional<std::uint64_t> seed = {};  // of the order, where it is not the corpus's
};

struct Chunk {
  struct Piece : PieceId {
    std::int64_t ordinal = 0;  // streams: how many documents of the files stand before its document
    std::int64_t end = 0;      // in `tokens`; it begins where the one before ends
    std::int64_t dropped = 0;  // tokens of the document behind it that nobody will see
    std::int32_t after = 0;    // the token that follows in the document, or kNoTarget
  };
  FeedPlace place;  // of its first piece; of a window only the epoch
  std::int64_t count =
      0;          // what to read where it has numbers: pieces, or documents without end; of a round, its pieces
  TextBlock raw;  // where it does not: what was read,
  std::int64_t ordinal = 0;  // and how many documents of the files stand before it
  bool ends_epoch = false;
  LoaderState behind;  // of a round of batches (data/round_feed.h): where it leaves the loader

  std::vector<std::int32_t> tokens;
  std::vector<Piece> pieces;  // of whole documents where there are windows. One that no token can be learnt from is
                              // empty, and has a place in the order all the same

  // Makes pieces of the document that `tokens` hold from `from` on.
  void cut_document(std::int64_t id, std::int64_t document_ordinal, std::int64_t from, const Cut& cut);
  std::int64_t bytes() const;  // of memory
  void clear();                // keeps the memory
};

// These pieces (or what is left of them), in their order. They were drawn once, so that they have tokens to learn from.
void fetch_pieces(const DocumentSource& source, const std::vector<PieceId>& ids, const Cut& cut, Chunk& chunk);

// Makes chunks for one thread: it may hold caches.
class ChunkMaker {
 public:
  virtual ~ChunkMaker() = default;
  virtual void make(Chunk& chunk) = 0;
};

class Feed {
 public:
  virtual ~Feed() = default;
  // take() goes on from there. Returns how many pieces of the first window were drawn before.
  virtual std::int64_t seek(const FeedPlace& place) = 0;
  // The next chunk, not made yet; false at the end, which only comes without `repeat`. One thread at a time.
  virtual bool take(Chunk& chunk) = 0;
  virtual std::unique_ptr<ChunkMaker> maker() = 0;
  // These pieces (or what is left of them) again, in their order; take() must be preceded by seek() after it. A
  // UserError when there can be no such piece.
  virtual void fetch(const std::vector<PieceId>& ids, Chunk& chunk) = 0;
  // A window ends with the document that fills it to so many pieces. 0: chunks are in their order as they are.
  virtual std::int64_t window_pieces() const { return 0; }
  // Whether a window comes in the order of the files and is to be shuffled by whoever has the whole of it: the piece
  // that stands at `index` of the window's `pieces`.
  virtual bool shuffles_windows() const { return false; }
  virtual std::int64_t shuffled(const FeedPlace&, std::int64_t index, std::int64_t /*pieces*/) const { return index; }
  virtual std::string_view maker_stage() const = 0;  // what make() does: "read" or "tokenize"

  // Where these can be told before the epoch was read: what it holds, the first lengths of its first epoch in their
  // order, and the share of an epoch that stands before a place.
  virtual std::optional<EpochSize> size() const { return {}; }
  virtual std::vector<PieceLength> first_lengths(std::int64_t /*most*/) const { return {}; }
  virtual std::optional<double> share_before(const FeedPlace& /*place*/) const { return {}; }
};

}  // namespace redline::data
