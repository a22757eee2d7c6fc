// Taking is done by one worker at a time and numbers the chunks; making is done by all of them at once; next() hands
// the chunks out by number. One mutex guards the books, and no work is done under it.
#include "data/chunk_reader.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"

namespace redline::data {
namespace {

constexpr std::size_t kMostAhead = 32;  // chunks of 2^16 tokens or 256 KiB of text: more than a step takes
constexpr std::size_t kMostSpare = 16;

}  // namespace

struct ChunkReader::Impl {
  struct Made {
    std::unique_ptr<Chunk> chunk;  // nothing: the end, or an error
    std::exception_ptr error;
  };

  std::unique_ptr<Feed> feed;
  std::int64_t workers, limit;
  PipelineCounters& counters;

  mutable std::mutex mutex;
  std::condition_variable may_take, is_ready;
  std::vector<std::thread> threads;
  bool stopping = false, taking = false, ended = false;
  std::int64_t taken = 0, handed_out = 0;  // chunks numbered, chunks given to next()
  std::map<std::int64_t, Made> made;
  std::vector<std::unique_ptr<Chunk>> spare;
  std::int64_t held = 0;           // bytes of chunks made and not given back
  std::int64_t in_the_making = 0;  // chunks
  std::int64_t usual_bytes = 0;    // of a chunk
  bool passed_limit = false;
  std::exception_ptr failed;                        // without workers: there is nothing after it
  std::vector<std::unique_ptr<ChunkMaker>> makers;  // one a worker; without workers, one

  Impl(std::unique_ptr<Feed> f, std::int64_t w, std::int64_t l, PipelineCounters& c)
      : feed(std::move(f)), workers(w), limit(l), counters(c) {}

  std::unique_ptr<Chunk> fresh() {
    if (spare.empty()) return std::make_unique<Chunk>();
    auto chunk = std::move(spare.back());
    spare.pop_back();
    chunk->clear();
    return chunk;
  }

  bool take(Chunk& chunk) {
    const StageTimer timer(counters.read.busy_ns);
    const bool more = feed->take(chunk);
    counters.read.items += chunk.raw.documents();
    return more;
  }

  void make(ChunkMaker& maker, Chunk& chunk) {
    const StageTimer timer(counters.tokenize.busy_ns);
    maker.make(chunk);
    counters.tokenize.items += static_cast<std::int64_t>(chunk.pieces.size());
    counters.tokenize.tokens += static_cast<std::int64_t>(chunk.tokens.size());
    counters.read.tokens += static_cast<std::int64_t>(chunk.tokens.size());  // known only now
  }

  // After an error in make(): the pieces before the bad one are as good as ever. Whoever shuffles them with what never
  // came meets the error first.
  static bool keeps_part(Chunk& chunk) {
    chunk.ends_epoch = false;
    return !chunk.pieces.empty();
  }

  // The chunk that next() needs may always be taken; others while there is room.
  bool room() const {
    if (taken == handed_out) return true;
    if (usual_bytes == 0) return false;  // the first one tells what they take
    const std::int64_t expected = held + (in_the_making + 1) * usual_bytes;
    return expected <= limit && made.size() + static_cast<std::size_t>(in_the_making) < kMostAhead;
  }

  void work(ChunkMaker& maker) {
    std::unique_lock lock(mutex);
    for (;;) {
      wait_counted(may_take, lock, counters.tokenize.waiting_ns,
                   [&] { return stopping || ended || (!taking && room()); });
      if (stopping || ended) return;
      taking = true;
      const std::int64_t number = taken++;
      ++in_the_making;
      Made result{fresh(), nullptr};
      lock.unlock();
      bool more = true;
      try {
        more = take(*result.chunk);
      } catch (...) {
        result.error = std::current_exception();
      }
      lock.lock();
      taking = false;
      ended = !more || result.error;
      lock.unlock();
      may_take.notify_all();
      if (more && !result.error) {
        try {
          make(maker, *result.chunk);
        } catch (...) {
          result.error = std::current_exception();
        }
      }
      if (!more || (result.error && !keeps_part(*result.chunk))) result.chunk.reset();
      lock.lock();
      --in_the_making;
      if (result.chunk) {
        const std::int64_t bytes = result.chunk->bytes();
        usual_bytes = std::max(bytes, usual_bytes - usual_bytes / 8);  // a large one is remembered for a while
        held += bytes;
        if (held > limit && made.empty() && in_the_making == 0) passed_limit = true;
      }
      made.emplace(number, std::move(result));
      is_ready.notify_all();
    }
  }

  void start() {
    stopping = false;
    while (static_cast<std::int64_t>(makers.size()) < workers) makers.push_back(feed->maker());
    for (const auto& maker : makers) threads.emplace_back([this, &maker] { work(*maker); });
  }

  std::unique_ptr<Chunk> make_here() {
    if (makers.empty()) makers.push_back(feed->maker());
    if (failed) std::rethrow_exception(failed);
    auto chunk = fresh();
    try {
      if (!take(*chunk)) return nullptr;
      make(*makers[0], *chunk);
    } catch (...) {
      failed = std::current_exception();
      if (!keeps_part(*chunk)) throw;
    }
    held += chunk->bytes();
    if (held > limit) passed_limit = true;
    return chunk;
  }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    may_take.notify_all();
    is_ready.notify_all();
  }

  void join() {
    stop();
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }
};

ChunkReader::ChunkReader(std::unique_ptr<Feed> feed, std::int64_t workers, std::int64_t limit_bytes,
                         PipelineCounters& counters)
    : impl_(std::make_unique<Impl>(std::move(feed), workers, limit_bytes, counters)) {}

ChunkReader::~ChunkReader() { impl_->join(); }

void ChunkReader::stop() { impl_->stop(); }

void ChunkReader::fetch(const std::vector<PieceId>& ids, Chunk& chunk) {
  impl_->join();
  impl_->feed->fetch(ids, chunk);
}

std::int64_t ChunkReader::seek(const FeedPlace& place) {
  impl_->join();
  Impl& i = *impl_;
  for (auto& [number, made] : i.made)
    if (made.chunk) give_back(std::move(made.chunk));
  i.made.clear();
  i.taken = i.handed_out = i.in_the_making = 0;
  i.stopping = i.taking = i.ended = false;
  i.failed = nullptr;
  return i.feed->seek(place);
}

std::unique_ptr<Chunk> ChunkReader::next() {
  Impl& i = *impl_;
  if (i.workers == 0) return i.make_here();
  std::unique_lock lock(i.mutex);
  if (i.threads.empty() && !i.stopping) i.start();
  i.is_ready.wait(lock, [&] { return i.stopping || i.made.contains(i.handed_out); });
  if (i.stopping) return nullptr;
  const auto it = i.made.find(i.handed_out);
  std::unique_ptr<Chunk> chunk = std::move(it->second.chunk);
  if (it->second.error && !chunk) std::rethrow_exception(it->second.error);  // again and again: nothing comes after it
  if (!chunk) return nullptr;
  if (it->second.error) return chunk;  // what there is of it; the error is next
  i.made.erase(it);
  ++i.handed_out;
  lock.unlock();
  i.may_take.notify_all();
  return chunk;
}

void ChunkReader::give_back(std::unique_ptr<Chunk> chunk) {
  Impl& i = *impl_;
  {
    const std::lock_guard lock(i.mutex);
    i.held -= chunk->bytes();
    if (i.spare.size() < kMostSpare) i.spare.push_back(std::move(chunk));
  }
  i.may_take.notify_all();
}

const Feed& ChunkReader::feed() const { return *impl_->feed; }

std::int64_t ChunkReader::ready() const {
  const std::lock_guard lock(impl_->mutex);
  return static_cast<std::int64_t>(impl_->made.size());
}

std::int64_t ChunkReader::held_bytes() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->held;
}

bool ChunkReader::over_limit() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->passed_limit;
}

}  // namespace redline::data
