// The threads of the loader: bounds are kept, nothing waits for ever, errors and ends come through, figures add up.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "data/feed.h"
#include "data/listed.h"
#include "testing/says.h"

namespace redline::data {
namespace {

// Counts how many chunks exist at a time, and can be slow or fail.
class SlowSource final : public DocumentSource {
 public:
  explicit SlowSource(std::int64_t length, std::chrono::microseconds delay = {}, std::int64_t bad = -1)
      : length_(length), delay_(delay), bad_(bad) {}
  std::string name() const override { return "slow"; }
  std::int64_t documents() const override { return 0; }
  std::uint64_t fingerprint() const override { return 0; }
  std::int64_t vocabulary() const override { return 1 << 30; }
  void read(std::int64_t index, Tokens& tokens) const override {
    if (index == bad_) fail_user("document {} is broken", index);
    std::this_thread::sleep_for(delay_);
    tokens.assign(static_cast<std::size_t>(length_), static_cast<std::int32_t>(index));
    ++reads;
  }
  std::string decode(const Tokens&) const override { return ""; }
  Tokens encode(const std::string&) const override { return {}; }
  mutable std::atomic<std::int64_t> reads{0};

 private:
  std::int64_t length_;
  std::chrono::microseconds delay_;
  std::int64_t bad_;
};

TEST(ChunkReader, ChunksComeInOrderFromAnyNumberOfWorkers) {
  const Listed source(random_lengths(5000, 50, 1), true);
  for (const std::int64_t workers : {0, 1, 2, 5}) {
    PipelineCounters counters;
    const auto feed = source.feed({});
    feed->seek({.window = 100});
    ChunkReader reader(*feed, workers, 1 << 20, counters);
    std::int64_t expected = 100;
    for (int i = 0; i < 200; ++i) {
      std::unique_ptr<Chunk> chunk = reader.next();
      ASSERT_NE(chunk, nullptr);
      for (const Chunk::Piece& p : chunk->pieces) EXPECT_EQ(p.document, expected++);
      reader.give_back(std::move(chunk));
    }
    EXPECT_GE(counters.tokenize.items, expected - 100);
  }
}

TEST(ChunkReader, MemoryIsBoundedAndTooLittleOfItStopsNothing) {
  const SlowSource source(10'000);  // six documents a chunk: 240 KB
  for (const std::int64_t limit : {std::int64_t{1}, std::int64_t{1} << 20}) {
    PipelineCounters counters;
    const auto feed = source.feed({});
    ChunkReader reader(*feed, 3, limit, counters);
    std::int64_t most = 0, largest = 0;
    for (int i = 0; i < 100; ++i) {
      std::unique_ptr<Chunk> chunk = reader.next();
      ASSERT_NE(chunk, nullptr);
      std::this_thread::sleep_for(std::chrono::microseconds(200));  // the workers run as far ahead as they may
      most = std::max(most, reader.held_bytes());
      largest = std::max(largest, chunk->bytes());
      reader.give_back(std::move(chunk));
    }
    EXPECT_LE(most, std::max(limit, std::int64_t{0}) + 2 * largest) << limit;
    EXPECT_EQ(reader.over_limit(), limit == 1);
  }
}

TEST(ChunkReader, EndsAtOnceWhateverItsThreadsDo) {
  for (int trial = 0; trial < 20; ++trial) {
    const SlowSource source(100, std::chrono::microseconds(50));
    {
      PipelineCounters counters;
      const auto feed = source.feed({});
      ChunkReader reader(*feed, 3, 1 << 20, counters);
      if (trial % 2) reader.give_back(reader.next());
      if (trial % 3) reader.restart();
      if (trial % 5) {
        EXPECT_NE(reader.next(), nullptr) << "it starts again";
      }
    }
    const std::int64_t read = source.reads;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(source.reads, read) << "a thread reads on";
  }
}

TEST(Loader, EndsAtOnceWithBatchesInTheQueue) {
  for (int trial = 0; trial < 20; ++trial) {
    Loader loader(std::make_unique<SlowSource>(100, std::chrono::microseconds(20)),
                  options_for({2, 64, 4}, "pack", 1 + trial % 3));
    Batch batch({2, 64, 4});
    for (int i = 0; i < trial % 4; ++i) ASSERT_TRUE(loader.next(batch));
    if (trial % 2) loader.restore({});
  }
}

TEST(Loader, AnErrorInAThreadComesOutOfNextAndRestoringStartsAgain) {
  for (const std::int64_t workers : {0, 1, 3}) {
    LoaderOptions options = options_for({1, 10, 1}, "stream", workers);
    Loader loader(std::make_unique<SlowSource>(10, std::chrono::microseconds(0), 500), options);
    Batch batch({1, 10, 1});
    for (int round = 0; round < 2; ++round) {
      int batches = 0;
      const auto read = [&] {
        while (loader.next(batch)) EXPECT_EQ(batch.tokens[0], batches++);
      };
      EXPECT_EQ(testing::error_of(read), "document 500 is broken");
      EXPECT_EQ(batches, 499);  // the last good document was placed when the bad one was drawn
      loader.restore({});
    }
  }
}

TEST(Loader, MemoryThatCannotHoldTheBatchesIsRefused) {
  LoaderOptions options = options_for({64, 1024, 4}, "pack", 1);
  options.ram_bytes = 1 << 20;
  EXPECT_THROW(Loader(std::make_unique<SlowSource>(10), options), UserError);
  options.workers = 0;
  EXPECT_NO_THROW(Loader(std::make_unique<SlowSource>(10), options));
}

TEST(Loader, PrefetchIsBounded) {
  auto source = std::make_unique<SlowSource>(1000);
  const SlowSource& counted = *source;
  LoaderOptions options = options_for({1, 1000, 1}, "stream", 2);
  options.ram_bytes = 1 << 20;
  Loader loader(std::move(source), options);
  Batch batch({1, 1000, 1});
  ASSERT_TRUE(loader.next(batch));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_LE(counted.reads, 1200) << "documents of 4 KB, and 1 MiB may be held";
}

TEST(Loader, FiguresSayWhatEachStageDidAndWhichIsTheSlowest) {
  std::vector<PipelineStats> reports;
  LoaderOptions options = options_for({1, 1000, 4}, "stream", 2);
  options.report = [&](const PipelineStats& f) { reports.push_back(f); };
  options.report_seconds = 0.05;
  Loader loader(std::make_unique<SlowSource>(1000, std::chrono::microseconds(500)), options);
  Batch batch({1, 1000, 4});
  const double start = steady_seconds();
  std::int64_t batches = 0;
  while (steady_seconds() - start < 0.3) batches += loader.next(batch);
  loader.report_now();
  ASSERT_GE(reports.size(), 3u);
  double taken = 0;
  for (const PipelineStats& f : reports) {
    ASSERT_EQ(f.stages.size(), 3u);
    EXPECT_EQ(f.stages[0].name, "read");
    EXPECT_EQ(f.stages[0].threads, 2);
    EXPECT_EQ(f.stages[1].name, "pack");
    EXPECT_EQ(f.stages[2].name, "train");
    taken += f.stages[2].items_per_s * f.seconds;
    for (const StageStats& s : f.stages) {
      EXPECT_GE(s.busy, 0);
      EXPECT_LE(s.busy, 1);
    }
    EXPECT_EQ(f.batches_room, 3);
  }
  EXPECT_NEAR(taken, static_cast<double>(batches), 0.5);
  // Most of them: on a busy machine any thread may stand still for an interval.
  EXPECT_GT(2 * std::ranges::count(reports, "read", &PipelineStats::slowest), std::ssize(reports));
  EXPECT_GT(2 * std::ranges::count_if(reports, [](const auto& f) { return f.stages[2].waiting > 0.5; }),
            std::ssize(reports));

  reports.clear();
  Loader fast(std::make_unique<SlowSource>(1000), options);
  for (int i = 0; i < 20; ++i) {
    fast.next(batch);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_GE(reports.size(), 2u);
  EXPECT_EQ(reports[1].slowest, "train");
  const std::vector<std::string> lines = in_words(reports[1]);
  EXPECT_EQ(lines.size(), 4u);
  EXPECT_NE(lines[0].find("train is the slowest"), std::string::npos);
}

}  // namespace
}  // namespace redline::data
