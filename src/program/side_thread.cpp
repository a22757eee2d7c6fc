// A queue of tasks and the thread that runs them.
#include "program/side_thread.h"

#include <utility>

namespace redline::program {

SideThread::~SideThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  has_task_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::int64_t SideThread::start(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  tasks_.push(std::move(task));
  has_task_.notify_one();
  return ++started_;
}

void SideThread::wait(std::int64_t number) {
  std::unique_lock lock(mutex_);
  has_ended_.wait(lock, [&] { return ended_ >= number; });
  if (error_) std::rethrow_exception(error_);
}

void SideThread::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    has_task_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop();
    const bool broken = error_ != nullptr;
    lock.unlock();
    std::exception_ptr error;
    if (!broken) {  // behind a failure nothing would be true
      try {
        task();
      } catch (...) {
        error = std::current_exception();
      }
    }
    lock.lock();
    if (error) error_ = error;
    ++ended_;
    has_ended_.notify_all();
  }
}

}  // namespace redline::program
