// redline profile.
#include "perf/profile.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/words.h"
#include "cli/commands.h"
#include "cli/config.h"
#include "cli/measuring.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "io/json.h"
#include "perf/fp8_choice.h"
#include "perf/peak.h"
#include "report/figures.h"
#include "train/run_folder.h"

namespace redline::cli {
namespace {

double mfu(const perf::Profile& p, const perf::Peak& peak) { return p.model_flops / (p.step_ms * 1e-3) / peak.flops; }

std::string row(const perf::TimedWork& w, const perf::Peak& peak, int width) {
  const bool products = w.flops > 0;
  return fmt::format("{:<{}}  {:>9.3f}  {:>6}  {:>5.0f}  {:>9}  {:>7.1f}  {:>7}  {:>8}  {}\n", w.name, width, w.ms,
                     report::percent(w.share), w.calls, products ? fmt::format("{:.1f}", w.gflops()) : "-", w.gbytes(),
                     products ? report::percent(w.gflops() * 1e9 / peak.flops) : "-", report::percent(w.of_roofline()),
                     w.types);
}

std::string table(std::string_view title, const std::vector<perf::TimedWork>& work, const perf::Peak& peak) {
  int width = static_cast<int>(title.size());
  for (const perf::TimedWork& w : work) width = std::max(width, static_cast<int>(w.name.size()));
  std::string out = fmt::format("\n{:<{}}  {:>9}  {:>6}  {:>5}  {:>9}  {:>7}  {:>7}  {:>8}  {}\n", title, width, "ms",
                                "share", "calls", "GFLOP/s", "GB/s", "of peak", "roofline", "types");
  for (const perf::TimedWork& w : work) out += row(w, peak, width);
  return out;
}

std::vector<perf::TimedWork> slowest(const perf::Profile& p, std::int64_t n) {
  std::vector<perf::TimedWork> nodes = p.nodes;
  std::ranges::stable_sort(nodes, [](const auto& a, const auto& b) { return a.ms > b.ms; });
  nodes.resize(std::min(nodes.size(), static_cast<std::size_t>(n)));
  return nodes;
}

// "products take bf16 in 145 nodes; none is widened to f32".
std::string types_in_words(const perf::Profile& p) {
  std::vector<std::string> parts;
  for (const auto& [type, nodes] : p.products) parts.push_back(fmt::format("{} in {}", type, counted(nodes, "node")));
  std::string text = fmt::format("products take {}", fmt::join(parts, ", "));
  if (p.upcast.empty()) return text + "; none is widened";
  return text + fmt::format("; widened to f32: {}{}", p.upcast[0],
                            p.upcast.size() > 1 ? fmt::format(" and {} more", p.upcast.size() - 1) : "");
}

void print_text(const perf::Profile& p, const perf::Peak& peak, double copy_rate, std::int64_t nodes) {
  const double seconds = p.step_ms * 1e-3;
  print(fmt::format("step     {}: {}, {}, mfu {}\n", report::duration(seconds), report::token_rate(p.tokens / seconds),
                    report::flop_rate(p.model_flops / seconds), report::percent(mfu(p, peak))));
  print(fmt::format("peak     {} ({})\n", report::flop_rate(peak.flops), peak.source));
  print(fmt::format(
      "memory   {:.1f} GB/s (measured: a large copy); roofline: the longer of a node's products at the peak "
      "and its bytes at this rate, over its time\n",
      copy_rate * 1e-9));
  print(fmt::format("device   {}; mean of {}\n", p.device, counted(p.steps, "step")));
  print(fmt::format("types    {}\n", types_in_words(p)));
  print(table("op", p.kinds, peak));
  const auto line = [&](std::string_view what, double ms) {
    print(fmt::format("{:>9.3f} ms  {:>6}  {}\n", ms, report::percent(ms / p.step_ms), what));
  };
  print("\n");
  line("in nodes", p.nodes_ms);
  line("waiting for data", p.data_ms);
  line("outside: uploads, reading results, the timer", p.outside_ms);
  line("the step", p.step_ms);
  if (p.untimed_ms > 0)
    print(fmt::format("{:>9.3f} ms          the step as training runs it; the nodes' sum differs by {:+.1f}%\n",
                      p.untimed_ms, 100 * (p.nodes_ms / p.untimed_ms - 1)));
  if (nodes > 0) print(table("slowest nodes", slowest(p, nodes), peak));
}

io::Json to_json(const std::vector<perf::TimedWork>& work, bool phases) {
  io::Json out = io::Json::array();
  for (const perf::TimedWork& w : work) {
    io::Json& row = out.emplace_back(io::Json{{"name", w.name}, {"op", w.op}});
    if (phases) row["phase"] = w.phase;
    row.update({{"types", w.types},
                {"calls", w.calls},
                {"ms", w.ms},
                {"share", w.share},
                {"flops", w.flops},
                {"bytes", w.bytes},
                {"gflops_per_s", w.gflops()},
                {"gbytes_per_s", w.gbytes()},
                {"roofline", w.of_roofline()}});
  }
  return out;
}

io::Json to_json(const perf::Profile& p, const perf::Peak& peak, double copy_rate, const std::string& trace) {
  return {{"device", p.device},
          {"steps", p.steps},
          {"step_ms", p.step_ms},
          {"nodes_ms", p.nodes_ms},
          {"data_ms", p.data_ms},
          {"outside_ms", p.outside_ms},
          {"tokens_per_s", p.tokens / (p.step_ms * 1e-3)},
          {"model_flops", p.model_flops},
          {"peak_flops", peak.flops},
          {"peak_source", peak.source},
          {"copy_bytes_per_s", copy_rate},
          {"untimed_ms", p.untimed_ms},
          {"mfu", mfu(p, peak)},
          {"trace", trace},
          {"products", p.products},
          {"upcast", p.upcast},
          {"kinds", to_json(p.kinds, false)},
          {"nodes", to_json(p.nodes, true)}};
}

}  // namespace

int run_profile(const Words& words) {
  Arguments arguments("profile", "where the time of a training step goes: every node against what the machine could do",
                      "[CONFIG] [key=value ...] [--run DIR] [--steps N] [--trace FILE]",
                      {"redline profile", "redline profile ping-95m train.batch_size=4 --steps 3 --nodes 20",
                       "redline profile --run runs/a        with its configuration, and for its report"});
  ConfigWords config;
  perf::ProfileOptions options;
  std::int64_t nodes = 10;
  std::string trace, run, device_name = "auto";
  bool json = false;
  config.declare(arguments);
  arguments.integer("--steps", "N", options.steps, 1, 100'000, "steps to measure (default: 10)");
  arguments.text("--run", "DIR", run,
                 "profile with the configuration of the run in DIR; leaves profile.json there, for redline report");
  arguments.text("--trace", "FILE", trace,
                 "where the Chrome trace goes (default: redline-trace.json, here or in the folder of --run)");
  arguments.integer("--nodes", "N", nodes, 0, 1'000'000, "slowest nodes to show (default: 10)");
  arguments.device(device_name);
  arguments.flag("--json", json, "print all nodes as one JSON document");
  arguments.exits(kStopped, "stopped by a signal: nothing was written");
  if (!arguments.parse(words)) return kDone;
  if (!run.empty() && !config.preset.empty()) fail_user("--run {} brings its configuration; leave --preset away", run);

  StopAtOnce stopping("stopped; nothing was written");
  config::Sources sources = sources_of(config);
  if (!run.empty()) {
    for (const std::string& other : {sources.file, sources.preset})
      if (!other.empty()) fail_user("--run {} brings its configuration; leave {} away", run, other);
    sources.file = (Path(run) / train::kRunConfig).string();
    sources.of_run = true;
    if (!real_files().exists(sources.file)) fail_user("--run {}: that holds no run (no {})", run, train::kRunConfig);
  }
  if (trace.empty()) trace = (Path(run) / "redline-trace.json").string();
  options.config = load_to_measure(sources);
  check_output_file("--trace", trace, kTraceFile);
  const auto device = device::open_device(device_name);
  if (const std::string chosen = resolve_batch_size(options.config, *device, false); !chosen.empty())
    log::note("{}", chosen);
  if (options.config.precision.matmul == "fp8") {
    const perf::Fp8Choice fp8 = perf::settle_fp8(options.config, *device, true);
    options.config = fp8.config;
    log::note("fp8: {}", model::in_words(model::fp8_products(fp8.config), fp8.reasons));
  }
  const perf::Peak peak = perf::find_peak(*device);
  options.peak_flops = peak.flops;
  options.copy_rate = perf::measure_copy_rate(*device);
  const perf::Profile p = profile_on(*device, options, "profiling");
  const io::Json document = to_json(p, peak, options.copy_rate, trace);
  const std::string traced = perf::chrome_trace(p);

  stopping.hold();
  real_files().replace(trace, traced);
  if (!run.empty()) real_files().replace(Path(run) / "profile.json", document.dump(2) + "\n");
  if (json) {
    print_json(document);
    return kDone;
  }
  print_text(p, peak, options.copy_rate, nodes);
  print(fmt::format("\ntrace    {} (open it in chrome://tracing or ui.perfetto.dev)\n", trace));
  return kDone;
}

}  // namespace redline::cli
