// redline tune.
#include "perf/tune.h"

#include "base/error.h"
#include "cli/commands.h"
#include "cli/measuring.h"
#include "cli/output.h"
#include "config/keys.h"
#include "report/figures.h"

namespace redline::cli {
namespace {

void read_allowed(const std::vector<std::string>& words, perf::TuneOptions& options) {
  for (const std::string& word : words) {
    if (word == "batch")
      options.allow_batch = true;
    else if (word == "fp8")
      options.allow_fp8 = true;
    else
      fail_user("--allow takes batch or fp8, not '{}'", word);
  }
}

}  // namespace

int run_tune(const Words& words) {
  Arguments arguments(
      "tune", "search the settings that train a configuration fastest on this machine, and write them down",
      "[CONFIG] [key=value ...] [--seconds N] [--allow batch|fp8] [--out FILE]",
      {"redline tune my.toml --seconds 300                 writes my.tuned.toml",
       "redline train my.toml --overlay my.tuned.toml      trains with what was found",
       "redline tune my.toml --allow fp8 --allow batch     also what changes the loss or the rows of a step"});
  ConfigWords config;
  TableFiles files;
  std::string device_name = "auto", out;
  std::vector<std::string> allowed;
  perf::TuneOptions options;
  config.declare(arguments);
  arguments.number("--seconds", "N", options.seconds, 1, 1e6,
                   "how long the search should take, about (default: 120); tuning products for the first time comes on "
                   "top");
  arguments.repeated("--allow", "WHAT", allowed,
                     "what else may change: fp8 (products in eight bits), batch (the rows of a step, and the learning "
                     "rate with the root of them); without it the loss means the same");
  arguments.text("--out", "FILE", out, "where the overlay goes (default: NAME.tuned.toml)");
  arguments.text("--device", "NAME", device_name, "where to run: cpu, cuda or auto (default: auto)");
  files.declare(arguments);
  if (!arguments.parse(words)) return kDone;
  read_allowed(allowed, options);

  const config::Sources sources = sources_of(config);
  if (out.empty()) out = name_of(sources) + ".tuned.toml";
  check_output_file("--out", out, {sources.file});
  files.check(sources);
  const perf::LoadConfig load = with_keys(sources);
  const config::Config own = load({});
  Measuring measuring("tune", device_name, options.seconds);
  measuring.take(options);
  const perf::Tuned tuned = perf::tune(load, measuring.bench(), options);
  measuring.clear();

  MeasuredTable table;
  table.first = "start";
  table.rows = tuned.rows;
  table.stopped = tuned.stopped;
  table.title = "tuning of " + name_of(sources);
  table.device = measuring.device().name();
  table.about = measuring.about(own);
  for (const std::string& key : config::differing_keys(tuned.start, tuned.best))
    table.result.push_back(
        fmt::format("{}={}", key, config::literal(config::read(*config::find_key(key), tuned.best))));
  if (!files.markdown) print(fmt::format("{} on {}\n", table.title, table.device));
  files.write(table);
  if (tuned.stopped) {
    print("stopped: no overlay was written\n");
    return kStopped;
  }
  real_files().replace(out,
                       perf::overlay_of(tuned, table.device, fmt::format("redline tune {}", fmt::join(words, " "))));
  if (tuned.faster)
    print(fmt::format("\nin turns: {} at the start, {} now (x{:.3f})\n",
                      report::token_rate(tuned.start_again.tokens_per_s),
                      report::token_rate(tuned.best_again.tokens_per_s),
                      tuned.best_again.tokens_per_s / tuned.start_again.tokens_per_s));
  else
    print("\nnothing was faster than the configuration as it is, beyond noise\n");
  for (const std::string& key : table.result) print(fmt::format("  {}\n", key));
  print(fmt::format("overlay: {} (redline train CONFIG --overlay {})\n", out, out));
  return kDone;
}

}  // namespace redline::cli
