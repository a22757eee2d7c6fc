// Documents in the order in which a run reads them, cut into chunks. What a chunk holds is decided one after another
// (take); reading and tokenizing it is left to any thread (make). What comes out does not depend on how many there are.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "data/input/text_input.h"

namespace redline::data {

// The share of the documents that this process reads: all shares are disjoint, and together complete in each epoch.
struct Share {
  std::int64_t rank = 0, ranks = 1;
};

struct FeedOptions {
  bool shuffle = true;
  std::int64_t shuffle_buffer = 2048;  // documents that a stream shuffles among themselves
  bool repeat = true;                  // over epochs; else the documents come once
  Share share;
};

// A place between two documents of the order.
struct FeedPlace {
  std::int64_t epoch = 0;
  std::int64_t window = 0;    // streams: the id of the first document of the shuffled window
  std::int64_t ordinal = 0;   // streams: how many documents of the files stand before the window
  std::int64_t position = 0;  // documents of this part drawn: in the epoch, or in the window of a stream
  bool operator==(const FeedPlace&) const = default;
};

struct Chunk {
  struct Document {
    std::int64_t id = 0;     // what fetch() takes
    std::int64_t end = 0;    // in `tokens`; it begins where the one before ends
    std::int32_t after = 0;  // the token that follows in the source, or kNoTarget
  };
  FeedPlace place;           // of its first document
  std::int64_t count = 0;    // documents to read where they have indices
  TextBlock raw;             // where they do not: what was read,
  std::int64_t ordinal = 0;  // and how many documents of the files stand before it
  bool ends_window = true;   // the last chunk of what is shuffled together
  bool ends_epoch = false;

  std::vector<std::int32_t> tokens;
  std::vector<Document> documents;  // an empty one has no tokens, and a place in the order all the same

  std::int64_t bytes() const;  // of memory
  void clear();                // keeps the memory
};

// Makes chunks for one thread: it may hold caches.
class ChunkMaker {
 public:
  virtual ~ChunkMaker() = default;
  virtual void make(Chunk& chunk) = 0;
};

class Feed {
 public:
  virtual ~Feed() = default;
  // take() goes on from there. Returns how many documents of the first window were drawn before.
  virtual std::int64_t seek(const FeedPlace& place) = 0;
  // The next chunk, not made yet; false at the end, which only comes without `repeat`. One thread at a time.
  virtual bool take(Chunk& chunk) = 0;
  virtual std::unique_ptr<ChunkMaker> maker() = 0;
  // The documents of these ids again, in their order; take() must be preceded by seek() after it. A UserError when
  // there can be no such document.
  virtual void fetch(const std::vector<std::int64_t>& ids, Chunk& chunk) = 0;
  // Whether windows come in the order of the files and are to be shuffled by whoever has a whole one: the document that
  // stands at `index` of the window's `documents`.
  virtual bool shuffles_windows() const { return false; }
  virtual std::int64_t shuffled(const FeedPlace&, std::int64_t index, std::int64_t /*documents*/) const {
    return index;
  }
  virtual std::string_view maker_stage() const = 0;  // what make() does: "read" or "tokenize"
};

}  // namespace redline::data
