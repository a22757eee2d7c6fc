// redline sample.
#include "infer/sample.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>

#include "base/error.h"
#include "base/words.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "io/json.h"
#include "perf/peak.h"
#include "report/figures.h"
#include "report/live_line.h"

namespace redline::cli {
namespace {

constexpr std::int64_t kStepsToMeasure = 8;  // fewer say nothing about a rate

struct SampleRequest {
  std::string model, prompt, tokenizer, device = "auto";
  infer::SampleOptions options;
  std::vector<std::string> stops, stop_tokens;
  bool average = false, json = false;
};

std::int32_t token_id(const std::string& text, std::int64_t vocab) {
  std::int64_t id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id < 0 || id >= vocab)
    fail_user("--stop-token takes a token id from 0 to {}, not '{}'", vocab - 1, text);
  return static_cast<std::int32_t>(id);
}

std::vector<std::int32_t> encode_prompt(const infer::Vocabulary& vocabulary, const std::string& text) {
  try {
    return vocabulary.encode(text);
  } catch (const UserError& e) {
    fail_user("--prompt: {}", e.what());
  }
}

// One text that is shown as it comes, and the others when they are whole: lines of several would mix.
class Page {
 public:
  Page(const infer::Vocabulary& vocabulary, const SampleRequest& settings, std::span<const std::int32_t> prompt)
      : settings_(settings), live_(!settings.json) {
    for (std::int64_t i = 0; i < settings.options.samples; ++i)
      streams_.emplace_back([&vocabulary](std::span<const std::int32_t> t) { return vocabulary.decode(t); }, prompt,
                            settings.stops);
  }

  bool hear(std::size_t sample, std::int32_t token) {
    const std::string more = streams_[sample].push(token);
    if (live_ && sample == 0) {
      begin_first();
      show(more);
    }
    return !streams_[sample].stopped() && !output_failed();
  }

  void finish() {
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      const std::string rest = streams_[i].finish();
      if (!live_) continue;
      if (i > 0) begin(i);
      if (i == 0) begin_first();
      print_data(i == 0 ? rest : streams_[i].text());
      print("\n");
    }
    flush_output();  // before figures on the other stream
  }

  const infer::TextStream& stream(std::size_t i) const { return streams_[i]; }

 private:
  // Not before there is a token: what is wrong with the weights stands on a line of its own.
  void begin_first() {
    if (!begun_) begin(0);
    begun_ = true;
  }
  void begin(std::size_t i) {
    if (streams_.size() > 1) print(fmt::format("--- sample {} of {}\n", i + 1, streams_.size()));
    show(settings_.prompt);
  }
  static void show(const std::string& text) {
    print_data(text);
    flush_output();
  }

  const SampleRequest& settings_;
  bool live_, begun_ = false;
  std::vector<infer::TextStream> streams_;
};

double rate(std::int64_t tokens, double seconds) { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }

// The time of the steps if they had only moved the bytes they must.
double floor_seconds(const model::GenerateFigures& f, device::Device& device) {
  return f.steps < kStepsToMeasure ? 0 : f.decode_bytes / perf::measure_copy_rate(device);
}

void print_figures(const model::GenerateFigures& f, double floor) {
  std::string line =
      fmt::format("prefill: {} in {}, {}\n", counted(f.prompt_tokens, "token"), report::duration(f.prefill_seconds),
                  report::token_rate(rate(f.prompt_tokens, f.prefill_seconds)));
  if (f.steps > 0) {
    const double step = f.decode_seconds / static_cast<double>(f.steps);
    line += fmt::format("decode:  {} in {} of {}, {}", counted(f.decoded, "token"), counted(f.steps, "step"),
                        report::duration(step), report::token_rate(rate(f.decoded, f.decode_seconds)));
    if (floor > 0)
      line += fmt::format("; memory alone would take {} a step: {} of that rate",
                          report::duration(floor / static_cast<double>(f.steps)),
                          report::percent(floor / f.decode_seconds));
    line += "\n";
  }
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void print_as_json(const SampleRequest& settings, const infer::Checkpoint& checkpoint, const Page& page,
                   const model::Generated& g, double floor) {
  io::Json samples = io::Json::array();
  for (std::size_t i = 0; i < g.texts.size(); ++i)
    samples.push_back({{"text", page.stream(i).text()}, {"tokens", g.texts[i].tokens}, {"ended", g.texts[i].ended}});
  const model::GenerateFigures& f = g.figures;
  io::Json out = {{"checkpoint", checkpoint.folder.string()},
                  {"prompt", settings.prompt},
                  {"text", samples[0]["text"]},
                  {"tokens", samples[0]["tokens"]},
                  {"ended", samples[0]["ended"]},
                  {"seconds", f.prefill_seconds + f.decode_seconds},
                  {"samples", samples},
                  {"prefill", {{"tokens", f.prompt_tokens}, {"seconds", f.prefill_seconds}}},
                  {"decode", {{"tokens", f.decoded}, {"steps", f.steps}, {"seconds", f.decode_seconds}}}};
  out["decode"]["floor_seconds"] = floor > 0 ? io::Json(floor) : io::Json(nullptr);
  print_json(out);
}

// False: only help was asked for.
bool read_sample_words(const Words& words, SampleRequest& s) {
  Arguments arguments("sample", "continue a text with a trained model",
                      "MODEL --prompt TEXT [--tokens N] [--temperature T] [--json]",
                      {"redline sample runs/a --prompt '<begin><source>10.'",
                       "redline sample runs/a --prompt 'Once' --temperature 0 --tokens 50",
                       "redline sample HF_DIR --prompt 'Q: ' --samples 4 --top-p 0.9 --stop 'Q:'"});
  ModelWords model;
  model::GenerateOptions& g = s.options.generate;
  std::int64_t seed = 0;
  model.declare(arguments);
  arguments.text("--prompt", "TEXT", s.prompt,
                 "the text to continue; of the generated corpus, special tokens are written as <name>");
  arguments.integer("--tokens", "N", g.tokens, 1, 1'000'000,
                    "write at most so many tokens; fewer where the text ends (default: 200)");
  arguments.integer("--samples", "N", s.options.samples, 1, 100'000,
                    "how many texts to write from the prompt; each is what it would be alone (default: 1)");
  arguments.number("--temperature", "T", g.choice.temperature, 0, 100,
                   "how freely to choose, 0: always the likeliest token (default: 0.8)");
  arguments.integer("--top-k", "K", g.choice.top_k, 0, 1 << 30,
                    "choose among the K likeliest, 0: among all (default: 0)");
  arguments.number("--top-p", "P", g.choice.top_p, 0, 1,
                   "of those, among the fewest that hold this share of the probability (default: 1)");
  arguments.integer("--seed", "S", seed, 0, std::numeric_limits<std::int64_t>::max(),
                    "the same seed gives the same text (default: 0)");
  arguments.repeated("--stop", "TEXT", s.stops, "end before this text; may be given several times");
  arguments.repeated("--stop-token", "ID", s.stop_tokens, "end at this token; may be given several times");
  arguments.text("--tokenizer", "NAME", s.tokenizer,
                 "for a model that brings none: a tokenizer.json, a sentencepiece .model, a folder with one, bytes or "
                 "ping (default: the model's own)");
  arguments.device(s.device);
  arguments.precision(s.options.precision);
  arguments.average(s.average);
  arguments.flag("--json", s.json, "print one JSON document instead of the text as it comes");
  arguments.exits(kStopped, "stopped by a signal: the text ends where it was");
  if (!arguments.parse(words)) return false;
  s.model = model.model("sample", "the text to continue is given with --prompt");
  if (s.prompt.empty()) fail_user("redline sample needs --prompt TEXT: at least one character to continue");
  if (std::ranges::find(s.stops, "") != s.stops.end()) fail_user("--stop takes a text of at least one character");
  g.seed = static_cast<std::uint64_t>(seed);
  return true;
}

void sample(const infer::Checkpoint& checkpoint, SampleRequest& s, StopAtOnce& stopping) {
  const infer::Vocabulary vocabulary(real_files(), checkpoint, s.tokenizer);
  const std::vector<std::int32_t> prompt = encode_prompt(vocabulary, s.prompt);
  std::vector<std::int32_t>& stop_tokens = s.options.generate.stop_tokens;
  stop_tokens = vocabulary.end_tokens();
  for (const std::string& id : s.stop_tokens) stop_tokens.push_back(token_id(id, checkpoint.model.vocab));
  infer::check_prompt(checkpoint, prompt);
  const auto device = device::open_device(s.device);
  Page page(vocabulary, s, prompt);
  report::BytesLine loading("loading weights");
  s.options.loading = loading.progress();
  const model::Generated g =
      infer::sample(checkpoint, prompt, s.options, *device,
                    [&](std::size_t sample, std::int32_t token) { return page.hear(sample, token); });
  stopping.hold();
  page.finish();
  const double floor = floor_seconds(g.figures, *device);
  if (s.json)
    print_as_json(s, checkpoint, page, g, floor);
  else
    print_figures(g.figures, floor);
}

}  // namespace

int run_sample(const Words& words) {
  SampleRequest s;
  if (!read_sample_words(words, s)) return kDone;
  StopAtOnce stopping("stopped");
  infer::use_checkpoint(
      real_files(), s.model, [&](const infer::Checkpoint& c) { sample(c, s, stopping); }, s.average);
  return kDone;
}

}  // namespace redline::cli
