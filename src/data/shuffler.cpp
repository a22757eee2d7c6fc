// One window at a time. Pieces with random access have none: a chunk is drawn from as it stands.
#include "data/shuffler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"

namespace redline::data {
namespace {

constexpr std::int64_t kWindowTokens = 1 << 23;  // long rows make a window of fewer pieces

}  // namespace

void fail_nothing_to_predict() {
  fail_user("the training data hold no document of two tokens or more, so that there is nothing to predict");
}

std::optional<Shuffler::Drawn> Shuffler::draw(bool may_begin_epoch) {
  for (;;) {
    while (next_ < order_.size()) {
      const At at = order_[next_++];
      place_ = window_;
      place_.position += static_cast<std::int64_t>(next_);
      const Chunk& chunk = *chunks_[at.chunk];
      const Chunk::Piece& p = chunk.pieces[at.piece];
      const std::int64_t begin = at.piece == 0 ? 0 : chunk.pieces[at.piece - 1].end;
      passed_.truncated_tokens += p.dropped;
      if (begin == p.end) {
        ++passed_.empty_documents;
        continue;
      }
      any_in_epoch_ = true;
      const auto tokens = std::span<const std::int32_t>(chunk.tokens);
      return Drawn{p, tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(p.end - begin)),
                   p.after};
    }
    if (ends_epoch_) {
      if (!repeat_ || !may_begin_epoch) return std::nullopt;
      if (!std::exchange(any_in_epoch_, false)) fail_nothing_to_predict();
    }
    if (!next_window()) return std::nullopt;
  }
}

// A chunk that the next window begins in is kept, unless all go.
void Shuffler::leave_window(bool all) {
  const bool keeps = !all && !chunks_.empty() && rest_ < chunks_.back()->pieces.size();
  std::unique_ptr<Chunk> kept;
  if (keeps) {
    kept = std::move(chunks_.back());
    chunks_.pop_back();
  }
  for (auto& chunk : chunks_) reader_.give_back(std::move(chunk));
  chunks_.clear();
  if (keeps)
    chunks_.push_back(std::move(kept));
  else
    rest_ = 0;
  order_.clear();
  next_ = 0;
  window_tokens_ = 0;
  ends_epoch_ = false;
}

bool Shuffler::next_chunk() {
  const double start = steady_seconds();
  std::unique_ptr<Chunk> chunk = reader_.next();
  waited_ns_ += static_cast<std::int64_t>(1e9 * (steady_seconds() - start));
  if (!chunk) return false;
  chunks_.push_back(std::move(chunk));
  rest_ = 0;
  return true;
}

// Takes pieces of the last chunk until the window is full, which it is only between two documents.
void Shuffler::gather(std::int64_t most) {
  const Chunk& chunk = *chunks_.back();
  const auto index = static_cast<std::uint32_t>(chunks_.size() - 1);
  for (; rest_ < chunk.pieces.size(); ++rest_) {
    const Chunk::Piece& p = chunk.pieces[rest_];
    const bool full = static_cast<std::int64_t>(order_.size()) >= most || window_tokens_ >= kWindowTokens;
    if (most > 0 && p.begin == 0 && full) return;
    if (most > 0 && order_.empty()) window_ = {chunk.place.epoch, p.document, p.ordinal, 0};
    order_.push_back({index, static_cast<std::uint32_t>(rest_)});
    window_tokens_ += p.end - (rest_ == 0 ? 0 : chunk.pieces[rest_ - 1].end);
  }
}

bool Shuffler::next_window() {
  leave_window(false);
  const std::int64_t most = reader_.feed().window_pieces();
  next_ = std::numeric_limits<std::size_t>::max();  // nothing is drawn of a window that an error left half gathered
  if (chunks_.empty() && !next_chunk()) return false;
  window_ = chunks_.back()->place;
  for (;;) {
    gather(most);
    const Chunk& last = *chunks_.back();
    ends_epoch_ = last.ends_epoch && rest_ == last.pieces.size();
    const bool full = static_cast<std::int64_t>(order_.size()) >= most || window_tokens_ >= kWindowTokens;
    if (ends_epoch_ || full || rest_ < last.pieces.size()) break;
    if (!next_chunk()) return false;
  }
  if (reader_.feed().shuffles_windows() && order_.size() > 1) {
    const std::vector<At> as_read = order_;
    const auto pieces = static_cast<std::int64_t>(as_read.size());
    for (std::int64_t i = 0; i < pieces; ++i)
      order_[static_cast<std::size_t>(i)] =
          as_read[static_cast<std::size_t>(reader_.feed().shuffled(window_, i, pieces))];
  }
  next_ = static_cast<std::size_t>(std::exchange(skip_, 0));
  if (next_ > order_.size())
    fail_user("the training data have changed: {} pieces were read where now {} stand", next_, order_.size());
  return true;
}

void Shuffler::seek(const FeedPlace& place, Passed passed) {
  leave_window(true);
  skip_ = reader_.seek(place);
  place_ = place;
  any_in_epoch_ = place != FeedPlace{.epoch = place.epoch};
  passed_ = passed;
}

}  // namespace redline::data
