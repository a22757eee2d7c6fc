// One window at a time. A window of a corpus with random access is one chunk, and already in its order.
#include "data/drawer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace redline::data {

std::optional<Drawer::Drawn> Drawer::draw(bool may_begin_epoch) {
  for (;;) {
    while (next_ < order_.size()) {
      const At at = order_[next_++];
      place_ = window_;
      place_.position += static_cast<std::int64_t>(next_);
      const Chunk& chunk = *chunks_[at.chunk];
      const Chunk::Document& d = chunk.documents[at.document];
      const std::int64_t begin = at.document == 0 ? 0 : chunk.documents[at.document - 1].end;
      if (begin == d.end) {
        ++empty_documents_;
        continue;
      }
      any_in_epoch_ = true;
      const auto tokens = std::span<const std::int32_t>(chunk.tokens);
      return Drawn{d.id, tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(d.end - begin)),
                   d.after};
    }
    if (ends_epoch_) {
      if (!repeat_ || !may_begin_epoch) return std::nullopt;
      if (!std::exchange(any_in_epoch_, false)) fail_user("the training data hold no document with any text");
    }
    if (!next_window()) return std::nullopt;
  }
}

void Drawer::leave_window() {
  for (auto& chunk : chunks_) reader_.give_back(std::move(chunk));
  chunks_.clear();
  order_.clear();
  next_ = 0;
  ends_epoch_ = false;
}

bool Drawer::next_window() {
  leave_window();
  do {
    const double start = steady_seconds();
    std::unique_ptr<Chunk> chunk = reader_.next();
    waited_ns_ += static_cast<std::int64_t>(1e9 * (steady_seconds() - start));
    if (!chunk) return false;
    chunks_.push_back(std::move(chunk));
  } while (!chunks_.back()->ends_window);

  window_ = chunks_.front()->place;
  ends_epoch_ = chunks_.back()->ends_epoch;
  for (std::uint32_t c = 0; c < chunks_.size(); ++c)
    for (std::uint32_t d = 0; d < chunks_[c]->documents.size(); ++d) order_.push_back({c, d});
  if (reader_.feed().shuffles_windows() && order_.size() > 1) {
    const std::vector<At> as_read = order_;
    const auto documents = static_cast<std::int64_t>(as_read.size());
    for (std::int64_t i = 0; i < documents; ++i)
      order_[static_cast<std::size_t>(i)] =
          as_read[static_cast<std::size_t>(reader_.feed().shuffled(window_, i, documents))];
  }
  next_ = static_cast<std::size_t>(std::exchange(skip_, 0));
  if (next_ > order_.size())
    fail_user("the training data have changed: {} documents were read where now {} stand", next_, order_.size());
  return true;
}

void Drawer::seek(const FeedPlace& place, std::int64_t empty_documents) {
  leave_window();
  skip_ = reader_.seek(place);
  place_ = place;
  any_in_epoch_ = place != FeedPlace{.epoch = place.epoch};
  empty_documents_ = empty_documents;
}

}  // namespace redline::data
