// Files first: what a person has seen is then already in them.
#include "report/sinks.h"

#include <algorithm>

#include "report/console.h"
#include "report/prometheus_file.h"
#include "report/relay.h"
#include "report/rows_file.h"
#include "report/tensorboard_file.h"
#include "report/watch.h"

namespace redline::report {
namespace {

// Without a console, warnings are still printed.
class WarningsOnly final : public train::Observer {
  void on(const train::Event& event) override {
    hear(event, [](const train::Warning& e) { log::write_line(true, e.text); });
  }
};

}  // namespace

Sinks::Sinks(FileSystem& files, const config::Config& config, const Path& folder, std::string program, bool dry_run) {
  auto console = std::make_unique<Console>(stdout);
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
