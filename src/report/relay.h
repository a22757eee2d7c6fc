// One observer in front of many: what a run tells, and what is logged by other threads meanwhile, reaches them one at a
// time and in one order.
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "base/log.h"
#include "train/observer.h"

namespace redline::report {

class Relay final : public train::Observer {
 public:
  // While it lives, lines of base/log also reach the observers that hear them, as notes and warnings of the run.
  // `before_line` makes room on the terminal.
  explicit Relay(std::function<void()> before_line = {})
      : before_line_(std::move(before_line)),
        log_([this](bool is_warning, std::string_view text) { logged(is_warning, std::string(text)); }) {}

  void add(train::Observer& observer, bool hears_log = true) {  // before the run
    observers_.push_back(&observer);
    if (hears_log) hearing_.push_back(&observer);
  }

  void on(const train::Event& event) override {
    const std::lock_guard lock(mutex_);
    for (Observer* o : observers_) o->on(event);
  }

 private:
  void logged(bool is_warning, const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (before_line_) before_line_();
    log::write_line(is_warning, text);
    const train::Event event = is_warning ? train::Event(train::Warning{text}) : train::Note{text};
    for (Observer* o : hearing_) o->on(event);
  }

  std::recursive_mutex mutex_;  // an observer may warn of what it was told
  std::vector<train::Observer*> observers_, hearing_;
  std::function<void()> before_line_;
  log::Listener log_;  // last: nothing comes in before the rest is there
};

}  // namespace redline::report
