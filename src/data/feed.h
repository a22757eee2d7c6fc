// Pieces of documents in the order in which a run reads them, some at a time: a chunk. The contents of chunks are
// decided one after another (take); any thread may read and tokenize a chunk (make), and ChunkReader has such threads.
// The result does not depend on their number.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "data/input/text_input.h"
#include "data/pieces.h"

namespace redline::data {

struct PipelineCounters;

struct FeedOptions {
  Cut cut = {};
  bool shuffle = true;
  std::int64_t shuffle_buffer = 2048;      // pieces that a stream shuffles among themselves
  bool repeat = true;                      // over epochs; else the documents come once
  std::optional<std::uint64_t> seed = {};  // of the order, where it is not the corpus's
  bool quiet = false;                      // bad documents that are passed over are not named: another feed does that
};

struct Chunk {
  struct Piece : PieceId {
    std::int64_t ordinal = 0;  // streams: how many documents of the files stand before its document
    std::int64_t end = 0;      // in `tokens`; it begins where the one before ends
    std::int64_t dropped = 0;  // tokens of the document after it that are never read
    std::int32_t after = 0;    // the token that follows in the document, or kNoTarget
  };
  FeedPlace place;           // of its first piece; of a window only the epoch
  std::int64_t count = 0;    // pieces to read, or documents of an endless source; of a round, its pieces
  TextBlock raw;             // of a stream: the text that was read
  std::int64_t ordinal = 0;  // of a stream: how many documents of the files stand before it
  bool ends_epoch = false;
  LoaderState state_after;  // of a round of batches (data/batch_maker.h): the loader's state after it

  std::vector<std::int32_t> tokens;
  // Those of whole documents, where there are windows. A piece with nothing to learn is empty and keeps its place.
  std::vector<Piece> pieces;

  std::span<const std::int32_t> tokens_of(std::size_t piece) const {
    const std::int64_t begin = piece == 0 ? 0 : pieces[piece - 1].end;
    return std::span(tokens).subspan(static_cast<std::size_t>(begin),
                                     static_cast<std::size_t>(pieces[piece].end - begin));
  }
  // Makes pieces of the document that `tokens` hold from `from` on.
  void cut_document(std::int64_t id, std::int64_t document_ordinal, std::int64_t from, const Cut& cut);
  std::int64_t bytes() const;  // of memory
  void clear();                // keeps the memory
};

// Makes chunks for one thread: it may hold caches.
class ChunkMaker {
 public:
  virtual ~ChunkMaker() = default;
  virtual void make(Chunk& chunk) = 0;
};

class ChunkSource {
 public:
  virtual ~ChunkSource() = default;
  virtual bool take(Chunk& chunk) = 0;  // the next one, not made yet; false at the end. One thread at a time
  virtual std::unique_ptr<ChunkMaker> maker() = 0;
  virtual std::string_view maker_stage() const = 0;  // name of the work in make(): "read" or "tokenize"
};

// The chunks of a corpus. take() comes to an end only without `repeat`.
class Feed : public ChunkSource {
 public:
  // take() goes on from there. Returns how many pieces of the first window were drawn before.
  virtual std::int64_t seek(const FeedPlace& place) = 0;
  // Reads these pieces (or the rest of them) again, in their order. A seek() must follow before the next take(). A
  // UserError when there can be no such piece.
  virtual void fetch(const std::vector<PieceId>& ids, Chunk& chunk) = 0;
  // A window ends with the document that fills it to so many pieces. 0: there are no windows.
  virtual std::int64_t window_pieces() const { return 0; }
  // Whether windows come in the order of the files, to be shuffled by the reader once a window is complete. shuffled()
  // is the piece at `index` of the shuffled window.
  virtual bool shuffles_windows() const { return false; }
  virtual std::int64_t shuffled(const FeedPlace&, std::int64_t index, std::int64_t /*pieces*/) const { return index; }

  // Known before the epoch was read, for some feeds: its size, the first lengths of the first epoch in their order, and
  // the share of an epoch before a place.
  virtual std::optional<EpochSize> size() const { return {}; }
  virtual std::vector<PieceLength> first_lengths(std::int64_t /*most*/) const { return {}; }
  virtual std::optional<double> share_before(const FeedPlace& /*place*/) const { return {}; }
};

// Chunks in their order, made by worker threads. A free thread makes the next one, and a chunk that is ready early
// waits for those before it.
class ChunkReader {
 public:
  // workers = 0: chunks are made in next(). `limit_bytes` bounds the chunks that exist at a time; one chunk always may,
  // so that nothing waits for ever.
  ChunkReader(ChunkSource& source, std::int64_t workers, std::int64_t limit_bytes, PipelineCounters& counters);
  ~ChunkReader();

  // Ends the threads and forgets the chunks that are ready: the source may be sent elsewhere. The next next() starts
  // them again.
  void restart();
  void stop();  // ends the threads; a next() that waits returns nothing. Any thread may call it

  // Nothing at the end of the documents. An exception of a thread is rethrown here, after all chunks before it.
  std::unique_ptr<Chunk> next();
  void give_back(std::unique_ptr<Chunk> chunk);  // its memory is used again

  std::int64_t workers() const, ready() const, held_bytes() const;
  std::string_view stage() const;  // the source's maker_stage()
  bool over_limit() const;         // a single window or document was larger than the limit

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace redline::data
