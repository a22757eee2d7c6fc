// redline verify.
#include "infer/verify.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/words.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "io/json.h"
#include "report/live_line.h"

namespace redline::cli {
namespace {

constexpr std::size_t kShown = 12;

void print_text(const infer::Verification& v) {
  print(fmt::format("{}, {}, {}, {}\n", counted(v.documents, "document"), counted(v.tokens, "token"),
                    counted(v.pairs, "pair"), counted(v.train_steps, "training step")));
  print("   error   tolerance  measure     tensor\n");
  const std::size_t shown = std::min(kShown, v.comparisons.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const infer::Comparison& c = v.comparisons[i];
    print(fmt::format("{:>8.2e}  {:>10.0e}  {:<10}  {}{}{}\n", c.error, c.tolerance, name_of(c.measure), c.name,
                      c.against == "cpu" ? ", against the CPU" : "", c.within() ? "" : "  OUTSIDE"));
  }
  if (shown < v.comparisons.size())
    print(fmt::format("... and {} more that are nearer to the oracle\n", v.comparisons.size() - shown));
  for (const std::string& kind : v.absent) print(fmt::format("not compared: the case holds no {}* tensors\n", kind));
  std::size_t outside = 0;
  for (const infer::Comparison& c : v.comparisons) outside += c.within() ? 0 : 1;
  print(outside == 0
            ? fmt::format("all {} comparisons are within tolerance\n", v.comparisons.size())
            : fmt::format("outside tolerance: {} of {}\n", outside, counted(v.comparisons.size(), "comparison")));
}

void print_as_json(const infer::Verification& v, const std::string& folder) {
  io::Json tensors = io::Json::array();
  for (const infer::Comparison& c : v.comparisons)
    tensors.push_back({{"name", c.name},
                       {"against", c.against},
                       {"measure", name_of(c.measure)},
                       {"error", c.error},
                       {"tolerance", c.tolerance},
                       {"within", c.within()}});
  print_json({{"case", folder},
              {"within", v.within()},
              {"documents", v.documents},
              {"tokens", v.tokens},
              {"pairs", v.pairs},
              {"train_steps", v.train_steps},
              {"absent", v.absent},
              {"tensors", std::move(tensors)}});
}

}  // namespace

int run_verify(const Words& words) {
  Arguments arguments(
      "verify",
      "compare logits, loss, gradients and training steps with what Hugging Face computed from the same "
      "weights",
      "CASE_DIR [--device NAME] [--precision NAME] [--json]",
      {"redline verify tests/fixtures/llama-mha",
       "redline verify tests/fixtures/llama-mha --device cuda --precision fp32"});
  std::vector<std::string> folders;
  std::string device_name = "auto";
  infer::VerifyOptions options;
  bool json = false;
  arguments.words(
      "CASE_DIR", folders,
      "a folder with config.json, model.safetensors and oracle.safetensors, as docs/formats.md describes them");
  arguments.device(device_name);
  arguments.choice(
      "--precision", "NAME", options.precision, {"bf16", "fp8", "tf32", "fp32"},
      "what matrix products compute with on a GPU: bf16, tf32 or fp32, or on any device fp8; a GPU's is held "
      "against the CPU's as well. Tolerances follow (default: bf16)");
  arguments.flag("--json", json, "print every tensor as one JSON document");
  arguments.exits(kDone, "all is within its tolerance");
  arguments.exits(kFailed, "a tensor is outside its tolerance, or the machine failed, which prints no figures");
  arguments.exits(kStopped, "stopped by a signal: there is no result");
  if (!arguments.parse(words)) return kDone;
  if (folders.empty()) fail_user("redline verify needs a folder: redline verify CASE_DIR");
  if (folders.size() > 1) fail_user("redline verify takes one folder, not also '{}'", folders[1]);

  StopAtOnce stopping("stopped; there is no result");
  const auto device = device::open_device(device_name);
  report::LiveLine progress(stderr);
  options.progress = [&](const std::string& doing) { progress.show("verifying: " + doing); };
  const infer::Verification v = infer::verify(real_files(), folders[0], *device, options);
  progress.clear();
  stopping.hold();
  if (json)
    print_as_json(v, folders[0]);
  else
    print_text(v);
  return v.within() ? kDone : kFailed;
}

}  // namespace redline::cli
