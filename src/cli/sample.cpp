// redline sample.
#include "infer/sample.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>

#include "base/error.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "io/json.h"

namespace redline::cli {

int run_sample(const Words& words) {
  Arguments arguments("sample", "continue a text with a trained model", "--checkpoint DIR --prompt TEXT",
                      {"redline sample --checkpoint runs/a --prompt '<begin><source>10.'",
                       "redline sample --checkpoint runs/a --prompt 'Once' --temperature 0 --tokens 50"});
  std::string checkpoint_argument, prompt, device_name = "auto";
  infer::SampleOptions options;
  std::int64_t seed = 0;
  bool json = false;
  arguments.text("--checkpoint", "DIR", checkpoint_argument,
                 "a run (its newest checkpoint), a step, or a Hugging Face folder");
  arguments.text("--prompt", "TEXT", prompt, "the text to continue; roles of the corpus are written as <name>");
  arguments.integer("--tokens", "N", options.tokens, 1, 1'000'000,
                    "stop after so many, or where the text ends (default: 200)");
  arguments.number("--temperature", "T", options.temperature, 0, 100, "0: always the likeliest token (default: 0.8)");
  arguments.integer("--top-k", "K", options.top_k, 0, 1 << 30,
                    "choose among the K likeliest, 0: among all (default: 0)");
  arguments.integer("--seed", "S", seed, 0, std::numeric_limits<std::int64_t>::max(),
                    "the same seed gives the same text (default: 0)");
  arguments.text("--device", "NAME", device_name, "cpu, cuda or auto (default: auto)");
  arguments.flag("--json", json, "print one JSON document instead of the text as it comes");
  if (!arguments.parse(words)) return kDone;
  if (checkpoint_argument.empty()) fail_user("redline sample needs --checkpoint DIR");
  if (prompt.empty()) fail_user("redline sample needs --prompt TEXT: at least one character to continue");
  options.seed = static_cast<std::uint64_t>(seed);

  const infer::Checkpoint checkpoint = infer::open_checkpoint(real_files(), checkpoint_argument);
  const infer::Vocabulary vocabulary(real_files(), checkpoint);
  const std::vector<std::int32_t> tokens = vocabulary.encode(prompt);
  options.end_token = vocabulary.end_token();
  const auto device = device::open_device(device_name);
  if (!json) print(prompt);
  // Text is shown as soon as it is sure: a token may end inside a character, which the next ones complete.
  std::vector<std::int32_t> said = tokens;
  std::size_t shown = vocabulary.decode(said).size();
  const auto show = [&](bool last) {
    const std::string text = vocabulary.decode(said);
    std::size_t end = text.size();
    while (!last && std::string_view(text).substr(0, end).ends_with("\xEF\xBF\xBD")) end -= 3;
    if (end > shown) print(text.substr(shown, end - shown));
    shown = std::max(shown, end);
    std::fflush(stdout);
  };
  const auto start = std::chrono::steady_clock::now();
  const infer::Sample sample = infer::sample(checkpoint, tokens, options, *device, [&](std::int32_t token) {
    said.push_back(token);
    if (!json) show(false);
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (json)
    print_json({{"checkpoint", checkpoint.folder.string()},
                {"prompt", prompt},
                {"text", vocabulary.decode(sample.tokens)},
                {"tokens", sample.tokens},
                {"ended", sample.ended},
                {"seconds", seconds}});
  else
    show(true), print("\n");
  return kDone;
}

}  // namespace redline::cli
