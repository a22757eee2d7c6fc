// Everything that hears of a run: the sinks that log.sinks chooses, and the relay that hands events to them.
#pragma once

#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/log.h"
#include "config/config.h"
#include "train/observer.h"

namespace redline::report {

// One observer in front of many. Events of the run, and lines that other threads log, reach the sinks one at a time and
// in one order. A sink that fails does not stop the run: the failure is reported, and the sink gets the events it
// missed when it works again.
class Relay final : public train::Observer {
 public:
  // Its connection to the terminal.
  struct Terminal {
    std::function<void()> make_room;                               // before a line of base/log
    std::function<void(const std::vector<std::string>&)> failing;  // names of the sinks that fail now
  };

  // While it lives, lines of base/log also reach the observers that hear them, as notes and warnings of the run.
  explicit Relay(Terminal terminal = {})
      : terminal_(std::move(terminal)),
        log_([this](bool is_warning, std::string_view text) { logged(is_warning, std::string(text)); }) {}

  // Adds a sink, before the run. `name` is shown to people: "metrics.jsonl".
  void add(train::Observer& observer, std::string name, bool hears_log = true) {
    sinks_.push_back({.observer = &observer, .name = std::move(name), .hears_log = hears_log});
  }

  // Until the run has started, an exception of a sink is thrown on: nothing is lost yet, and a person is there to mend
  // it.
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
    std::optional<std::int64_t> lost = {};  // the first step whose events are lost, as too many were missed
  };

  void logged(bool is_warning, const std::string& text);
  void give(Sink& sink, const train::Event& event);
  void keep(Sink& sink, const train::Event& event);
  void catch_up(Sink& sink);
  void show_failing();

  std::recursive_mutex mutex_;  // an observer may log while it handles an event
  std::vector<Sink> sinks_;
  bool started_ = false;
  std::int64_t step_ = 0;
  Terminal terminal_;
  log::Listener log_;  // last: nothing comes in before the rest is there
};

// The sinks that log.sinks chooses, as one observer.
class Sinks {
 public:
  // `program` is written into the files ("redline 0.1.0"). A dry run has the console alone, which writes to `console`.
  Sinks(FileSystem& files, const config::Config& config, const Path& folder, std::string program, bool dry_run,
        std::FILE* console = stdout);
  ~Sinks();

  train::Observer& observer();

  // Records the error that ended the run. A failure to write it is ignored, since it must not hide that error.
  void record_failure(const std::string& sentence) noexcept;

 private:
  void add(std::unique_ptr<train::Observer> observer, std::string name, bool hears_log = true);

  std::vector<std::unique_ptr<train::Observer>> observers_;
  std::unique_ptr<Relay> relay_;
};

}  // namespace redline::report
