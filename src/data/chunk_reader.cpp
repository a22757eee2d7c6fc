// Chunks of a feed as items of OrderedWorkers, with the time that taking and making them is counted for.
#include "data/chunk_reader.h"

#include "data/ordered_workers.h"

namespace redline::data {
namespace {

constexpr std::size_t kMostAhead = 32;  // chunks of 2^16 tokens or 256 KiB of text: more than a step takes

// After an error in make(): the pieces before the bad one are good. A shuffled window that needs the pieces behind it
// meets the error first.
bool keeps_part(Chunk& chunk) {
  chunk.ends_epoch = false;
  return !chunk.pieces.empty();
}

}  // namespace

struct ChunkReader::Impl {
  std::unique_ptr<Feed> feed;
  PipelineCounters& counters;
  OrderedWorkers<Chunk> workers;

  Impl(std::unique_ptr<Feed> f, std::int64_t count, std::int64_t limit, PipelineCounters& c)
      : feed(std::move(f)),
        counters(c),
        workers({[this](Chunk& chunk) { return take(chunk); }, [this] { return maker(); }, keeps_part},
                {count, kMostAhead, limit}, counters.tokenize.waiting_ns) {}

  bool take(Chunk& chunk) {
    const StageTimer timer(counters.read.busy_ns);
    const bool more = feed->take(chunk);
    counters.read.items += chunk.raw.documents();
    return more;
  }

  std::function<void(Chunk&)> maker() {
    return [this, maker = std::shared_ptr(feed->maker())](Chunk& chunk) {
      const StageTimer timer(counters.tokenize.busy_ns);
      maker->make(chunk);
      const auto tokens = static_cast<std::int64_t>(chunk.tokens.size());
      counters.tokenize.items += static_cast<std::int64_t>(chunk.pieces.size());
      counters.tokenize.tokens += tokens;
      counters.read.tokens += tokens;  // known only now
    };
  }
};

ChunkReader::ChunkReader(std::unique_ptr<Feed> feed, std::int64_t workers, std::int64_t limit_bytes,
                         PipelineCounters& counters)
    : impl_(std::make_unique<Impl>(std::move(feed), workers, limit_bytes, counters)) {}

ChunkReader::~ChunkReader() = default;

void ChunkReader::stop() { impl_->workers.stop(); }

void ChunkReader::fetch(const std::vector<PieceId>& ids, Chunk& chunk) {
  impl_->workers.join();
  impl_->feed->fetch(ids, chunk);
}

std::int64_t ChunkReader::seek(const FeedPlace& place) {
  impl_->workers.restart();
  return impl_->feed->seek(place);
}

std::unique_ptr<Chunk> ChunkReader::next() {
  std::unique_ptr<Chunk> chunk;
  return impl_->workers.next(chunk) == OrderedWorkers<Chunk>::Got::item ? std::move(chunk) : nullptr;
}

void ChunkReader::give_back(std::unique_ptr<Chunk> chunk) { impl_->workers.give_back(std::move(chunk)); }

const Feed& ChunkReader::feed() const { return *impl_->feed; }
std::int64_t ChunkReader::ready() const { return impl_->workers.ready(); }
std::int64_t ChunkReader::held_bytes() const { return impl_->workers.held_bytes(); }
bool ChunkReader::over_limit() const { return impl_->workers.over_limit(); }

}  // namespace redline::data
