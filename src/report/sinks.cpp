// Files first: what a person has seen is then already in them.
#include "report/sinks.h"

#include <algorithm>

#include "report/console.h"
#include "report/events_file.h"
#include "report/prometheus_file.h"
#include "report/relay.h"
#include "report/rows_file.h"
#include "report/tensorboard_file.h"
#include "report/watch.h"

namespace redline::report {
namespace {

// Where nobody looks at progress, what is wrong is still said.
class WarningsOnly final : public train::Observer {
  void on(const train::Event& event) override {
    hear(event, [](const train::Warning& e) { log::write_line(true, e.text); });
  }
};

}  // namespace

Sinks::Sinks(FileSystem& files, const config::Config& config, const Path& folder, std::string program, bool dry_run) {
  auto console = std::make_unique<Console>(stdout);
  relay_ = std::make_unique<Relay>([console = console.get()] { console->clear(); });
  const auto chosen = [&](std::string_view sink) {
    return std::ranges::find(config.log.sinks, sink) != config.log.sinks.end();
  };
  if (!dry_run) {
    if (chosen("jsonl")) {
      add(std::make_unique<RowsFile>(metrics_file(files, folder / "metrics.jsonl")));
      add(std::make_unique<EventsFile>(files, folder / "events.jsonl", std::move(program)));
    }
    add(std::make_unique<RowsFile>(pipeline_file(files, folder / "data_pipeline.jsonl")));
    add(std::make_unique<RowsFile>(samples_file(files, folder / "samples.jsonl")));
    if (chosen("tensorboard")) add(std::make_unique<TensorboardFile>(files, folder));
    if (chosen("prometheus")) add(std::make_unique<PrometheusFile>(files, folder / "metrics.prom"));
  }
  // Neither needs to hear what is on standard error already. The console is cleared by the relay, so it is kept in any case.
  const bool shown = dry_run || chosen("console");
  if (!shown) add(std::make_unique<WarningsOnly>(), false);
  if (shown) relay_->add(*console, false);
  observers_.push_back(std::move(console));
  add(std::make_unique<Watch>(
      [relay = relay_.get()](const std::string& sentence) { relay->on(train::Warning{sentence}); }));
}

Sinks::~Sinks() { relay_.reset(); }  // it knows the others

void Sinks::add(std::unique_ptr<train::Observer> observer, bool hears_log) {
  relay_->add(*observer, hears_log);
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
