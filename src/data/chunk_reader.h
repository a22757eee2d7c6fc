// Chunks of a feed in their order, made by worker threads. A free thread makes the next one, and a chunk that is ready
// early waits for those before it.
#pragma once

#include <cstdint>
#include <memory>

#include "data/feed.h"
#include "data/pipeline_stats.h"

namespace redline::data {

class ChunkReader {
 public:
  // workers = 0: chunks are made in next(). `limit_bytes` bounds the chunks that exist at a time; one chunk always may,
  // so that nothing waits for ever.
  ChunkReader(std::unique_ptr<Feed> feed, std::int64_t workers, std::int64_t limit_bytes, PipelineCounters& counters);
  ~ChunkReader();

  // Ends the threads and goes to a place; the next next() starts them again. Returns what Feed::seek() does.
  std::int64_t seek(const FeedPlace& place);
  void fetch(const std::vector<PieceId>& ids, Chunk& chunk);  // ends the threads, then as Feed::fetch()
  void stop();  // ends the threads; a next() that waits returns nothing. Any thread may call it

  // Nothing at the end of the documents. An exception of a thread is rethrown here, after all chunks before it.
  std::unique_ptr<Chunk> next();
  void give_back(std::unique_ptr<Chunk> chunk);  // its memory is used again

  const Feed& feed() const;
  std::int64_t ready() const, held_bytes() const;
  bool over_limit() const;  // a single window or document was larger than the limit

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace redline::data
