// Hands events on, keeps for a sink that fails what it could not take, and chooses the sinks.
#include "report/sinks.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "report/console.h"
#include "report/prometheus_file.h"
#include "report/rows_file.h"
#include "report/tensorboard.h"
#include "report/watch.h"

namespace redline::report {
namespace {

constexpr double kBetweenTries = 10;         // seconds
constexpr std::size_t kMostMissed = 20'000;  // events, some 10 MiB

template <class... Kinds>
bool is_one_of(const train::Event& event) {
  return (std::holds_alternative<Kinds>(event) || ...);
}

bool ends(const train::Event& event) { return is_one_of<train::Finished, train::Failed>(event); }

// Without a console, warnings are still printed.
class WarningsOnly final : public train::Observer {
  void on(const train::Event& event) override {
    hear(event, [](const train::Warning& e) { log::write_line(true, e.text); });
  }
};

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
    on(train::Warning{fmt::format("{} could not be written to the end: it lacks what happened since step {}", sink.name,
                                  sink.since)});
}

// Progress is of the moment, and a promise about the disk is not kept later.
void Relay::keep(Sink& sink, const train::Event& event) {
  if (is_one_of<train::Loading, train::Counting, train::Evaluating, train::BeforeCheckpoint>(event)) return;
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

// Files first: what a person has seen is then already in them.
Sinks::Sinks(FileSystem& files, const config::Config& config, const Path& folder, std::string program, bool dry_run,
             std::FILE* stream) {
  auto console = std::make_unique<Console>(stream);
  relay_ = std::make_unique<Relay>(Relay::Terminal{
      [console = console.get()] { console->clear(); },
      [console = console.get()](const std::vector<std::string>& names) { console->set_failing(names); }});
  const auto chosen = [&](std::string_view sink) {
    return std::ranges::find(config.log.sinks, sink) != config.log.sinks.end();
  };
  const auto add_rows = [&](const char* name, RowsFile (*sink)(FileSystem&, Path)) {
    add(std::make_unique<RowsFile>(sink(files, folder / name)), name);
  };
  if (!dry_run) {
    if (chosen("jsonl")) {
      add_rows("metrics.jsonl", metrics_file);
      add_rows("fp8.jsonl", fp8_file);
      add_rows("norms.jsonl", norms_file);
      add_rows("router.jsonl", router_file);
      add_rows("goodput.jsonl", goodput_file);
      add(std::make_unique<RowsFile>(events_file(files, folder / "events.jsonl", std::move(program))), "events.jsonl");
    }
    add_rows("data_pipeline.jsonl", pipeline_file);
    add_rows("samples.jsonl", samples_file);
    if (chosen("tensorboard")) add(std::make_unique<TensorboardFile>(files, folder), "TensorBoard's file");
    if (chosen("prometheus")) add(std::make_unique<PrometheusFile>(files, folder / "metrics.prom"), "metrics.prom");
  }
  // Neither needs to hear what is on standard error already. The console is cleared by the relay, so it is kept in any
  // case.
  const bool shown = dry_run || chosen("console");
  if (!shown) add(std::make_unique<WarningsOnly>(), "standard error", false);
  if (shown) relay_->add(*console, "the console", false);
  observers_.push_back(std::move(console));
  add(std::make_unique<Watch>(
          [relay = relay_.get()](const std::string& sentence) { relay->on(train::Warning{sentence}); }),
      "the watch");
}

Sinks::~Sinks() { relay_.reset(); }  // it knows the others

void Sinks::add(std::unique_ptr<train::Observer> observer, std::string name, bool hears_log) {
  relay_->add(*observer, std::move(name), hears_log);
  observers_.push_back(std::move(observer));
}

train::Observer& Sinks::observer() { return *relay_; }

void Sinks::record_failure(const std::string& sentence) noexcept {
  try {
    relay_->on(train::Failed{sentence});
  } catch (...) {
  }
}

}  // namespace redline::report
