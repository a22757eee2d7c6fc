// Counters of the stages of the data pipeline while it runs. A clock is read twice a chunk or a batch, never a
// token.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace redline::data {

// Sums since the start; any thread adds.
struct StageCounters {
  std::atomic<std::int64_t> items{0}, tokens{0}, busy_ns{0}, waiting_ns{0};
};

// Adds the time from its making to its end.
class StageTimer {
 public:
  explicit StageTimer(std::atomic<std::int64_t>& ns) : ns_(ns), start_(steady_seconds()) {}
  ~StageTimer() { ns_ += static_cast<std::int64_t>(1e9 * (steady_seconds() - start_)); }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  std::atomic<std::int64_t>& ns_;
  double start_;
};

// Waits until ready(), and counts the time as it passes, so that the stats of a stalled stage show it.
template <class Ready>
void wait_counted(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                  std::atomic<std::int64_t>& waiting_ns, const Ready& ready) {
  for (bool done = false; !done;) {
    const StageTimer timer(waiting_ns);
    done = changed.wait_for(lock, std::chrono::milliseconds(250), ready);
  }
}

struct PipelineCounters {
  StageCounters read, tokenize, pack, train;  // train: batches taken; busy is the time between them
};

// One stage over an interval.
struct StageStats {
  std::string name;
  std::int64_t threads = 1;
  double items_per_s = 0, tokens_per_s = 0;
  double busy = 0, waiting = 0;  // shares of the interval, the mean over its threads
};

struct PipelineStats {
  double seconds = 0;              // the interval
  std::vector<StageStats> stages;  // in the order of the data
  std::int64_t chunks_ready = 0, batches_ready = 0, batches_room = 0;
  double held_mib = 0;  // by chunks and batches
  std::string slowest;  // the stage that the others wait for
};

std::vector<std::string> in_words(const PipelineStats& figures);  // a line a stage

// Turns counters into the stats of intervals. For one thread.
class PipelineReporter {
 public:
  // `maker_stage` is the stage that makes chunks (Feed::maker_stage()). Where it is "read", there is no other stage of
  // reading.
  PipelineReporter(const PipelineCounters& counters, std::string_view maker_stage, std::int64_t workers);
  bool due(double every_seconds) const { return steady_seconds() - start_ >= every_seconds; }
  PipelineStats take();  // since the last; queue depths are the caller's to fill

 private:
  struct Sums {
    std::int64_t items = 0, tokens = 0, busy_ns = 0, waiting_ns = 0;
  };
  StageStats stage(std::string name, const StageCounters& counters, Sums& before, std::int64_t threads,
                   double seconds) const;

  const PipelineCounters& counters_;
  std::string maker_stage_;
  std::int64_t workers_;
  double start_ = steady_seconds();
  Sums read_, tokenize_, pack_, train_;
};

}  // namespace redline::data
