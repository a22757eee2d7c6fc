// Every index runs once, whatever the number of threads; failures come back; many small loops in a row
// are cheap and safe.
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"

namespace redline {
namespace {

class ThreadPoolOf : public ::testing::TestWithParam<int> {};

TEST_P(ThreadPoolOf, RunsEveryIndexOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (const std::int64_t count : {0, 1, 2, 3, 17, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
    pool.run(count, [&](std::int64_t i) { ++runs[static_cast<std::size_t>(i)]; });
    for (const auto& times : runs) EXPECT_EQ(times, 1);
  }
}

TEST_P(ThreadPoolOf, EndsBetweenTasksWhereAskedTo) {
  ThreadPool pool(GetParam());
  StopFlag stop = 0;
  pool.stop_on(&stop);
  std::atomic<int> runs = 0;
  const auto task = [&](std::int64_t i) {
    ++runs;
    if (i == 5) stop = 2;
    while (i > 5 && stop == 0) std::this_thread::yield();
  };
  EXPECT_THROW(pool.run(1000, task), Interrupted);
  EXPECT_LE(runs, 5 + GetParam());
  EXPECT_THROW(pool.run(1, task), Interrupted);
  pool.stop_on(nullptr);
  pool.run(1, task);
}

TEST_P(ThreadPoolOf, RangesCoverEverythingInChunksOfTheGrain) {
  ThreadPool pool(GetParam());
  for (const std::int64_t n : {0, 1, 5, 64, 1001}) {
    for (const std::int64_t grain : {0, 1, 7, 64, 5000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(n));
      pool.for_ranges(n, grain, [&](std::int64_t begin, std::int64_t end) {
        EXPECT_LE(end - begin, std::max<std::int64_t>(grain, 1));
        EXPECT_LT(begin, end);
        for (std::int64_t i = begin; i < end; ++i) ++runs[static_cast<std::size_t>(i)];
      });
      for (const auto& times : runs) EXPECT_EQ(times, 1);
    }
  }
}

TEST_P(ThreadPoolOf, AnExceptionComesBackAndThePoolLivesOn) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(pool.run(100,
                          [](std::int64_t i) {
                            if (i % 10 == 3) throw std::runtime_error("three");
                          }),
                 std::runtime_error);
    std::atomic<int> runs = 0;
    pool.run(100, [&](std::int64_t) { ++runs; });
    EXPECT_EQ(runs, 100);
  }
}

TEST_P(ThreadPoolOf, ManySmallLoopsSeeEachOthersWrites) {
  ThreadPool pool(GetParam());
  std::vector<std::int64_t> sums(8, 0);
  for (int loop = 0; loop < 20'000; ++loop) {
    // Plain memory, handed from loop to loop: an order between loops that did not hold would lose additions.
    pool.run(8, [&](std::int64_t i) { sums[static_cast<std::size_t>((i + loop) % 8)] += i; });
  }
  std::int64_t total = 0;
  for (const std::int64_t sum : sums) total += sum;
  EXPECT_EQ(total, 20'000 * 28);
}

TEST_P(ThreadPoolOf, WakesFromSleep) {
  ThreadPool pool(GetParam());
  for (int loop = 0; loop < 20; ++loop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // long enough for the threads to fall asleep
    std::atomic<int> runs = 0;
    pool.run(4, [&](std::int64_t) {
      std::this_thread::sleep_for(std::chrono::microseconds(loop * 20));  // and for the caller to wait asleep
      ++runs;
    });
    EXPECT_EQ(runs, 4);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolOf, ::testing::Values(1, 2, 3, 8));

TEST(ThreadPool, SeveralThreadsMayCallItInTurn) {
  ThreadPool pool(3);
  std::atomic<int> runs = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int loop = 0; loop < 500; ++loop) pool.run(5, [&](std::int64_t) { ++runs; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(runs, 3 * 500 * 5);
}

TEST(ThreadPool, ANestedRunIsAnErrorAndNotADeadlock) {
  ThreadPool pool(2), other(2);
  EXPECT_THROW(pool.run(4, [&](std::int64_t) { pool.run(4, [](std::int64_t) {}); }), MachineError);
  std::atomic<int> runs = 0;
  pool.run(4, [&](std::int64_t) { other.run(4, [&](std::int64_t) { ++runs; }); });  // another pool's is fine
  EXPECT_EQ(runs, 16);
}

TEST(ThreadPool, TheEnvironmentSetsTheDefault) {
  ::setenv("REDLINE_THREADS", "3", 1);
  EXPECT_EQ(ThreadPool().threads(), 3);
  EXPECT_EQ(ThreadPool(2).threads(), 2);
  for (const char* wrong : {"many", "0", "-2", "3x", "99999999999"}) {
    ::setenv("REDLINE_THREADS", wrong, 1);
    EXPECT_THROW(ThreadPool(), UserError) << wrong;
  }
  ::unsetenv("REDLINE_THREADS");
  EXPECT_GE(ThreadPool().threads(), 1);
}

}  // namespace
}  // namespace redline
