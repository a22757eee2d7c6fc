// Opens the device, and puts what was measured where it was asked for.
#include "cli/measuring.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/error.h"
#include "base/words.h"
#include "cli/output.h"
#include "io/json.h"
#include "report/figures.h"

namespace redline::cli {
namespace {

constexpr auto kAskForEnergy = std::chrono::milliseconds(100);

}  // namespace

Measuring::Measuring(std::string what, const std::string& device_name, double seconds)
    : what_(std::move(what)),
      seconds_(seconds),
      begin_(steady_seconds()),
      device_(device::open_device(device_name)),
      peak_(perf::find_peak(*device_)),
      line_(stderr) {
  if (device_->kind() == device::Kind::cuda)
    gpu_ = device::GpuMonitor::open(device_->bus_id(), "libnvidia-ml.so.1", kAskForEnergy);
  perf::MeasureOptions options;
  options.peak_flops = peak_.flops;
  options.stop = &signals_.caught();
  options.gpu = gpu_.get();
  bench_ = perf::bench_on(*device_, options);
}

void Measuring::show(const std::string& name, std::size_t number, std::size_t of) {
  const double took = steady_seconds() - begin_, done = static_cast<double>(number) - 1;
  const double rest = static_cast<double>(of) - done;
  const double left = done > 0 ? std::max(took / done * rest, 0.0) : seconds_;
  line_.show(fmt::format("{}: {} ({}/{}), eta {}", what_, name, number, of,
                         report::duration(done > 2 ? left : std::max(left, seconds_ - took))));
}

std::string Measuring::about(const config::Config& c) const {
  return fmt::format("{} of {}{}, data {}; peak {} ({})", counted(c.train.batch_size, "row"),
                     counted(c.train.seq_len, "token"),
                     c.train.accumulate > 1 ? fmt::format(" x {} micro-batches", c.train.accumulate) : "",
                     fmt::join(c.data.train, ", "), report::flop_rate(peak_.flops), peak_.source);
}

perf::LoadConfig with_keys(const config::Sources& sources) {
  return [sources](const perf::KeyValues& keys) {
    config::Sources with = sources;
    with.overrides.insert(with.overrides.end(), keys.begin(), keys.end());
    return load_config(with);
  };
}

void TableFiles::declare(Arguments& arguments) {
  arguments.text("--html", "FILE", html, "the table as a page with bars, in one file");
  arguments.text("--json", "FILE", json, "the table as one JSON document");
  arguments.flag("--markdown", markdown, "print the table as Markdown");
}

void TableFiles::check(const config::Sources& sources) const {
  if (!html.empty()) check_output_file("--html", html, {sources.file});
  if (!json.empty()) check_output_file("--json", json, {sources.file});
}

void TableFiles::write(const MeasuredTable& table) const {
  print(markdown ? to_markdown(table) : to_text(table));
  if (!json.empty())
    real_files().replace(json, to_json(table).dump(2, ' ', false, io::Json::error_handler_t::replace) + "\n");
  if (!html.empty()) real_files().replace(html, to_page(table));
  for (const std::string& file : {json, html})
    if (!file.empty() && !markdown) print(fmt::format("table: {}\n", file));
}

}  // namespace redline::cli
