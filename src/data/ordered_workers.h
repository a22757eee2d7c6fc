// Worker threads make items, and one caller gets them in order. Workers take the next item one at a time, which gives
// it its number, and make their items in parallel. An item that is ready early waits for those before it. One mutex
// guards the bookkeeping, and no work is done under it.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/pipeline_stats.h"

namespace redline::data {

// An item has bytes(), its size against the limit, and clear(), which keeps its memory.
template <class Item>
class OrderedWorkers {
 public:
  struct Work {
    std::function<bool(Item&)> take;                    // one caller at a time; false at the end
    std::function<std::function<void(Item&)>()> maker;  // a function for each worker, which may hold caches
    // After an error in a maker: whether the finished part of the item is handed out before the error.
    std::function<bool(Item&)> keeps_part = [](Item&) { return false; };
  };
  struct Limits {
    std::int64_t workers = 0;  // 0: items are made in next()
    std::size_t items = 0;     // that are ready or in the making
    std::int64_t bytes = 0;    // of items that were not given back; one may always be, so that nothing waits for ever
  };

  // `waiting_ns` counts the time that workers wait for room.
  OrderedWorkers(Work work, Limits limits, std::atomic<std::int64_t>& waiting_ns)
      : work_(std::move(work)), limits_(limits), waiting_ns_(waiting_ns) {}
  ~OrderedWorkers() { join(); }
  OrderedWorkers(const OrderedWorkers&) = delete;
  OrderedWorkers& operator=(const OrderedWorkers&) = delete;

  // Ends the threads; a next() that waits returns. Any thread may call it.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    may_take_.notify_all();
    is_ready_.notify_all();
  }
  void join() {
    stop();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  // Forgets the items that were made. The next next() starts the threads again.
  void restart() {
    join();
    for (auto& [number, made] : made_)
      if (made.item) give_back(std::move(made.item));
    made_.clear();
    taken_ = handed_out_ = in_the_making_ = expected_ = 0;
    stopping_ = taking_ = ended_ = false;
    failed_ = nullptr;
  }

  enum class Got { item, nothing_yet, end };
  // The next item; nothing_yet when it is not there after `patience`. An exception of a thread is rethrown here, after
  // all items before it, and again in every later call.
  Got next(std::unique_ptr<Item>& item, std::optional<std::chrono::milliseconds> patience = {}) {
    if (limits_.workers == 0) return make_here(item);
    std::unique_lock lock(mutex_);
    if (threads_.empty() && !stopping_) {
      lock.unlock();
      start();
      lock.lock();
    }
    const auto there = [&] { return stopping_ || made_.contains(handed_out_); };
    if (!patience)
      is_ready_.wait(lock, there);
    else if (!is_ready_.wait_for(lock, *patience, there))
      return Got::nothing_yet;
    if (stopping_) return Got::end;
    const auto it = made_.find(handed_out_);
    if (it->second.error && !it->second.item) std::rethrow_exception(it->second.error);
    if (!it->second.item) return Got::end;
    item = std::move(it->second.item);
    if (it->second.error) return Got::item;  // a part of it; the error is next
    made_.erase(it);
    ++handed_out_;
    lock.unlock();
    may_take_.notify_all();
    return Got::item;
  }

  // Takes back an item that is no longer needed: its memory is used again.
  void give_back(std::unique_ptr<Item> item) {
    {
      const std::lock_guard lock(mutex_);
      held_ -= item->bytes();
      if (spare_.size() < kMostSpare) spare_.push_back(std::move(item));
    }
    may_take_.notify_all();
  }

  std::int64_t ready() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(made_.size());
  }
  std::int64_t held_bytes() const {
    const std::lock_guard lock(mutex_);
    return held_;
  }
  bool over_limit() const {  // a single item was larger than the limit
    const std::lock_guard lock(mutex_);
    return passed_limit_;
  }

 private:
  static constexpr std::size_t kMostSpare = 16;

  struct Made {
    std::unique_ptr<Item> item;  // nothing: the end, or an error
    std::exception_ptr error;
  };

  std::unique_ptr<Item> fresh() {
    if (spare_.empty()) return std::make_unique<Item>();
    auto item = std::move(spare_.back());
    spare_.pop_back();
    item->clear();
    return item;
  }

  // The item that next() needs may always be taken; others while there is room.
  bool room() const {
    if (taken_ == handed_out_) return true;
    if (usual_bytes_ == 0) return false;  // the first one tells what they take
    return held_ + expected_ + usual_bytes_ <= limits_.bytes &&
           made_.size() + static_cast<std::size_t>(in_the_making_) < limits_.items;
  }

  void make_makers(std::size_t count) {
    while (makers_.size() < count) makers_.push_back(work_.maker());
  }

  void start() {
    make_makers(static_cast<std::size_t>(limits_.workers));
    try {
      for (const auto& make : makers_) threads_.emplace_back([this, &make] { run(make); });
    } catch (const std::system_error& e) {
      join();
      fail_machine("cannot start {} threads: {}", limits_.workers, e.what());
    }
  }

  void run(const std::function<void(Item&)>& make) {
    std::unique_lock lock(mutex_);
    for (;;) {
      wait_counted(may_take_, lock, waiting_ns_, [&] { return stopping_ || ended_ || (!taking_ && room()); });
      if (stopping_ || ended_) return;
      taking_ = true;
      const std::int64_t number = taken_++;
      ++in_the_making_;
      std::int64_t expected = usual_bytes_;
      expected_ += expected;
      Made result{fresh(), nullptr};
      lock.unlock();
      bool more = true;
      try {
        more = work_.take(*result.item);
      } catch (...) {
        result.error = std::current_exception();
      }
      lock.lock();
      taking_ = false;
      ended_ = !more || result.error;
      expected_ -= expected;
      expected = std::max(expected, result.item->bytes());
      expected_ += expected;
      lock.unlock();
      may_take_.notify_all();
      if (more && !result.error) {
        try {
          make(*result.item);
        } catch (...) {
          result.error = std::current_exception();
        }
      }
      if (!more || (result.error && !work_.keeps_part(*result.item))) result.item.reset();
      lock.lock();
      --in_the_making_;
      expected_ -= expected;
      if (result.item) {
        const std::int64_t bytes = result.item->bytes();
        usual_bytes_ = std::max(bytes, usual_bytes_ - usual_bytes_ / 8);  // a large one is remembered for a while
        held_ += bytes;
        if (held_ > limits_.bytes && made_.empty() && in_the_making_ == 0) passed_limit_ = true;
      }
      made_.emplace(number, std::move(result));
      is_ready_.notify_all();
    }
  }

  Got make_here(std::unique_ptr<Item>& item) {
    make_makers(1);
    if (failed_) std::rethrow_exception(failed_);
    item = fresh();
    try {
      if (!work_.take(*item)) return Got::end;
      makers_[0](*item);
    } catch (...) {
      failed_ = std::current_exception();
      if (!work_.keeps_part(*item)) throw;
    }
    held_ += item->bytes();
    if (held_ > limits_.bytes) passed_limit_ = true;
    return Got::item;
  }

  const Work work_;
  const Limits limits_;
  std::atomic<std::int64_t>& waiting_ns_;
  std::vector<std::function<void(Item&)>> makers_;  // one a worker; without workers, one
  std::vector<std::thread> threads_;
  std::exception_ptr failed_;  // without workers

  mutable std::mutex mutex_;
  std::condition_variable may_take_, is_ready_;
  bool stopping_ = false, taking_ = false, ended_ = false;
  std::int64_t taken_ = 0, handed_out_ = 0;  // items numbered, items given to next()
  std::map<std::int64_t, Made> made_;
  std::vector<std::unique_ptr<Item>> spare_;
  std::int64_t held_ = 0;           // bytes of items made and not given back
  std::int64_t in_the_making_ = 0;  // items
  std::int64_t expected_ = 0;       // bytes of the items in the making
  std::int64_t usual_bytes_ = 0;    // of an item
  bool passed_limit_ = false;
};

}  // namespace redline::data
