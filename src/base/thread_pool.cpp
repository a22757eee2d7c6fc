// The pool's loop hand-over. A training step runs thousands of loops of some ten microseconds, so idle threads spin a
// little before they sleep, and a thread that wakes late is not waited for: the loop may be over without it.
#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#ifdef __linux__
#include <sched.h>
#endif

#include "base/error.h"
#include "base/words.h"

namespace redline {
namespace {

constexpr std::chrono::microseconds kSpin{40};  // a futex sleep and wake-up together cost about as much

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // `yield` is a no-op on most cores; isb stalls for some ten cycles
#endif
}

// Whether ready() became true within kSpin.
template <class Ready>
bool spin_until(const Ready& ready) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      pause_briefly();
    }
    std::this_thread::yield();  // with fewer cores than threads, the work may be waiting for this core
  } while (std::chrono::steady_clock::now() < deadline);
  return ready();
}

int cores_allowed() {
#ifdef __linux__
  // A fixed cpu_set_t ends at 1024 processors; the kernel says EINVAL until the mask is wide enough.
  for (int processors = 1024; processors <= 1 << 20; processors *= 2) {
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(processors));
    std::vector<unsigned char> storage(bytes + alignof(cpu_set_t));
    void* address = storage.data();
    std::size_t space = storage.size();
    auto* mask = static_cast<cpu_set_t*>(std::align(alignof(cpu_set_t), bytes, address, space));
    if (sched_getaffinity(0, bytes, mask) == 0) return std::max(1, CPU_COUNT_S(bytes, mask));
  }
#endif
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

// A container's share of the processors, rounded up; all of them when it has no limit.
int cores_of_container(int cores) {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return cores;  // "max 100000" is no number either
  return std::clamp(static_cast<int>(std::ceil(quota / period)), 1, cores);
}

int default_threads() {
  const char* setting = std::getenv("REDLINE_THREADS");
  if (!setting || !*setting) return cores_of_container(cores_allowed());
  const std::string_view text(setting);
  int threads = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
  if (error != std::errc() || end != text.data() + text.size() || threads < 1 || threads > 4096) {
    fail_user("REDLINE_THREADS is \"{}\"; it must be a number of threads from 1 to 4096", text);
  }
  return threads;
}

}  // namespace

// `gate` is the whole hand-over in one word: the loop's number (high half), whether threads may still enter it, and how
// many workers are inside. The caller opens it, works, closes it, and waits for the inside to be empty; a worker enters
// by compare-and-swap on an open gate, so that no one reads a task that has ended.
struct ThreadPool::Impl {
  static constexpr std::uint64_t kOpen = std::uint64_t{1} << 31, kInside = kOpen - 1, kNumber = ~(kOpen | kInside);
  static constexpr std::uint64_t kNextNumber = std::uint64_t{1} << 32;

  std::atomic<std::uint64_t> gate{0};
  std::atomic<std::int64_t> next{0};  // the first index that no thread has taken
  std::int64_t count = 0;
  const std::function<void(std::int64_t)>* task = nullptr;
  const StopFlag* stop = nullptr;

  std::mutex mutex;  // for the sleeping and for `error`
  std::condition_variable wake, empty;
  std::atomic<int> sleepers{0};
  std::atomic<bool> caller_sleeps{false};
  std::atomic<bool> stopping{false};
  std::exception_ptr error;

  std::mutex callers;  // one loop at a time
  std::vector<std::thread> workers;

  static thread_local const Impl* inside_of;  // the pool whose task this thread runs

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    wake.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  void take_part() {
    const Impl* outer = std::exchange(inside_of, this);
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      try {
        end_if_asked(stop);
        (*task)(i);
      } catch (...) {
        next.store(count, std::memory_order_relaxed);  // what has not begun is skipped
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
    }
    inside_of = outer;
  }

  void work() {
    std::uint64_t done_number = 0;
    // A new loop to enter, or the end.
    const auto called = [&] {
      const std::uint64_t now = gate.load();
      return stopping.load() || ((now & kOpen) && (now & kNumber) != done_number);
    };
    for (;;) {
      if (!spin_until(called)) {
        std::unique_lock lock(mutex);
        // Announced before the gate is looked at again; run() opens the gate before it looks for sleepers.
        ++sleepers;
        wake.wait(lock, called);
        --sleepers;
      }
      if (stopping) return;
      std::uint64_t now = gate.load();
      if (!(now & kOpen) || (now & kNumber) == done_number) continue;
      if (!gate.compare_exchange_strong(now, now + 1)) continue;
      done_number = now & kNumber;
      take_part();
      if ((gate.fetch_sub(1) & kInside) == 1 && caller_sleeps) {
        const std::lock_guard lock(mutex);
        empty.notify_one();
      }
    }
  }

  void run(std::int64_t n, const std::function<void(std::int64_t)>& body) {
    const std::lock_guard one_at_a_time(callers);
    task = &body;
    count = n;
    next.store(0, std::memory_order_relaxed);
    gate.store(((gate.load() & kNumber) + kNextNumber) | kOpen);
    if (const int asleep = sleepers; asleep > 0) {
      const std::lock_guard lock(mutex);
      if (n - 1 >= asleep) {
        wake.notify_all();
      } else {
        for (std::int64_t i = 1; i < n; ++i) wake.notify_one();
      }
    }

    take_part();

    gate.fetch_and(~kOpen);
    const auto all_left = [&] { return (gate.load() & kInside) == 0; };
    if (!all_left() && !spin_until(all_left)) {
      std::unique_lock lock(mutex);
      caller_sleeps = true;
      empty.wait(lock, all_left);
      caller_sleeps = false;
    }
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
  }
};

thread_local const ThreadPool::Impl* ThreadPool::Impl::inside_of = nullptr;

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()) {
  const int wanted = threads > 0 ? threads : default_threads();
  try {
    for (int i = 1; i < wanted; ++i) impl_->workers.emplace_back([impl = impl_.get()] { impl->work(); });
  } catch (const std::system_error& e) {
    fail_machine("cannot start {}: {} (REDLINE_THREADS sets how many)", counted(wanted, "thread"), e.what());
  }
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::threads() const { return static_cast<int>(impl_->workers.size()) + 1; }

void ThreadPool::stop_on(const StopFlag* stop) { impl_->stop = stop; }

void ThreadPool::run(std::int64_t count, const std::function<void(std::int64_t)>& task) {
  if (impl_->workers.empty() || count <= 1) {
    for (std::int64_t i = 0; i < count; ++i) {
      end_if_asked(impl_->stop);
      task(i);
    }
    return;
  }
  REDLINE_CHECK(Impl::inside_of != impl_.get(), "a task of a thread pool called run() of the same pool");
  impl_->run(count, task);
}

}  // namespace redline
