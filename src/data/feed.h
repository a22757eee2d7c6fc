// Pieces of documents in the order in which a run reads them, some at a time: a chunk. The contents of chunks are
// decided one after another (take); any thread may read and tokenize a chunk (make). The result does not depend on the
// number of threads.
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
  FeedPlace place;           // of its first piece; of a window only the epoch
  std::int64_t count = 0;    // pieces to read, or documents of an endless source; of a round, its pieces
  TextBlock raw;             // of a stream: the text that was read
  std::int64_t ordinal = 0;  // of a stream: how many documents of the files stand before it
  bool ends_epoch = false;
  LoaderState behind;  // of a round of batches (data/round_feed.h): the loader's state behind it

  std::vector<std::int32_t> tokens;
  // Of whole documents where there are windows. A piece with nothing to learn is empty and keeps its place.
  std::vector<Piece> pieces;

  // Makes pieces of the document that `tokens` hold from `from` on.
  void cut_document(std::int64_t id, std::int64_t document_ordinal, std::int64_t from, const Cut& cut);
  std::int64_t bytes() const;  // of memory
  void clear();                // keeps the memory
};

// Reads these pieces (or the rest of them) in their order. They were drawn once, so they have tokens to learn from.
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
  // Reads these pieces (or the rest of them) again, in their order. A seek() must follow before the next take(). A
  // UserError when there can be no such piece.
  virtual void fetch(const std::vector<PieceId>& ids, Chunk& chunk) = 0;
  // A window ends with the document that fills it to so many pieces. 0: there are no windows.
  virtual std::int64_t window_pieces() const { return 0; }
  // Whether windows come in the order of the files, to be shuffled by the reader once a window is complete. shuffled()
  // is the piece at `index` of the shuffled window.
  virtual bool shuffles_windows() const { return false; }
  virtual std::int64_t shuffled(const FeedPlace&, std::int64_t index, std::int64_t /*pieces*/) const { return index; }
  virtual std::string_view maker_stage() const = 0;  // name of the work in make(): "read" or "tokenize"

  // Known before the epoch was read, for some feeds: its size, the first lengths of the first epoch in their order, and
  // the share of an epoch before a place.
  virtual std::optional<EpochSize> size() const { return {}; }
  virtual std::vector<PieceLength> first_lengths(std::int64_t /*most*/) const { return {}; }
  virtual std::optional<double> share_before(const FeedPlace& /*place*/) const { return {}; }
};

}  // namespace redline::data
