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

  void started(const train::RunHeader& header) override {
    tell([&](Observer& o) { o.started(header); });
  }
  void loading(std::uint64_t bytes, std::uint64_t of) override {
    tell([&](Observer& o) { o.loading(bytes, of); });
  }
  void evaluating(std::int64_t batch, std::int64_t batches) override {
    tell([&](Observer& o) { o.evaluating(batch, batches); });
  }
  void evaluated(std::int64_t step, double loss) override {
    tell([&](Observer& o) { o.evaluated(step, loss); });
  }
  void stepped(const train::StepMetrics& m) override {
    tell([&](Observer& o) { o.stepped(m); });
  }
  void sampled(std::int64_t step, const std::vector<train::SampledText>& texts) override {
    tell([&](Observer& o) { o.sampled(step, texts); });
  }
  void pipeline(const data::PipelineFigures& figures) override {
    tell([&](Observer& o) { o.pipeline(figures); });
  }
  void before_checkpoint() override {
    tell([](Observer& o) { o.before_checkpoint(); });
  }
  void saved(std::int64_t step, const Path& folder, double seconds) override {
    tell([&](Observer& o) { o.saved(step, folder, seconds); });
  }
  void note(const std::string& sentence) override {
    tell([&](Observer& o) { o.note(sentence); });
  }
  void warning(const std::string& sentence) override {
    tell([&](Observer& o) { o.warning(sentence); });
  }
  void finished(const std::string& sentence) override {
    tell([&](Observer& o) { o.finished(sentence); });
  }
  void failed(const std::string& sentence) override {
    tell([&](Observer& o) { o.failed(sentence); });
  }

 private:
  template <class Say>
  void tell(const Say& say) {
    const std::lock_guard lock(mutex_);
    for (Observer* o : observers_) say(*o);
  }

  void logged(bool is_warning, const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (before_line_) before_line_();
    log::write_line(is_warning, text);
    for (Observer* o : hearing_) is_warning ? o->warning(text) : o->note(text);
  }

  std::recursive_mutex mutex_;  // an observer may warn of what it was told
  std::vector<train::Observer*> observers_, hearing_;
  std::function<void()> before_line_;
  log::Listener log_;  // last: nothing comes in before the rest is there
};

}  // namespace redline::report
