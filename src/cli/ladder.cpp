// redline ladder.
#include "perf/ladder.h"

#include "base/error.h"
#include "cli/commands.h"
#include "cli/measuring.h"
#include "cli/output.h"

namespace redline::cli {

int run_ladder(const Words& words) {
  Arguments arguments(
      "ladder", "what each optimisation gives on this machine, from the naive step to the full one",
      "[CONFIG] [key=value ...] [--seconds N] [--without] [--html FILE]",
      {"redline ladder ping-95m                            18 rungs in about two minutes",
       "redline ladder my.toml --seconds 300 --html ladder.html",
       "redline ladder my.toml --without                   each left out of the full step",
       "redline ladder my.toml --tier fastest              what the tiers safe, fast and fastest reach here",
       "redline ladder quick --device cpu --seconds 20"});
  ConfigWords config;
  TableFiles files;
  std::string device_name = "auto";
  perf::LadderOptions options;
  config.declare(arguments);
  arguments.number("--seconds", "N", options.seconds, 1, 1e6,
                   "how long all of it should take, about (default: 120); tuning products for the first time comes on "
                   "top");
  arguments.flag("--without", options.without, "leave each rung out of the full step, instead of climbing up to it");
  arguments.text("--device", "NAME", device_name, "where to run: cpu, cuda or auto (default: auto)");
  files.declare(arguments);
  if (!arguments.parse(words)) return kDone;
  const std::string tier = std::exchange(config.tier, "");
  if (options.without && !tier.empty()) fail_user("--without and --tier cannot be combined: a tier has no rungs");

  config::Sources sources = sources_of(config);
  files.check(sources);
  const perf::LoadConfig load = with_keys(sources);
  const config::Config own = load({});  // what is wrong with it is told before anything runs
  Measuring measuring("ladder", device_name, options.seconds);
  measuring.take(options);
  const perf::Ladder ladder = tier.empty() ? perf::climb(load, measuring.bench(), options)
                                           : perf::climb_tiers(load, measuring.bench(), options, tier);
  measuring.clear();

  MeasuredTable table;
  table.title = fmt::format("{} of {}", tier.empty() ? "ladder" : "tiers", name_of(sources));
  table.device = measuring.device().name();
  table.about = measuring.about(own);
  if (options.without) table.first = "full";
  table.rows = ladder.rows;
  table.result = ladder.full;
  table.stopped = ladder.stopped;
  if (!files.markdown) print(fmt::format("{} on {}\n", table.title, table.device));
  files.write(table);
  if (ladder.stopped) {
    print("stopped: these are the rungs that were measured\n");
    return kStopped;
  }
  if (tier.empty() && !options.without && !files.markdown)
    print(fmt::format("\nthe full step: {}\n", fmt::join(ladder.full, " ")));
  return kDone;
}

}  // namespace redline::cli
