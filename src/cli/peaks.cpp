// redline peaks.
#include "base/error.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "io/json.h"
#include "perf/cards.h"
#include "perf/peak.h"
#include "report/figures.h"

namespace redline::cli {
namespace {

// Null for a type that a card does not compute in.
io::Json rate_json(double tflops) { return tflops > 0 ? io::Json(tflops) : io::Json(); }

std::string rate(double tflops) { return tflops > 0 ? fmt::format("{:g}", tflops) : "-"; }

void print_table() {
  print("What datasheets promise: TFLOP/s of dense products, without sparsity, with fp32 sums.\n\n");
  print(fmt::format("{:<13} {:<17} {:>7} {:>7} {:>7} {:>6} {:>7} {:>6} {:>7} {:>6}\n", "--card", "card", "bf16", "fp16",
                    "tf32", "fp32", "fp8", "fp4", "GiB", "TB/s"));
  for (const perf::Card& c : perf::cards())
    print(fmt::format("{:<13} {:<17} {:>7} {:>7} {:>7} {:>6} {:>7} {:>6} {:>7.1f} {:>6.2f}\n", c.id, c.name,
                      rate(c.tflops.bf16), rate(c.tflops.fp16), rate(c.tflops.tf32), rate(c.tflops.fp32),
                      rate(c.tflops.fp8), rate(c.tflops.fp4), c.memory_gib, c.gbytes * 1e-3));
}

io::Json table_json() {
  io::Json rows = io::Json::array();
  for (const perf::Card& c : perf::cards())
    rows.push_back({{"card", c.id},
                    {"name", c.name},
                    {"tflops",
                     {{"bf16", rate_json(c.tflops.bf16)},
                      {"fp16", rate_json(c.tflops.fp16)},
                      {"tf32", rate_json(c.tflops.tf32)},
                      {"fp32", rate_json(c.tflops.fp32)},
                      {"fp8", rate_json(c.tflops.fp8)},
                      {"fp4", rate_json(c.tflops.fp4)}}},
                    {"memory_gib", c.memory_gib},
                    {"gbytes_per_s", c.gbytes}});
  return rows;
}

}  // namespace

int run_peaks(const Words& words) {
  Arguments arguments("peaks", "what the datasheets of cards promise, and what this machine reaches",
                      "[--device NAME] [--json]", {"redline peaks", "redline peaks --device cpu --json"});
  std::string device_name = "auto";
  bool json = false;
  arguments.text("--device", "NAME", device_name, "what to measure: cpu, cuda or auto (default: auto)");
  arguments.json(json);
  arguments.exits(kStopped, "stopped by a signal: there is no result");
  if (!arguments.parse(words)) return kDone;

  StopAtOnce stopping("stopped; there is no result");
  const auto device = device::open_device(device_name);
  const bool cuda = device->kind() == device::Kind::cuda;
  const perf::Card* card = cuda ? perf::find_card(device->name()) : nullptr;
  const perf::Peak products = perf::measure_peak(*device);
  const double copy = perf::measure_copy_rate(*device);
  stopping.hold();
  const double peak = card ? 1e12 * card->tflops.bf16 : products.flops;
  if (json) {
    print_json({{"cards", table_json()},
                {"machine",
                 {{"name", device->name()},
                  {"card", card ? io::Json(card->id) : io::Json()},
                  {"memory_bytes", device->memory_bytes()},
                  {"peak_flops", peak},
                  {"peak_source", card ? "datasheet, dense bf16" : products.source},
                  {"measured_flops", products.flops},
                  {"measured_with", products.source},
                  {"copy_bytes_per_s", copy}}}});
    return kDone;
  }
  print_table();
  print(fmt::format("\nThis machine: {}, {}\n", device->name(),
                    report::bytes(static_cast<double>(device->memory_bytes()))));
  const auto of_sheet = [&](double reached, double promised) {
    return card ? fmt::format(", {} of the datasheet's", report::percent(reached / promised)) : std::string();
  };
  print(fmt::format("products  {} ({}){}\n", report::flop_rate(products.flops), products.source,
                    of_sheet(products.flops, peak)));
  print(fmt::format("copy      {:.1f} GB/s (measured: read and written bytes of a large copy){}\n", copy * 1e-9,
                    of_sheet(copy * 1e-9, card ? card->gbytes : 0)));
  print(fmt::format("mfu       is held against {} ({})\n", report::flop_rate(peak),
                    card ? "datasheet, dense bf16" : "measured; no datasheet of it is known here"));
  return kDone;
}

}  // namespace redline::cli
