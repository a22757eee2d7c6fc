// A source by index decides and reads apart: packing costs 0.3 to 0.5 us a piece on a Neoverse V1, 1.2 ms for 64
// batches of 8 rows of 1024.
#include "data/batch_maker.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"

namespace redline::data {
namespace {

constexpr std::int64_t kWindowTokens = 1 << 23;  // long rows make a window of fewer pieces

// Pieces from the chunks of a feed, with their tokens. It gathers one window at a time and shuffles it where the feed
// asks for it. Pieces with random access have no windows: a chunk is drawn from as it stands.
class Shuffler final : public PieceSource {
 public:
  Shuffler(std::unique_ptr<Feed> feed, bool repeat, std::int64_t workers, std::int64_t limit_bytes,
           PipelineCounters& counters)
      : PieceSource(repeat), feed_(std::move(feed)), reader_(*feed_, workers, limit_bytes, counters) {}

  ChunkReader& reader() { return reader_; }
  std::int64_t waited_ns() const override { return waited_ns_; }
  std::optional<EpochSize> size() const override { return feed_->size(); }
  std::vector<PieceLength> first_lengths(std::int64_t most) const override { return feed_->first_lengths(most); }
  std::optional<double> share_before(const FeedPlace& place) const override { return feed_->share_before(place); }

  std::optional<Drawn> draw(bool may_begin_epoch) override {
    for (;;) {
      while (next_ < order_.size()) {
        const At at = order_[next_++];
        place_ = window_;
        place_.position += static_cast<std::int64_t>(next_);
        const Chunk& chunk = *chunks_[at.chunk];
        passed_.truncated_tokens += chunk.pieces[at.piece].dropped;
        const Drawn drawn = drawn_from(chunk, at.piece);
        if (drawn.length == 0) {
          ++passed_.empty_documents;
          continue;
        }
        any_in_epoch_ = true;
        return drawn;
      }
      if (ends_epoch_ && !begins_epoch(may_begin_epoch)) return std::nullopt;
      if (!next_window()) return std::nullopt;
    }
  }

  void draw_again(const std::vector<PieceId>& ids, const std::function<void(const Drawn&)>& take) override {
    reader_.restart();
    Chunk chunk;
    feed_->fetch(ids, chunk);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      Drawn drawn = drawn_from(chunk, i);
      drawn.id = ids[i];
      take(drawn);
    }
  }

 private:
  struct At {
    std::uint32_t chunk = 0, piece = 0;
  };

  static Drawn drawn_from(const Chunk& chunk, std::size_t piece) {
    const Chunk::Piece& p = chunk.pieces[piece];
    const std::span<const std::int32_t> tokens = chunk.tokens_of(piece);
    return {p, static_cast<std::int64_t>(tokens.size()), p.after == kNoTarget, tokens, p.after};
  }

  void go_to(const FeedPlace& place) override {
    leave_window(true);
    reader_.restart();
    skip_ = feed_->seek(place);
  }

  // A chunk that the next window begins in is kept, unless all go.
  void leave_window(bool all) {
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

  bool next_chunk() {
    const double start = steady_seconds();
    std::unique_ptr<Chunk> chunk = reader_.next();
    waited_ns_ += static_cast<std::int64_t>(1e9 * (steady_seconds() - start));
    if (!chunk) return false;
    chunks_.push_back(std::move(chunk));
    rest_ = 0;
    return true;
  }

  // Takes pieces of the last chunk until the window is full, which it is only between two documents.
  void gather(std::int64_t most) {
    const Chunk& chunk = *chunks_.back();
    const auto index = static_cast<std::uint32_t>(chunks_.size() - 1);
    for (; rest_ < chunk.pieces.size(); ++rest_) {
      const Chunk::Piece& p = chunk.pieces[rest_];
      if (most > 0 && p.begin == 0 && full(most)) return;
      if (most > 0 && order_.empty()) window_ = {chunk.place.epoch, p.document, p.ordinal, 0};
      order_.push_back({index, static_cast<std::uint32_t>(rest_)});
      window_tokens_ += static_cast<std::int64_t>(chunk.tokens_of(rest_).size());
    }
  }
  bool full(std::int64_t most) const {
    return static_cast<std::int64_t>(order_.size()) >= most || window_tokens_ >= kWindowTokens;
  }

  bool next_window() {
    leave_window(false);
    const std::int64_t most = feed_->window_pieces();
    next_ = std::numeric_limits<std::size_t>::max();  // nothing is drawn of a window that an error left half gathered
    if (chunks_.empty() && !next_chunk()) return false;
    window_ = chunks_.back()->place;
    for (;;) {
      gather(most);
      const Chunk& last = *chunks_.back();
      ends_epoch_ = last.ends_epoch && rest_ == last.pieces.size();
      if (ends_epoch_ || full(most) || rest_ < last.pieces.size()) break;
      if (!next_chunk()) return false;
    }
    if (feed_->shuffles_windows() && order_.size() > 1) {
      const std::vector<At> as_read = order_;
      const auto pieces = static_cast<std::int64_t>(as_read.size());
      for (std::int64_t i = 0; i < pieces; ++i)
        order_[static_cast<std::size_t>(i)] = as_read[static_cast<std::size_t>(feed_->shuffled(window_, i, pieces))];
    }
    next_ = static_cast<std::size_t>(std::exchange(skip_, 0));
    if (next_ > order_.size())
      fail_user("the training data have changed: {} pieces were read where now {} stand", next_, order_.size());
    return true;
  }

  std::unique_ptr<Feed> feed_;
  ChunkReader reader_;
  std::vector<std::unique_ptr<Chunk>> chunks_;  // of the window
  std::size_t rest_ = 0;                        // the first piece of the last of them that is not of this window
  std::vector<At> order_;
  std::int64_t window_tokens_ = 0;
  FeedPlace window_;
  bool ends_epoch_ = false;
  std::size_t next_ = 0;   // in order_
  std::int64_t skip_ = 0;  // pieces of the window that comes which were drawn before
  std::int64_t waited_ns_ = 0;
};

// Pieces of a known number of documents, by their lengths: nothing is read.
class IndexedPieces final : public PieceSource {
 public:
  IndexedPieces(const DocumentSource& documents, const FeedOptions& options)
      : PieceSource(options.repeat),
        documents_(documents),
        cut_(options.cut),
        order_(documents, options.cut, options.shuffle, options.seed) {}

  std::optional<EpochSize> size() const override { return order_.size(); }
  std::vector<PieceLength> first_lengths(std::int64_t most) const override { return order_.first_lengths(most); }
  std::optional<double> share_before(const FeedPlace& place) const override { return order_.share_before(place); }

  std::optional<Drawn> draw(bool may_begin_epoch) override {
    for (;;) {
      if (place_.position == order_.pieces()) {
        if (!begins_epoch(may_begin_epoch)) return std::nullopt;
        place_ = {.epoch = place_.epoch + 1};
      }
      const PieceNumbers::Place at = order_.at(place_.epoch, place_.position++);
      if (at.length < 2) {
        ++passed_.empty_documents;
        continue;
      }
      if (cut_.truncate) passed_.truncated_tokens += at.length - cut_.end(at.begin, at.length);
      any_in_epoch_ = true;
      return drawn_at(at);
    }
  }

  void draw_again(const std::vector<PieceId>& ids, const std::function<void(const Drawn&)>& take) override {
    for (const PieceId& id : ids) {
      Drawn drawn = drawn_at(place_of(documents_, id, cut_));
      if (drawn.length == 1 && drawn.ends) drawn.length = 0;  // a last token alone is never drawn: it has no target
      drawn.id = id;
      take(drawn);
    }
  }

 private:
  void go_to(const FeedPlace& place) override { order_.require(place); }
  Drawn drawn_at(const PieceNumbers::Place& at) const {
    const std::int64_t end = cut_.end(at.begin, at.length);
    return {{at.document, at.begin}, end - at.begin, end == at.length};
  }

  const DocumentSource& documents_;
  Cut cut_;
  PieceOrder order_;
};

class StreamedBatches final : public BatchMaker {
 public:
  StreamedBatches(RoundPacker::Sources sources, std::vector<ChunkReader*> readers, MixtureSchedule schedule,
                  const PackerSettings& settings, Replica replica, StageCounters& counters)
      : BatchMaker(std::move(sources), std::move(schedule), settings, replica, counters) {
    readers_ = std::move(readers);
    restore({});
  }

  LoaderState state() const override { return rounds_.state(); }
  bool restore(const LoaderState& state) override { return rounds_.restore(state); }

 private:
  std::int64_t waited_ns() const override { return rounds_.waited_ns(); }
  // The target of a last token is what follows in the document, whether or not a batch will hold that.
  std::int64_t add_pieces(Batch& batch) override {
    return rounds_.pack([&](const PlacedPiece& placed, const RoundPacker::Slot& slot) {
      const auto begin = static_cast<std::size_t>(placed.begin), length = static_cast<std::size_t>(placed.length);
      const std::int32_t after = begin + length < slot.tokens.size() ? slot.tokens[begin + length] : slot.after;
      add(batch, std::span(slot.tokens).subspan(begin, length), after, slot.id);
    });
  }
};

// A chunk is this rank's batch of a round. Whoever takes it packs, one round after another; any thread reads.
class IndexedBatches final : public BatchMaker, private ChunkSource {
 public:
  IndexedBatches(std::vector<const DocumentSource*> documents, RoundPacker::Sources sources, MixtureSchedule schedule,
                 const PackerSettings& settings, Replica replica, std::int64_t workers, std::int64_t limit_bytes,
                 PipelineCounters& counters)
      : BatchMaker(std::move(sources), std::move(schedule), settings, replica, counters.pack),
        documents_(std::move(documents)),
        reader_(*this, workers, limit_bytes, counters) {
    readers_ = {&reader_};
    restore({});
  }

  LoaderState state() const override { return state_; }
  bool restore(const LoaderState& state) override {
    reader_.restart();  // its threads have ended, so that the packer may be asked
    ended_ = false;
    if (!rounds_.restore(state)) return false;
    state_ = state;
    return true;
  }

 private:
  // Reads the pieces that were placed into this rank's batch, each with the token that follows it.
  class Reader final : public ChunkMaker {
   public:
    explicit Reader(const std::vector<const DocumentSource*>& documents) : documents_(documents) {}
    void make(Chunk& chunk) override try {
      std::int64_t begin = 0;
      for (Chunk::Piece& p : chunk.pieces) {
        const std::int64_t length = p.end - std::exchange(begin, p.end);
        const bool has_target = p.after != kNoTarget;
        documents_[static_cast<std::size_t>(p.source)]->append(p.document, p.begin, length + (has_target ? 1 : 0),
                                                               chunk.tokens);
        if (has_target) {
          p.after = chunk.tokens.back();
          chunk.tokens.pop_back();
        }
      }
    } catch (...) {
      chunk.pieces.clear();  // a part of a batch is of no use
      throw;
    }

   private:
    const std::vector<const DocumentSource*>& documents_;
  };

  // Packs a round. The end is a chunk too, of count 0, which carries the state after all documents.
  bool take(Chunk& chunk) override {
    if (ended_) return false;
    std::int64_t end = 0;
    chunk.count = rounds_.pack([&](const PlacedPiece& placed, const RoundPacker::Slot& slot) {
      const bool has_target = placed.begin + placed.length < slot.length || !slot.ends;
      PieceId id = slot.id;
      id.begin += placed.begin;
      end += placed.length;
      chunk.pieces.push_back({id, 0, end, 0, has_target ? 0 : kNoTarget});
    });
    ended_ = chunk.count == 0;
    chunk.state_after = rounds_.state();
    return true;
  }
  std::unique_ptr<ChunkMaker> maker() override { return std::make_unique<Reader>(documents_); }
  std::string_view maker_stage() const override { return "read"; }

  std::int64_t waited_ns() const override { return waited_ns_; }
  std::int64_t add_pieces(Batch& batch) override {
    const double start = steady_seconds();
    std::unique_ptr<Chunk> chunk = reader_.next();
    waited_ns_ += static_cast<std::int64_t>(1e9 * (steady_seconds() - start));
    if (!chunk) return 0;
    for (std::size_t i = 0; i < chunk->pieces.size(); ++i)
      add(batch, chunk->tokens_of(i), chunk->pieces[i].after, chunk->pieces[i]);
    const std::int64_t pieces = chunk->count;
    std::swap(state_, chunk->state_after);
    reader_.give_back(std::move(chunk));
    return pieces;
  }

  const std::vector<const DocumentSource*> documents_;
  bool ended_ = false;
  LoaderState state_;
  std::int64_t waited_ns_ = 0;
  ChunkReader reader_;
};

}  // namespace

void PieceSource::seek(const FeedPlace& place, Passed passed) {
  go_to(place);
  place_ = place;
  any_in_epoch_ = place != FeedPlace{.epoch = place.epoch};
  passed_ = passed;
}

bool PieceSource::begins_epoch(bool may_begin_epoch) {
  if (!repeat_ || !may_begin_epoch) return false;
  if (!std::exchange(any_in_epoch_, false))
    fail_user("the training data hold no document of two tokens or more, so that there is nothing to predict");
  return true;
}

RoundPacker::RoundPacker(Sources sources, MixtureSchedule schedule, const PackerSettings& settings, Replica replica)
    : sources_(std::move(sources)), schedule_(std::move(schedule)), packer_(settings), replica_(replica) {
  REDLINE_CHECK(sources_.size() == schedule_.sources(), "{} of {} sources", sources_.size(), schedule_.sources());
}

std::int64_t RoundPacker::pack(const Take& take) {
  std::int64_t pieces = 0;
  for (std::int64_t i = 0; i < replica_.ranks; ++i) pieces += pack_one(i == replica_.rank ? &take : nullptr);
  return pieces;
}

// One batch, whose pieces are given where it is this rank's. Returns how many there are.
std::int64_t RoundPacker::pack_one(const Take* take) {
  for (std::int64_t pieces = 0;; ++pieces) {
    while (packer_.wants() && draw()) continue;
    const std::optional<PlacedPiece> placed = packer_.place();
    if (!placed) return pieces;
    const auto slot = static_cast<std::size_t>(placed->piece);
    if (take) (*take)(*placed, slots_[slot]);
    if (placed->last) free_.push_back(slot);
  }
}

// Sources of a mixture begin their epochs when they come to it; where documents come once, the mixture ends with the
// first source that has none left when it is its turn.
bool RoundPacker::draw() {
  if (enough_) return false;
  const std::size_t source = schedule_.next();
  std::optional<PieceSource::Drawn> drawn = sources_[source]->draw(packer_.waiting().empty() || schedule_.several());
  if (!drawn) return false;
  const std::int64_t most = packer_.settings().most_tokens;
  enough_ = most > 0 && drawn_tokens_ > 0 && drawn_tokens_ + drawn->length > most;
  if (enough_) return false;
  drawn_tokens_ += drawn->length;
  drawn->id.source = static_cast<std::int64_t>(source);
  schedule_.drew(source, drawn->length);
  offer(store(*drawn));
  return true;
}

std::size_t RoundPacker::store(const PieceSource::Drawn& drawn) {
  if (free_.empty()) {
    free_.push_back(slots_.size());
    slots_.emplace_back();
  }
  const std::size_t at = free_.back();
  free_.pop_back();
  Slot& slot = slots_[at];
  slot.id = drawn.id;
  slot.length = drawn.length;
  slot.ends = drawn.ends;
  slot.tokens.assign(drawn.tokens.begin(), drawn.tokens.end());
  slot.after = drawn.after;
  return at;
}

void RoundPacker::offer(std::size_t slot) {
  packer_.offer(static_cast<std::int64_t>(slot), slots_[slot].length, slots_[slot].ends);
}

LoaderState RoundPacker::state() const {
  LoaderState state;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const PieceSource& source = *sources_[i];
    if (schedule_.several())
      state.sources.push_back({source.place(), schedule_.tokens(i)});
    else
      state.next = source.place();
    state.truncated_tokens += source.passed().truncated_tokens;
    state.empty_documents += source.passed().empty_documents;
  }
  for (const Packer::Waiting& w : packer_.waiting()) {
    PieceId id = slots_[static_cast<std::size_t>(w.piece)].id;
    id.begin += w.begin;
    state.waiting.push_back(id);
  }
  return state;
}

bool RoundPacker::restore(const LoaderState& state) {
  packer_.clear();
  drawn_tokens_ = 0;
  enough_ = false;
  free_.clear();
  for (std::size_t i = 0; i < slots_.size(); ++i) free_.push_back(i);
  if (state.waiting.size() > packer_.lookahead() || !schedule_.fits(state)) return false;

  // Each source gives its own together; they wait in the order of the state.
  std::vector<std::vector<PieceId>> ids(sources_.size());
  for (const PieceId& id : state.waiting) ids[static_cast<std::size_t>(id.source)].push_back(id);
  std::vector<std::vector<std::size_t>> slots(sources_.size());
  for (std::size_t i = 0; i < sources_.size(); ++i)
    if (!ids[i].empty())
      sources_[i]->draw_again(ids[i], [&](const PieceSource::Drawn& drawn) { slots[i].push_back(store(drawn)); });
  std::vector<std::size_t> next(sources_.size());
  for (const PieceId& id : state.waiting) {
    const auto source = static_cast<std::size_t>(id.source);
    const std::size_t slot = slots[source][next[source]++];
    if (slots_[slot].length == 0) return false;
    offer(slot);
  }

  schedule_.restore(state);
  PieceSource::Passed passed{state.truncated_tokens, state.empty_documents};  // of all: the first counts on
  for (std::size_t i = 0; i < sources_.size(); ++i)
    sources_[i]->seek(state.sources.empty() ? state.next : state.sources[i].next, std::exchange(passed, {}));
  return true;
}

std::int64_t RoundPacker::waited_ns() const {
  std::int64_t sum = 0;
  for (const auto& source : sources_) sum += source->waited_ns();
  return sum;
}

BatchMaker::BatchMaker(RoundPacker::Sources sources, MixtureSchedule schedule, const PackerSettings& settings,
                       Replica replica, StageCounters& counters)
    : rounds_(std::move(sources), std::move(schedule), settings, replica), counters_(counters) {}

bool BatchMaker::fill(Batch& batch) {
  const double start = steady_seconds();
  const std::int64_t waited = waited_ns();
  batch.restart();
  const std::int64_t pieces = add_pieces(batch);
  batch.finish();
  const std::int64_t more_waited = waited_ns() - waited;
  counters_.items += batch.documents;
  counters_.tokens += batch.real_tokens;
  counters_.waiting_ns += more_waited;
  counters_.busy_ns += static_cast<std::int64_t>(1e9 * (steady_seconds() - start)) - more_waited;
  return pieces > 0;
}

void BatchMaker::add(Batch& batch, std::span<const std::int32_t> tokens, std::int32_t after, const PieceId& id) const {
  const bool added = batch.add(tokens, after, rounds_.number(id));
  REDLINE_CHECK(added, "a piece of {} tokens was placed into room for {}", tokens.size(), batch.room());
}

std::int64_t BatchMaker::workers() const {
  std::int64_t sum = 0;
  for (const ChunkReader* reader : readers_) sum += reader->workers();
  return sum;
}

std::string_view BatchMaker::stage() const {
  std::string_view stage;
  for (const ChunkReader* reader : readers_)
    if (stage != "tokenize") stage = reader->stage();
  return stage;
}

// One rank reads every document, so that its chunks need not know of batches.
std::unique_ptr<BatchMaker> make_batch_maker(const std::vector<OrderedCorpus>& sources, MixtureSchedule schedule,
                                             const PackerSettings& settings, Replica replica, std::int64_t workers,
                                             std::int64_t limit_bytes, PipelineCounters& counters) {
  std::vector<const DocumentSource*> documents;
  for (const auto& [corpus, order] : sources) {
    const auto* by_index = dynamic_cast<const DocumentSource*>(corpus);
    if (by_index && !by_index->endless()) documents.push_back(by_index);
  }
  if (replica.ranks > 1 && documents.size() == sources.size()) {
    RoundPacker::Sources pieces;
    for (std::size_t i = 0; i < sources.size(); ++i)
      pieces.push_back(std::make_unique<IndexedPieces>(*documents[i], sources[i].order));
    return std::make_unique<IndexedBatches>(std::move(documents), std::move(pieces), std::move(schedule), settings,
                                            replica, workers, limit_bytes, counters);
  }
  const auto many = static_cast<std::int64_t>(sources.size());
  RoundPacker::Sources shufflers;
  std::vector<ChunkReader*> readers;
  for (std::int64_t i = 0; i < many; ++i) {
    std::int64_t own = workers * (i + 1) / many - workers * i / many;
    if (workers > 0) own = std::max<std::int64_t>(own, 1);
    const auto& [corpus, order] = sources[static_cast<std::size_t>(i)];
    auto shuffler = std::make_unique<Shuffler>(corpus->feed(order), order.repeat, own, limit_bytes / many, counters);
    readers.push_back(&shuffler->reader());
    shufflers.push_back(std::move(shuffler));
  }
  return std::make_unique<StreamedBatches>(std::move(shufflers), std::move(readers), std::move(schedule), settings,
                                           replica, counters.pack);
}

}  // namespace redline::data
