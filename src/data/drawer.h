// Draws documents one by one from the chunks of a feed: gathers what is shuffled together, shuffles it, passes over empty
// documents, and knows its place.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/chunk_reader.h"

namespace redline::data {

class Drawer {
 public:
  struct Drawn {
    std::int64_t id = 0;
    std::span<const std::int32_t> tokens;  // until the next draw()
    std::int32_t after = 0;
  };

  Drawer(ChunkReader& reader, bool repeat) : reader_(reader), repeat_(repeat) {}

  // Nothing at the end of an epoch unless the next one may begin, and at the end of the documents. A whole epoch without
  // a document is a UserError.
  std::optional<Drawn> draw(bool may_begin_epoch);

  void seek(const FeedPlace& place, std::int64_t empty_documents);
  const FeedPlace& place() const { return place_; }
  std::int64_t empty_documents() const { return empty_documents_; }
  std::int64_t waited_ns() const { return waited_ns_; }  // for chunks, in all

 private:
  struct At {
    std::uint32_t chunk = 0, document = 0;
  };
  bool next_window();
  void leave_window();

  ChunkReader& reader_;
  bool repeat_;
  std::vector<std::unique_ptr<Chunk>> chunks_;  // of the window
  std::vector<At> order_;
  FeedPlace window_;
  bool ends_epoch_ = false;
  std::size_t next_ = 0;   // in order_
  std::int64_t skip_ = 0;  // documents of the window that comes which were drawn before
  bool any_in_epoch_ = false;
  FeedPlace place_;
  std::int64_t empty_documents_ = 0, waited_ns_ = 0;
};

}  // namespace redline::data
