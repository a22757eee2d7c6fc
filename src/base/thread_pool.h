// A fixed set of threads that split one loop at a time. Callers cut the work into chunks by shape alone, and threads
// only choose who runs which chunk, so results do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/signals.h"

namespace redline {

class ThreadPool {
 public:
  // threads = 0: one for each core that this process may use (REDLINE_THREADS overrides).
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Runs task(i) for i in [0, count), begun in order, the caller taking part, and returns when all are done. The first
  // exception thrown by a task is rethrown here, and tasks that had not begun are skipped. Several threads may call
  // it: one waits for the other. Not reentrant: a task must not call run() of the same pool (a MachineError).
  void run(std::int64_t count, const std::function<void(std::int64_t)>& task);

  // From here on run() ends with an Interrupted where the flag is set, between two tasks; nullptr: it never does.
  void stop_on(const StopFlag* stop);

  // Cuts [0, n) into chunks of at most `grain` and runs body(begin, end) for each.
  template <class Body>
  void for_ranges(std::int64_t n, std::int64_t grain, const Body& body) {
    if (n <= 0) return;
    if (grain < 1) grain = 1;
    const std::int64_t chunks = (n + grain - 1) / grain;
    if (chunks == 1) return body(std::int64_t{0}, n);
    const auto chunk = [&](std::int64_t c) {
      const std::int64_t begin = c * grain;
      body(begin, begin + grain < n ? begin + grain : n);
    };
    run(chunks, std::ref(chunk));  // a reference fits inside std::function: no allocation for each call
  }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace redline
