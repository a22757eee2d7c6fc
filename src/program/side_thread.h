// A second thread of the CPU executor, as a card has a second stream. Work that a pair of nodes starts runs there, one
// after the other, beside the nodes that follow.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>

namespace redline::program {

class SideThread {
 public:
  SideThread() = default;
  ~SideThread();  // waits for started work
  SideThread(const SideThread&) = delete;
  SideThread& operator=(const SideThread&) = delete;

  std::int64_t start(std::function<void()> task);  // its number
  // Waits until that task and all before it are done. An exception from one of them is thrown here, and by every later
  // wait.
  void wait(std::int64_t number);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable has_task_, has_ended_;
  std::queue<std::function<void()>> tasks_;
  std::int64_t started_ = 0, ended_ = 0;
  std::exception_ptr error_;
  bool stopping_ = false;
  std::thread thread_;  // from the first task on
};

}  // namespace redline::program
