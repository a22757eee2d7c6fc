// Files first: what a person has seen is then already in them.
#include "report/sinks.h"

#include <algorithm>
#include <cstdio>

#include "report/console.h"
#include "report/events_file.h"
#include "report/metrics_file.h"
#include "report/pipeline_file.h"
#include "report/prometheus_file.h"
#include "report/relay.h"
#include "report/tensorboard_file.h"
#include "report/watch.h"

namespace redline::report {
namespace {

// Where nobody looks at progress, what is wrong is still said.
class WarningsOnly final : public train::Observer {
  void warning(const std::string& sentence) override {
    const std::string line = "redline: warning: " + sentence + "\n";
    std::fwrite(line.data(), 1, line.size(), stderr);
  }
};

}  // namespace

Sinks::Sinks(FileSystem& files, const config::Config& config, const Path& folder, std::string program, bool dry_run)
    : relay_(std::make_unique<Relay>()) {
  const auto chosen = [&](std::string_view sink) {
    return std::ranges::find(config.log.sinks, sink) != config.log.sinks.end();
  };
  if (!dry_run) {
    if (chosen("jsonl")) {
      add(std::make_unique<MetricsFile>(files, folder / "metrics.jsonl"));
      add(std::make_unique<EventsFile>(files, folder / "events.jsonl", std::move(program)));
    }
    add(std::make_unique<PipelineFile>(files, folder / "data_pipeline.jsonl"));
    if (chosen("tensorboard")) add(std::make_unique<TensorboardFile>(files, folder));
    if (chosen("prometheus")) add(std::make_unique<PrometheusFile>(files, folder / "metrics.prom"));
  }
  if (dry_run || chosen("console"))
    add(std::make_unique<Console>(stdout));
  else
    add(std::make_unique<WarningsOnly>());
  add(std::make_unique<Watch>([relay = relay_.get()](const std::string& sentence) { relay->warning(sentence); }));
}

Sinks::~Sinks() { relay_.reset(); }  // it knows the others

void Sinks::add(std::unique_ptr<train::Observer> observer) {
  relay_->add(*observer);
  observers_.push_back(std::move(observer));
}

train::Observer& Sinks::observer() { return *relay_; }

void Sinks::record_failure(const std::string& sentence) noexcept {
  try {
    relay_->failed(sentence);
  } catch (...) {
  }
}

}  // namespace redline::report
