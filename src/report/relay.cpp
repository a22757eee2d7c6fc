// Hands events on, and keeps for a sink that fails what it could not take.
#include "report/relay.h"

#include <fmt/format.h>

#include "base/clock.h"

namespace redline::report {
namespace {

constexpr double kBetweenTries = 10;         // seconds
constexpr std::size_t kMostMissed = 20'000;  // events, some 10 MiB

template <class... Kinds>
bool is_one_of(const train::Event& event) {
  return (std::holds_alternative<Kinds>(event) || ...);
}

bool ends(const train::Event& event) { return is_one_of<train::Finished, train::Failed>(event); }

}  // namespace

void Relay::on(const train::Event& event) {
  const std::lock_guard lock(mutex_);
  hear(
      event, [&](const train::Started& e) { step_ = e.first_step; }, [&](const train::Stepped& e) { step_ = e.step; },
      [&](const train::RolledBack& e) { step_ = e.to; });
  for (Sink& sink : sinks_) give(sink, event);
  if (std::holds_alternative<train::Started>(event)) started_ = true;
}

void Relay::logged(bool is_warning, const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (terminal_.make_room) terminal_.make_room();
  log::write_line(is_warning, text);
  const train::Event event = is_warning ? train::Event(train::Warning{text}) : train::Note{text};
  for (Sink& sink : sinks_)
    if (sink.hears_log) give(sink, event);
}

// A checkpoint is saved whatever becomes of the logs: steps are worth more than rows about them.
void Relay::give(Sink& sink, const train::Event& event) {
  if (!started_) return sink.observer->on(event);
  if (sink.failing) {
    keep(sink, event);
    const bool asked = ends(event) || std::holds_alternative<train::BeforeCheckpoint>(event);
    if (asked || steady_seconds() - sink.tried >= kBetweenTries) catch_up(sink);
  } else {
    try {
      sink.observer->on(event);
    } catch (const std::exception& e) {
      sink.failing = true;
      sink.tried = steady_seconds();
      sink.since = step_;
      keep(sink, event);
      show_failing();
      on(train::Warning{fmt::format(
          "{}; the run goes on, and what is missing there is kept and written as soon as that works", e.what())});
    }
  }
  if (sink.failing && ends(event))
    on(train::Warning{fmt::format("{} could not be written to the end: it lacks what was told since step {}", sink.name,
                                  sink.since)});
}

// Progress is of the moment, and a promise about the disk is not kept later.
void Relay::keep(Sink& sink, const train::Event& event) {
  if (is_one_of<train::Loading, train::Evaluating, train::BeforeCheckpoint>(event)) return;
  if (sink.missed.size() < kMostMissed)
    sink.missed.push_back(event);
  else if (!sink.lost)
    sink.lost = step_;
}

void Relay::catch_up(Sink& sink) {
  sink.tried = steady_seconds();
  try {
    for (; !sink.missed.empty(); sink.missed.pop_front()) sink.observer->on(sink.missed.front());
    sink.observer->on(train::BeforeCheckpoint{});  // to the disk, where it failed
  } catch (const std::exception&) {                // which is known
    return;
  }
  sink.failing = false;
  show_failing();
  std::string sentence =
      fmt::format("{} can be written again, and has what it missed since step {}", sink.name, sink.since);
  if (sink.lost) sentence += fmt::format(", but not from step {} to {}: that was too much to keep", *sink.lost, step_);
  sink.lost.reset();
  on(train::Note{sentence});
}

void Relay::show_failing() {
  std::vector<std::string> names;
  for (const Sink& sink : sinks_)
    if (sink.failing) names.push_back(sink.name);
  if (terminal_.failing) terminal_.failing(names);
}

}  // namespace redline::report
