// The feed of documents with random access: a position of the order is all there is to decide, so chunks cost nothing to
// take and are read by whoever is free.
#include "data/feed.h"

#include <algorithm>

#include "base/error.h"
#include "data/order.h"
#include "data/source.h"

namespace redline::data {
namespace {

// Large enough that handing a chunk over (some microseconds) is nothing, small enough that the first batch comes at once.
constexpr std::int64_t kChunkTokens = 1 << 16;
constexpr std::int64_t kFirstChunk = 16, kMostDocuments = 1024;

class IndexedFeed final : public Feed {
 public:
  IndexedFeed(const DocumentSource& source, const FeedOptions& options) : source_(source), options_(options) {
    const auto [rank, ranks] = options.share;
    REDLINE_CHECK(rank >= 0 && rank < ranks, "rank {} of {}", rank, ranks);
    const std::int64_t documents = source.documents();
    if (documents == 0) return;
    of_epoch_ = (documents - rank + ranks - 1) / ranks;
    if (of_epoch_ <= 0)
      fail_user("{}: {} documents are too few for {} ranks; give more, or split them", source.name(), documents, ranks);
  }

  std::int64_t seek(const FeedPlace& place) override {
    if (place.epoch < 0 || place.position < 0 || (of_epoch_ > 0 && place.position > of_epoch_))
      fail_user("{}: there is no document {} of epoch {}", source_.name(), place.position, place.epoch);
    next_ = {.epoch = place.epoch, .position = place.position};
    ended_ = false;
    return 0;
  }

  // The end of an epoch is a chunk's, and a place at the very end gives a chunk of nothing: whoever draws from it decides
  // when the next epoch may begin.
  bool take(Chunk& chunk) override {
    if (ended_) return false;
    chunk.place = next_;
    chunk.count = documents_at_once();
    if (of_epoch_ > 0) chunk.count = std::min(chunk.count, of_epoch_ - next_.position);
    chunk.ends_window = true;
    next_.position += chunk.count;
    chunk.ends_epoch = of_epoch_ > 0 && next_.position == of_epoch_;
    if (chunk.ends_epoch) {
      next_ = {.epoch = next_.epoch + 1};
      ended_ = !options_.repeat;
    }
    return true;
  }

  std::unique_ptr<ChunkMaker> maker() override { return std::make_unique<Maker>(*this); }

  void fetch(const std::vector<std::int64_t>& ids, Chunk& chunk) override {
    chunk.clear();
    std::vector<std::int32_t> document;
    for (const std::int64_t id : ids) {
      if (id < 0 || (source_.documents() != 0 && id >= source_.documents()))
        fail_user("{}: there is no document {}", source_.name(), id);
      append(id, document, chunk);
    }
  }

  std::string_view maker_stage() const override { return "read"; }

 private:
  class Maker final : public ChunkMaker {
   public:
    explicit Maker(IndexedFeed& feed) : feed_(feed) {}
    void make(Chunk& chunk) override {
      for (std::int64_t i = 0; i < chunk.count; ++i)
        feed_.append(feed_.id_at(chunk.place.epoch, chunk.place.position + i), document_, chunk);
      feed_.documents_read_ += chunk.count;
      feed_.tokens_read_ += static_cast<std::int64_t>(chunk.tokens.size());
    }

   private:
    IndexedFeed& feed_;
    std::vector<std::int32_t> document_;
  };

  std::int64_t id_at(std::int64_t epoch, std::int64_t position) const {
    const std::int64_t documents = source_.documents();
    const std::int64_t at = options_.share.rank + position * options_.share.ranks;
    if (documents == 0 || !options_.shuffle) return at;
    return document_at(epoch * documents + at, documents, source_.order_seed());
  }

  void append(std::int64_t id, std::vector<std::int32_t>& document, Chunk& chunk) const {
    source_.read(id, document);
    chunk.tokens.insert(chunk.tokens.end(), document.begin(), document.end());
    chunk.documents.push_back({id, static_cast<std::int64_t>(chunk.tokens.size()), source_.token_after(id)});
  }

  // By what documents were like so far: where chunks are cut changes nothing but the time.
  std::int64_t documents_at_once() const {
    const std::int64_t documents = documents_read_, tokens = tokens_read_;
    if (tokens == 0) return kFirstChunk;
    return std::clamp<std::int64_t>(kChunkTokens * documents / tokens, 1, kMostDocuments);
  }

  const DocumentSource& source_;
  FeedOptions options_;
  std::int64_t of_epoch_ = 0;  // documents of an epoch that are this part's; 0: endless
  FeedPlace next_;
  bool ended_ = false;
  std::atomic<std::int64_t> documents_read_{0}, tokens_read_{0};
};

}  // namespace

std::int64_t Chunk::bytes() const {
  return static_cast<std::int64_t>(sizeof(Chunk) + tokens.capacity() * sizeof(tokens[0]) +
                                   documents.capacity() * sizeof(Document) + raw.bytes.capacity() +
                                   raw.ends.capacity() * sizeof(raw.ends[0]));
}

void Chunk::clear() {
  tokens.clear();
  documents.clear();
  raw.bytes.clear();
  raw.ends.clear();
}

std::unique_ptr<Feed> DocumentSource::feed(const FeedOptions& options) const {
  return std::make_unique<IndexedFeed>(*this, options);
}

}  // namespace redline::data
