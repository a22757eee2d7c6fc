// Draws pieces of documents one by one from the chunks of a feed. It gathers windows, shuffles them where the feed asks
// for it, skips empty pieces, and knows its place.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/chunk_reader.h"

namespace redline::data {

[[noreturn]] void fail_nothing_to_predict();  // an epoch had no document of two tokens or more

class Shuffler {
 public:
  struct Drawn {
    PieceId id;
    std::span<const std::int32_t> tokens;  // until the next draw()
    std::int32_t after = 0;
  };

  Shuffler(ChunkReader& reader, bool repeat) : reader_(reader), repeat_(repeat) {}

  // Nothing at the end of an epoch unless the next one may begin, and at the end of the documents. A whole epoch
  // without a document is a UserError.
  std::optional<Drawn> draw(bool may_begin_epoch);

  struct Passed {
    std::int64_t truncated_tokens = 0, empty_documents = 0;  // dropped and skipped so far
  };
  void seek(const FeedPlace& place, Passed passed);
  const FeedPlace& place() const { return place_; }
  const Passed& passed() const { return passed_; }
  std::int64_t waited_ns() const { return waited_ns_; }  // for chunks, in all

 private:
  struct At {
    std::uint32_t chunk = 0, piece = 0;
  };
  bool next_window();
  bool next_chunk();
  void gather(std::int64_t most);
  void leave_window(bool all);

  ChunkReader& reader_;
  bool repeat_;
  std::vector<std::unique_ptr<Chunk>> chunks_;  // of the window
  std::size_t rest_ = 0;                        // the first piece of the last of them that is not of this window
  std::vector<At> order_;
  std::int64_t window_tokens_ = 0;
  FeedPlace window_;
  bool ends_epoch_ = false;
  std::size_t next_ = 0;   // in order_
  std::int64_t skip_ = 0;  // pieces of the window that comes which were drawn before
  bool any_in_epoch_ = false;
  FeedPlace place_;
  Passed passed_;
  std::int64_t waited_ns_ = 0;
};

}  // namespace redline::data
