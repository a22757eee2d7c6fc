// Chunks, and the threads that make them: items of OrderedWorkers, with the time that taking and making them is counted
// for.
#include "data/feed.h"

#include <algorithm>
#include <utility>

#include "data/batch.h"
#include "data/ordered_workers.h"

namespace redline::data {
namespace {

constexpr std::size_t kMostAhead = 32;  // chunks of 2^16 tokens or 256 KiB of text: more than a step takes

// After an error in make(): the pieces before the bad one are good. A shuffled window that needs the pieces after it
// meets the error first.
bool keeps_part(Chunk& chunk) {
  chunk.ends_epoch = false;
  return !chunk.pieces.empty();
}

}  // namespace

void Chunk::cut_document(std::int64_t id, std::int64_t document_ordinal, std::int64_t from, const Cut& cut) {
  const std::int64_t length = static_cast<std::int64_t>(tokens.size()) - from, parts = cut.pieces(length);
  for (std::int64_t i = 0, begin = 0; i < parts; ++i) {
    Piece piece{{id, begin}, document_ordinal, from, 0, kNoTarget};
    if (length > 1) {
      begin = cut.end(begin, length);
      piece.end = from + begin;
      if (begin < length) piece.after = tokens[static_cast<std::size_t>(piece.end)];
    }
    pieces.push_back(piece);
  }
  if (cut.truncate) pieces.back().dropped = std::max<std::int64_t>(length - cut.row, 0);
  tokens.resize(static_cast<std::size_t>(pieces.back().end));
}

std::int64_t Chunk::bytes() const {
  return static_cast<std::int64_t>(sizeof(Chunk) + tokens.capacity() * sizeof(tokens[0]) +
                                   pieces.capacity() * sizeof(Piece) +
                                   state_after.waiting.capacity() * sizeof(PieceId) + raw.bytes.capacity() +
                                   raw.ends.capacity() * sizeof(raw.ends[0]));
}

void Chunk::clear() {
  tokens.clear();
  pieces.clear();
  raw.bytes.clear();
  raw.ends.clear();
}

struct ChunkReader::Impl {
  ChunkSource& source;
  const std::int64_t count;
  PipelineCounters& counters;
  OrderedWorkers<Chunk> workers;

  Impl(ChunkSource& s, std::int64_t n, std::int64_t limit, PipelineCounters& c)
      : source(s),
        count(n),
        counters(c),
        workers({[this](Chunk& chunk) { return take(chunk); }, [this] { return maker(); }, keeps_part},
                {count, kMostAhead, limit}, counters.tokenize.waiting_ns) {}

  bool take(Chunk& chunk) {
    const StageTimer timer(counters.read.busy_ns);
    const bool more = source.take(chunk);
    counters.read.items += chunk.raw.documents();
    return more;
  }

  std::function<void(Chunk&)> maker() {
    return [this, maker = std::shared_ptr(source.maker())](Chunk& chunk) {
      const StageTimer timer(counters.tokenize.busy_ns);
      maker->make(chunk);
      const auto tokens = static_cast<std::int64_t>(chunk.tokens.size());
      counters.tokenize.items += static_cast<std::int64_t>(chunk.pieces.size());
      counters.tokenize.tokens += tokens;
      counters.read.tokens += tokens;  // known only now
    };
  }
};

ChunkReader::ChunkReader(ChunkSource& source, std::int64_t workers, std::int64_t limit_bytes,
                         PipelineCounters& counters)
    : impl_(std::make_unique<Impl>(source, workers, limit_bytes, counters)) {}

ChunkReader::~ChunkReader() = default;

void ChunkReader::stop() { impl_->workers.stop(); }

void ChunkReader::restart() { impl_->workers.restart(); }

std::unique_ptr<Chunk> ChunkReader::next() {
  std::unique_ptr<Chunk> chunk;
  return impl_->workers.next(chunk) == OrderedWorkers<Chunk>::Got::item ? std::move(chunk) : nullptr;
}

void ChunkReader::give_back(std::unique_ptr<Chunk> chunk) { impl_->workers.give_back(std::move(chunk)); }

std::string_view ChunkReader::stage() const { return impl_->source.maker_stage(); }
std::int64_t ChunkReader::workers() const { return impl_->count; }
std::int64_t ChunkReader::ready() const { return impl_->workers.ready(); }
std::int64_t ChunkReader::held_bytes() const { return impl_->workers.held_bytes(); }
bool ChunkReader::over_limit() const { return impl_->workers.over_limit(); }

}  // namespace redline::data
