// One observer in front of many: what a run tells, and what is logged by other threads meanwhile, reaches them one at a
// time and in one order. A sink that fails costs the run nothing: it is told, and what it missed comes when it works
// again.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "train/observer.h"

namespace redline::report {

class Relay final : public train::Observer {
 public:
  // What of it shows on the terminal.
  struct Terminal {
    std::function<void()> make_room;                               // before a line of base/log
    std::function<void(const std::vector<std::string>&)> failing;  // names of the sinks that fail now
  };

  // While it lives, lines of base/log also reach the observers that hear them, as notes and warnings of the run.
  explicit Relay(Terminal terminal = {})
      : terminal_(std::move(terminal)),
        log_([this](bool is_warning, std::string_view text) { logged(is_warning, std::string(text)); }) {}

  // Before the run. `name` is what people know the sink by: "metrics.jsonl".
  void add(train::Observer& observer, std::string name, bool hears_log = true) {
    sinks_.push_back({.observer = &observer, .name = std::move(name), .hears_log = hears_log});
  }

  // Throws what a sink throws until the run has started: nothing is lost by then, and somebody is there to mend it.
  void on(const train::Event& event) override;

 private:
  struct Sink {
    train::Observer* observer = nullptr;
    std::string name;
    bool hears_log = true;
    bool failing = false;
    double tried = 0;                       // when it was last tried, on steady_seconds()
    std::int64_t since = 0;                 // the step at which it began to fail
    std::deque<train::Event> missed = {};   // in order
    std::optional<std::int64_t> lost = {};  // from this step on more was missed than is kept
  };

  void logged(bool is_warning, const std::string& text);
  void give(Sink& sink, const train::Event& event);
  void keep(Sink& sink, const train::Event& event);
  void catch_up(Sink& sink);
  void show_failing();

  std::recursive_mutex mutex_;  // an observer may warn of what it was told
  std::vector<Sink> sinks_;
  bool started_ = false;
  std::int64_t step_ = 0;
  Terminal terminal_;
  log::Listener log_;  // last: nothing comes in before the rest is there
};

}  // namespace redline::report
