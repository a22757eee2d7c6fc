// redline eval.
#include <cmath>
#include <optional>

#include "base/error.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "infer/load.h"
#include "io/json.h"
#include "model/evaluate.h"
#include "report/figures.h"
#include "report/live_line.h"

namespace redline::cli {
namespace {

constexpr std::int64_t kEndlessBatches = 8, kMostPositions = 2048;
constexpr std::int64_t kByteVocabulary = 257;  // 256 bytes and <end>

// A checkpoint of ours is evaluated in the shape and on the data of its run; any other gets ping and rows of its own
// length.
config::Config settings(const infer::Checkpoint& checkpoint, const std::vector<std::string>& data) {
  config::Config c;
  if (checkpoint.run) {
    c = *checkpoint.run;
  } else {
    c.train.seq_len = std::min(checkpoint.max_positions, kMostPositions);
    c.train.eval_batches = kEndlessBatches;
  }
  if (data == std::vector<std::string>{"ping"}) {
    c.data.train = data;
    c.data.eval.clear();
  } else if (!data.empty()) {
    c.data.eval = data;
  }
  return c;
}

}  // namespace

int run_eval(const Words& words) {
  Arguments arguments(
      "eval", "loss on held-out data", "--checkpoint DIR [--data ping|FILES...] [--batches N] [--json]",
      {"redline eval --checkpoint runs/a", "redline eval --checkpoint runs/a --data notes.txt --batches 0"});
  std::string checkpoint_argument, device_name = "auto";
  std::vector<std::string> data;
  std::int64_t batches = -1;
  bool json = false;
  arguments.text("--checkpoint", "DIR", checkpoint_argument,
                 "a run (its newest checkpoint), a step, or a Hugging Face folder");
  arguments.texts("--data", "FILES", data,
                  "text files, or ping: the generated corpus (default: the run's held-out data)");
  arguments.integer("--batches", "N", batches, 0, 1'000'000'000,
                    "batches to evaluate, 0: all of a finite source (default: as the run does)");
  arguments.text("--device", "NAME", device_name, "cpu, cuda or auto (default: auto)");
  arguments.flag("--json", json, "print one JSON document");
  if (!arguments.parse(words)) return kDone;
  if (checkpoint_argument.empty()) fail_user("redline eval needs --checkpoint DIR");

  const infer::Checkpoint checkpoint = infer::open_checkpoint(real_files(), checkpoint_argument);
  const config::Config c = settings(checkpoint, data);
  auto source = data::open_held_out_source(c.data);
  data::require_vocabulary(*source, checkpoint.model.vocab);
  if (batches < 0) batches = c.train.eval_batches;
  if (batches == 0 && source->endless()) fail_user("--batches 0: {} never ends; give a number", source->name());
  const std::string name = source->name();
  const bool tokens_are_bytes = source->vocabulary() <= kByteVocabulary;

  const auto device = device::open_device(device_name);
  model::LoweringOptions lowering = model::lowering_options(c, device->kind());
  lowering.training = false;
  const auto engine = infer::load_engine(checkpoint, lowering, *device);
  data::Loader loader(std::move(source), data::evaluation_options(c.data, lowering.batch));
  report::LiveLine progress(stderr);
  const model::Evaluation e = model::evaluate(*engine, loader, batches, [&](std::int64_t done, std::int64_t of) {
    progress.show(of > 0 ? fmt::format("evaluating, batch {}/{}", done, of)
                         : fmt::format("evaluating, batch {}", done));
  });
  progress.clear();

  const double perplexity = std::exp(e.loss), bits = e.loss / std::log(2.0);
  if (json) {
    io::Json out = {{"checkpoint", checkpoint.folder.string()},
                    {"data", name},
                    {"loss", e.loss},
                    {"perplexity", perplexity},
                    {"pairs", e.pairs},
                    {"tokens", e.tokens},
                    {"documents", e.documents},
                    {"batches", e.batches}};
    if (tokens_are_bytes) out["bits_per_byte"] = bits;
    print_json(out);
    return kDone;
  }
  print(fmt::format("checkpoint   {}\ndata         {}: {} documents, {} tokens, {} batches\n",
                    checkpoint.folder.string(), name, e.documents, e.tokens, e.batches));
  print(fmt::format("loss         {}\nperplexity   {}\n", report::plain(e.loss, 4), report::plain(perplexity, 3)));
  if (tokens_are_bytes) print(fmt::format("bits a byte  {}\n", report::plain(bits, 4)));
  return kDone;
}

}  // namespace redline::cli
