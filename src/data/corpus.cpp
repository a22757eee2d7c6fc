// Documents with random access: the ways of a source that can do no better than read whole documents, and their feeds.
// A position of the order is all there is to decide, so chunks cost nothing to take and are read by whoever is free.
#include "data/corpus.h"

#include <algorithm>
#include <atomic>

#include "base/error.h"

namespace redline::data {
namespace {

// Large enough that handing a chunk over (some microseconds) is nothing, small enough that the first batch comes at
// once.
constexpr std::int64_t kChunkTokens = 1 << 16;
constexpr std::int64_t kFirstChunk = 16, kMostAtOnce = 1024;

// How much to read at once, by what was read so far: where chunks are cut changes nothing but the time.
class ChunkSize {
 public:
  std::int64_t next() const {
    const std::int64_t count = count_, tokens = tokens_;
    if (tokens == 0) return kFirstChunk;
    return std::clamp<std::int64_t>(kChunkTokens * count / tokens, 1, kMostAtOnce);
  }
  void add(const Chunk& chunk) {
    count_ += chunk.count;
    tokens_ += static_cast<std::int64_t>(chunk.tokens.size());
  }

 private:
  std::atomic<std::int64_t> count_{0}, tokens_{0};
};

// Adds the piece that begins at `begin`, with its target: the token that follows is read with it.
void append_piece(const DocumentSource& source, const PieceNumbers::Place& at, const Cut& cut, Chunk& chunk) {
  Chunk::Piece piece{{at.document, at.begin}, 0, 0, 0, kNoTarget};
  const std::int64_t end = cut.end(at.begin, at.length);
  if (end - at.begin > 1 || end < at.length) {
    source.append(at.document, at.begin, std::min(end + 1, at.length) - at.begin, chunk.tokens);
    if (end < at.length) {
      piece.after = chunk.tokens.back();
      chunk.tokens.pop_back();
    }
    if (cut.truncate) piece.dropped = at.length - end;
  }
  piece.end = static_cast<std::int64_t>(chunk.tokens.size());
  chunk.pieces.push_back(piece);
}

// Reads these pieces (or the rest of them) in their order. They were drawn once, so they have tokens to learn from.
void fetch_pieces(const DocumentSource& source, const std::vector<PieceId>& ids, const Cut& cut, Chunk& chunk) {
  chunk.clear();
  for (const PieceId& id : ids) append_piece(source, place_of(source, id, cut), cut, chunk);
}

// Pieces of a known number of documents, in any order.
class PieceFeed final : public Feed {
 public:
  PieceFeed(const DocumentSource& source, const FeedOptions& options)
      : source_(source), options_(options), order_(source, options.cut, options.shuffle, options.seed) {}

  std::int64_t seek(const FeedPlace& place) override {
    order_.require(place);
    next_ = {.epoch = place.epoch, .position = place.position};
    ended_ = false;
    return 0;
  }

  // The end of an epoch is a chunk's, and a place at the very end gives a chunk of nothing: whoever draws from it
  // decides when the next epoch may begin.
  bool take(Chunk& chunk) override {
    if (ended_) return false;
    chunk.place = next_;
    chunk.count = std::min(size_.next(), order_.pieces() - next_.position);
    next_.position += chunk.count;
    chunk.ends_epoch = next_.position == order_.pieces();
    if (chunk.ends_epoch) {
      next_ = {.epoch = next_.epoch + 1};
      ended_ = !options_.repeat;
    }
    return true;
  }

  std::unique_ptr<ChunkMaker> maker() override { return std::make_unique<Maker>(*this); }
  void fetch(const std::vector<PieceId>& ids, Chunk& chunk) override {
    fetch_pieces(source_, ids, options_.cut, chunk);
  }
  std::string_view maker_stage() const override { return "read"; }

  std::optional<EpochSize> size() const override { return order_.size(); }
  std::vector<PieceLength> first_lengths(std::int64_t most) const override { return order_.first_lengths(most); }
  std::optional<double> share_before(const FeedPlace& place) const override { return order_.share_before(place); }

 private:
  class Maker final : public ChunkMaker {
   public:
    explicit Maker(PieceFeed& feed) : feed_(feed) {}
    void make(Chunk& chunk) override {
      for (std::int64_t i = 0; i < chunk.count; ++i)
        append_piece(feed_.source_, feed_.order_.at(chunk.place.epoch, chunk.place.position + i), feed_.options_.cut,
                     chunk);
      feed_.size_.add(chunk);
    }

   private:
    PieceFeed& feed_;
  };

  const DocumentSource& source_;
  FeedOptions options_;
  PieceOrder order_;
  FeedPlace next_;
  bool ended_ = false;
  ChunkSize size_;
};

// Documents without end, by their index. How many pieces stand before one is not known: each is a window of its own.
class EndlessFeed final : public Feed {
 public:
  EndlessFeed(const DocumentSource& source, const FeedOptions& options) : source_(source), options_(options) {}

  std::int64_t seek(const FeedPlace& place) override {
    if (place.epoch != 0 || place.window < 0 || place.position < 0)
      fail_user("{}: there is no piece {} of document {}", source_.name(), place.position, place.window);
    next_ = place.window;
    return place.position;
  }
  bool take(Chunk& chunk) override {
    chunk.place = {};
    chunk.ordinal = next_;
    chunk.count = size_.next();
    chunk.ends_epoch = false;
    next_ += chunk.count;
    return true;
  }
  std::unique_ptr<ChunkMaker> maker() override { return std::make_unique<Maker>(*this); }
  void fetch(const std::vector<PieceId>& ids, Chunk& chunk) override {
    fetch_pieces(source_, ids, options_.cut, chunk);
  }
  std::int64_t window_pieces() const override { return 1; }
  std::string_view maker_stage() const override { return "read"; }

 private:
  class Maker final : public ChunkMaker {
   public:
    explicit Maker(EndlessFeed& feed) : feed_(feed) {}
    void make(Chunk& chunk) override {
      for (std::int64_t i = 0; i < chunk.count; ++i) {
        const std::int64_t id = chunk.ordinal + i;
        feed_.source_.read(id, document_);
        const auto from = static_cast<std::int64_t>(chunk.tokens.size());
        chunk.tokens.insert(chunk.tokens.end(), document_.begin(), document_.end());
        chunk.cut_document(id, 0, from, feed_.options_.cut);
      }
      feed_.size_.add(chunk);
    }

   private:
    EndlessFeed& feed_;
    std::vector<std::int32_t> document_;
  };

  const DocumentSource& source_;
  FeedOptions options_;
  std::int64_t next_ = 0;
  ChunkSize size_;
};

}  // namespace

void DocumentSource::append(std::int64_t index, std::int64_t begin, std::int64_t count,
                            std::vector<std::int32_t>& tokens) const {
  std::vector<std::int32_t> whole;
  read(index, whole);
  const auto from = whole.begin() + begin;
  tokens.insert(tokens.end(), from, from + count);
}

std::int64_t DocumentSource::length(std::int64_t index) const {
  std::vector<std::int32_t> tokens;
  read(index, tokens);
  return static_cast<std::int64_t>(tokens.size());
}

std::vector<std::int32_t> bytes_of_ids(const Tokenizer& tokenizer, std::optional<std::int32_t> end) {
  std::vector<std::int32_t> bytes(static_cast<std::size_t>(tokenizer.vocabulary()));
  for (std::size_t id = 0; id < bytes.size(); ++id) bytes[id] = tokenizer.text_bytes(static_cast<std::int32_t>(id));
  if (end) bytes[static_cast<std::size_t>(*end)] = 0;
  return bytes;
}

void require_same_beginning(const Corpus& corpus, std::string_view name, const Corpus& other,
                            std::string_view other_name) {
  const auto one = corpus.beginning(), two = other.beginning();
  if (!one || !two || *one == *two) return;
  const auto in_words = [](const Corpus& c, const std::vector<std::int32_t>& begin) {
    return begin.empty() ? std::string("without a token for it") : fmt::format("with {}", c.decode(begin));
  };
  fail_user(
      "documents of {} ({}) begin {} and those of {} ({}) {}, so that losses on one say nothing about the other; set "
      "data.bos for text, and prepare folders again with --bos",
      name, corpus.name(), in_words(corpus, *one), other_name, other.name(), in_words(other, *two));
}

std::unique_ptr<Feed> DocumentSource::feed(const FeedOptions& options) const {
  if (endless()) return std::make_unique<EndlessFeed>(*this, options);
  return std::make_unique<PieceFeed>(*this, options);
}

}  // namespace redline::data
