// Chunks of a fixed size are scanned by whoever is free, 64 ids at a time; only where such a stretch holds an end token
// are they looked at one by one.
#include "data/shards/find_documents.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <type_traits>

#include "base/clock.h"
#include "base/log.h"

namespace redline::data {
namespace {

constexpr std::int64_t kChunk = std::int64_t{1} << 22, kStretch = 64;
constexpr double kQuiet = 2, kBetweenNotes = 5;  // seconds

struct Chunk {
  std::vector<std::uint64_t> starts;
  std::uint64_t largest = 0;
};

template <class T>
void scan_chunk(const T* ids, std::int64_t begin, std::int64_t end, std::int64_t count, const EndTokens* ends,
                Chunk& out) {
  using Unsigned = std::make_unsigned_t<T>;
  const auto is_end = [&](T id) {
    const auto wide = static_cast<std::int64_t>(id);
    return wide == (*ends)[0] || wide == (*ends)[1];
  };
  // An end token that the type cannot hold is found nowhere.
  const auto fits = [](std::int64_t id) { return id >= 0 && static_cast<std::int64_t>(static_cast<T>(id)) == id; };
  const bool any = ends && (fits((*ends)[0]) || fits((*ends)[1]));
  const T first = any ? static_cast<T>(fits((*ends)[0]) ? (*ends)[0] : (*ends)[1]) : T{};
  const T second = any ? static_cast<T>(fits((*ends)[1]) ? (*ends)[1] : (*ends)[0]) : T{};
  if (ends && begin == 0 && count > 0 && !(any && is_end(ids[0]))) out.starts.push_back(0);
  Unsigned largest = 0;
  for (std::int64_t at = begin; at < end; at += kStretch) {
    const std::int64_t stop = std::min(at + kStretch, end);
    unsigned hit = 0;
    for (std::int64_t i = at; i < stop; ++i) {
      const auto id = static_cast<Unsigned>(ids[i]);
      largest = id > largest ? id : largest;
      hit |= static_cast<unsigned>(ids[i] == first) | static_cast<unsigned>(ids[i] == second);
    }
    if (!any || !hit) continue;
    for (std::int64_t i = at; i < stop; ++i)
      if (is_end(ids[i]) && i + 1 < count && !is_end(ids[i + 1]))
        out.starts.push_back(static_cast<std::uint64_t>(i) + 1);
  }
  out.largest = largest_or_huge<T>(largest);
}

std::vector<Chunk> scan(const TokenArray& ids, const EndTokens* ends, const std::string& name, ThreadPool& pool) {
  const std::int64_t chunks = (ids.count + kChunk - 1) / kChunk;
  std::vector<Chunk> found(static_cast<std::size_t>(chunks));
  const double start = steady_seconds();
  std::atomic<std::int64_t> done{0};
  std::atomic<double> next_note{start + kQuiet};
  pool.run(chunks, [&](std::int64_t c) {
    const std::int64_t begin = c * kChunk, end = std::min(begin + kChunk, ids.count);
    ids.visit(
        [&](const auto* typed) { scan_chunk(typed, begin, end, ids.count, ends, found[static_cast<std::size_t>(c)]); });
    const std::int64_t so_far = ++done;
    double due = next_note;
    const double now = steady_seconds();
    if (now >= due && so_far < chunks && next_note.compare_exchange_strong(due, now + kBetweenNotes))
      log::note("{}: looking through {} million tokens, {}%", name, ids.count / 1'000'000, 100 * so_far / chunks);
  });
  return found;
}

std::int64_t largest_of(const std::vector<Chunk>& chunks) {
  std::uint64_t largest = 0;
  for (const Chunk& c : chunks) largest = std::max(largest, c.largest);
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return chunks.empty() ? -1 : static_cast<std::int64_t>(std::min(largest, kMost));
}

}  // namespace

FoundDocuments find_documents(const TokenArray& ids, EndTokens ends, const std::string& name, ThreadPool& pool) {
  const std::vector<Chunk> chunks = scan(ids, &ends, name, pool);
  FoundDocuments found;
  found.largest_id = largest_of(chunks);
  for (const Chunk& c : chunks) found.starts.insert(found.starts.end(), c.starts.begin(), c.starts.end());
  return found;
}

std::int64_t largest_id(const TokenArray& ids, const std::string& name, ThreadPool& pool) {
  return largest_of(scan(ids, nullptr, name, pool));
}

}  // namespace redline::data
