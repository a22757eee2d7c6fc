// redline eval.
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/clock.h"
#include "base/counted.h"
#include "base/error.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/eval_choices.h"
#include "cli/loading.h"
#include "cli/output.h"
#include "cli/ranks.h"
#include "cli/stop_at_once.h"
#include "data/noise.h"
#include "data/shards/shards.h"
#include "data/shards/token_files.h"
#include "data/stream.h"
#include "infer/model_tokenizer.h"
#include "io/json.h"
#include "model/evaluate.h"
#include "report/figures.h"
#include "report/live_line.h"

namespace redline::cli {
namespace {

constexpr std::int64_t kEndlessBatches = 8, kMostPositions = 2048;

struct Settings {
  std::string checkpoint, choices, tokenizer, precision, device = "auto";
  std::vector<std::string> data;
  std::string chat;
  std::int64_t batches = -1;
  bool average = false, per_document = false, json = false;
};

bool is_ping(const Settings& s) { return s.data == std::vector<std::string>{"ping"}; }

// The paths of --data, set by set.
std::vector<std::vector<std::string>> paths_of(const std::vector<std::string>& data) {
  config::Data named;
  named.eval = data;
  std::vector<std::vector<std::string>> all;
  for (const data::HeldOutSet& set : data::held_out_sets(named)) all.push_back(set.data.eval);
  return all;
}

// False: only help was asked for.
bool read_settings(const Words& words, Settings& s) {
  std::vector<std::string> model;
  Arguments arguments("eval", "loss, perplexity and bits a byte on held-out data, or answers to multiple choice",
                      "MODEL [--data FILES...] [--choices FILE] [--batches N] [--json]",
                      {"redline eval runs/a", "redline eval runs/a --data notes.txt",
                       "redline eval runs/a --data web=c4.jsonl code=src.jsonl      a loss for each",
                       "redline eval HF_DIR --data shards/ --per-document",
                       "redline eval HF_DIR --data conversations.jsonl --chat auto  the loss of its answers",
                       "redline eval runs/a --choices questions.jsonl               how often it is right"});
  arguments.words("MODEL", model, "a run (its newest checkpoint), a step, or a Hugging Face folder");
  arguments.text("--checkpoint", "MODEL", s.checkpoint, "the same, for scripts");
  arguments.texts(
      "--data", "FILES", s.data,
      "a prepared folder, text or .jsonl files, or ping: the generated corpus; NAME=PATH makes a set of its "
      "own (default: the run's held-out data)");
  arguments.choice("--chat", "HOW", s.chat, {"none", "auto", "chatml", "llama3"},
                   "the loss of answers of conversations: auto (the tokenizer's own template), chatml or llama3 "
                   "(default: the run's data.chat)");
  arguments.text("--choices", "FILE", s.choices,
                 "instead: score the choices of questions, one {\"question\": \"…\", \"choices\": [\"…\", …], "
                 "\"answer\": 0} a line");
  arguments.text("--tokenizer", "NAME", s.tokenizer,
                 "for text, and a model that brings none: a tokenizer.json, a sentencepiece .model, a folder with one, "
                 "bytes or ping (default: the model's own)");
  arguments.integer(
      "--batches", "N", s.batches, 0, 1'000'000'000,
      "batches to evaluate, 0: all (default: all of --data; without --data, the run's train.eval_batches)");
  arguments.flag("--average", s.average,
                 "the average of the run's weights (train.average) instead of the weights themselves");
  arguments.flag("--per-document", s.per_document, "one document at a time instead of packed: the same figure, slower");
  arguments.text("--device", "NAME", s.device, "where to run: cpu, cuda or auto (default: auto)");
  arguments.choice("--precision", "NAME", s.precision, {"bf16", "tf32", "fp32"},
                   "what matrix products compute with on a GPU: bf16, tf32 or fp32 (default: the run's, else bf16)");
  arguments.flag("--json", s.json, "print one JSON document");
  if (!arguments.parse(words)) return false;
  if (model.size() > 1) fail_user("redline eval takes one model, not also '{}'", model[1]);
  if (!model.empty() && !s.checkpoint.empty())
    fail_user("{} and --checkpoint {}: one model at a time", model[0], s.checkpoint);
  if (!model.empty()) s.checkpoint = model[0];
  if (s.checkpoint.empty())
    fail_user("redline eval needs a MODEL, or --checkpoint MODEL: a run or a Hugging Face folder");
  if (!s.choices.empty() && (!s.data.empty() || s.batches >= 0 || s.per_document))
    fail_user("--choices {} stands alone: --data, --batches and --per-document are about held-out text", s.choices);
  if (!s.chat.empty() && s.data.empty())
    fail_user("--chat {} is about the .jsonl files of --data; the run's own data are read as they were", s.chat);
  if (!s.tokenizer.empty() && s.choices.empty() && (s.data.empty() || is_ping(s)))
    fail_user("--tokenizer {}: only text that --data names becomes tokens; leave it out, or give --data FILES",
              s.tokenizer);
  return true;
}

// A checkpoint of ours is evaluated in the shape and on the data of its run; any other gets rows of its own length.
config::Config config_of(const infer::Checkpoint& checkpoint, const Settings& s,
                         const infer::ModelTokenizer& tokenizer) {
  config::Config c;
  if (checkpoint.run) {
    c = *checkpoint.run;
    c.train.sample_every = 0;
  } else {
    c.train.seq_len = std::min(checkpoint.max_positions, kMostPositions);
    c.train.eval_batches = kEndlessBatches;
  }
  if (!s.precision.empty()) c.precision.matmul = s.precision;
  if (!s.chat.empty()) c.data.chat = s.chat;
  if (is_ping(s)) {
    c.data.train = s.data;
    c.data.weights.clear();
    c.data.eval.clear();
    c.data.tokenizer.clear();
  } else if (!s.data.empty()) {
    c.data.eval = s.data;
    c.data.train = {"ping"};  // whose tokens are not asked for
    c.data.weights.clear();
    // Plain text of a run on plain text is read as it was there.
    const bool plain = s.tokenizer.empty() && c.data.tokenizer.empty() && tokenizer.tokenizer &&
                       tokenizer.tokenizer->name() == "bytes";
    const auto streams = [](const std::vector<std::string>& paths) { return data::needs_stream(paths, "--data"); };
    if (!plain || std::ranges::any_of(paths_of(s.data), streams)) c.data.tokenizer = tokenizer.name;
  } else if (tokenizer.tokenizer) {
    c.data.tokenizer = tokenizer.name;
  }
  if (s.per_document) c.train.batch_size = c.data.max_segments = 1;
  return c;
}

// Ids of another tokenizer mean nothing to the model, and no figure would tell.
void refuse_other_tokenizer(const Settings& s, const infer::Checkpoint& checkpoint, const data::Tokenizer& model) {
  for (const std::string& entry : s.data) {
    const std::string folder = data::named_path(entry).path;
    if (!data::is_prepared_folder(folder)) continue;
    const data::Manifest m = data::read_manifest(folder);
    if (m.tokenizer_hash == model.fingerprint()) continue;
    const std::string name = m.tokenizer_file.empty() ? m.tokenizer_name : (Path(folder) / m.tokenizer_file).string();
    if (!data::covers(model, *data::open_tokenizer(name, "--data")))
      fail_user(
          "--data {} was prepared with {}, and the model of {} was trained with another tokenizer ({}); prepare it "
          "with that one",
          folder, m.tokenizer_name, checkpoint.folder.string(), model.name());
  }
}

// The model's, where --data needs one or may be of another.
infer::ModelTokenizer tokenizer_for(const infer::Checkpoint& checkpoint, const Settings& s) {
  if (is_ping(s)) return {};
  FileSystem& files = real_files();
  if (s.data.empty()) {
    // The run's own data are read as they were, also where the tokenizer has moved away.
    const Path file = data::tokenizer_file(checkpoint.run->data.tokenizer);
    return file.empty() || files.exists(file) ? infer::ModelTokenizer{} : infer::tokenizer_of(files, checkpoint, {});
  }
  const bool text = std::ranges::any_of(paths_of(s.data), [](const std::vector<std::string>& paths) {
    return !data::noise_vocabulary(paths[0], "--data") && !data::are_token_files(paths, "--data");
  });
  const infer::ModelTokenizer found = text ? infer::require_tokenizer(files, checkpoint, s.tokenizer)
                                           : infer::tokenizer_of(files, checkpoint, s.tokenizer);
  if (found.tokenizer) refuse_other_tokenizer(s, checkpoint, *found.tokenizer);
  return found;
}

// "evaluating, batch 12/40, 3.10k tok/s, eta 12 s"
class Progress {
 public:
  explicit Progress(const data::Loader& loader) : loader_(loader) {}
  void add(const data::Batch& batch) { tokens_ += batch.real_tokens; }
  void show(std::int64_t done, std::int64_t of) {
    const double seconds = steady_seconds() - start_;
    std::string text =
        of > 0 ? fmt::format("evaluating, batch {}/{}", done, of) : fmt::format("evaluating, batch {}", done);
    text += ", " + report::token_rate(static_cast<double>(tokens_) / seconds);
    std::optional<double> share = loader_.epochs_read();
    if (of > 0) share = std::max(share.value_or(0), static_cast<double>(done) / static_cast<double>(of));
    if (share && *share > 0)
      text += ", eta " + report::duration(seconds * (1 - std::min(*share, 1.0)) / std::min(*share, 1.0));
    line_.show(text);
  }
  void clear() { line_.clear(); }

 private:
  const data::Loader& loader_;
  report::LiveLine line_{stderr};
  double start_ = steady_seconds();
  std::int64_t tokens_ = 0;
};

// One set of held-out documents and what became of it.
struct Evaluated {
  std::string name, data;  // its own name, and that of its documents
  model::Evaluation e;
};

io::Json to_json(const Evaluated& set) {
  const model::Evaluation& e = set.e;
  io::Json out = {{"data", set.data},    {"loss", e.loss},     {"perplexity", std::exp(e.loss)},
                  {"pairs", e.pairs},    {"tokens", e.tokens}, {"documents", e.documents},
                  {"batches", e.batches}};
  const bool counted = e.why_no_bytes.empty();
  out["bits_per_byte"] = counted ? io::Json(e.bits_per_byte()) : io::Json(nullptr);
  if (counted)
    out["bytes"] = e.bytes;
  else
    out["bits_per_byte_note"] = e.why_no_bytes;
  return out;
}

void print_set(const Evaluated& set) {
  const model::Evaluation& e = set.e;
  print(fmt::format("data         {}: {}, {}, {}\n", set.data, counted(e.documents, "document"),
                    counted(e.tokens, "token"), counted(e.batches, "batch")));
  print(
      fmt::format("loss         {}\nperplexity   {}\n", report::plain(e.loss, 4), report::plain(std::exp(e.loss), 3)));
  print(e.why_no_bytes.empty()
            ? fmt::format("bits a byte  {} over {}\n", report::plain(e.bits_per_byte(), 4), counted(e.bytes, "byte"))
            : fmt::format("bits a byte  none: {}\n", e.why_no_bytes));
}

// Of several sets the first is also what the document says of the checkpoint.
void print_result(const Settings& s, const infer::Checkpoint& checkpoint, const std::vector<Evaluated>& sets) {
  const bool named = sets.size() > 1 || sets[0].name != data::kUnnamedSet;
  if (s.json) {
    io::Json out = {{"checkpoint", checkpoint.folder.string()}, {"average", checkpoint.average}};
    out.update(to_json(sets[0]));
    for (const Evaluated& set : sets) {
      if (!named) break;
      io::Json one = {{"name", set.name}};
      one.update(to_json(set));
      out["sets"].push_back(std::move(one));
    }
    return print_json(out);
  }
  print(fmt::format("checkpoint   {}{}\n", checkpoint.folder.string(),
                    checkpoint.average ? ", the average of its weights" : ""));
  for (const Evaluated& set : sets) {
    if (named) print(fmt::format("\nset          {}\n", set.name));
    print_set(set);
  }
}

// Opened and found to fit the model, with the batches of it that are asked for.
struct Opened {
  std::string name;
  config::Data data;
  std::unique_ptr<data::Corpus> corpus;
  std::int64_t batches = 0;
};

std::vector<Opened> open_sets(const infer::Checkpoint& checkpoint, const Settings& s, const config::Config& c) {
  std::vector<Opened> sets;
  for (data::HeldOutSet& set : data::held_out_sets(c.data)) {
    auto corpus = data::open_held_out_source(set.data);
    if (corpus->vocabulary() > checkpoint.model.vocab)
      fail_user(
          "{}: the model's vocabulary of {} is smaller than that of the data ({}), {}; give data of its own tokenizer",
          checkpoint.folder.string(), checkpoint.model.vocab, corpus->name(), corpus->vocabulary());
    std::int64_t batches = s.batches;
    if (batches < 0) batches = s.data.empty() || corpus->endless() ? c.train.eval_batches : 0;
    if (batches == 0 && corpus->endless()) fail_user("--batches 0: {} never ends; give a number", corpus->name());
    sets.push_back({set.name, std::move(set.data), std::move(corpus), batches});
  }
  return sets;
}

void evaluate(const infer::Checkpoint& checkpoint, const Settings& s, Ranks& ranks, StopAtOnce& stopping) {
  if (!checkpoint.run && s.data.empty())
    fail_user("redline eval needs --data FILES: {} is of no run, so that it has no held-out data of its own",
              checkpoint.folder.string());
  const config::Config c = config_of(checkpoint, s, tokenizer_for(checkpoint, s));
  std::vector<Opened> sets = open_sets(checkpoint, s, c);

  const auto device = device::open_device(s.device);
  model::LoweringOptions lowering = model::lowering_options(c, device->kind());
  lowering.training = false;
  Loading loading;
  const auto engine = infer::load_engine(checkpoint, lowering, *device, loading.progress());
  std::vector<Evaluated> found;
  for (Opened& set : sets) {
    const model::BytesOfIds bytes(*set.corpus);
    data::LoaderOptions options = data::evaluation_options(set.data, lowering.batch);
    options.rank = ranks.rank();
    options.ranks = ranks.count();
    data::Loader loader(std::move(set.corpus), options);
    Progress progress(loader);
    const model::Evaluation e = model::evaluate(
        *engine, loader, set.batches,
        [&](std::int64_t done, std::int64_t of) {
          if (ranks.leads()) progress.show(done, of);
        },
        [&](const data::Batch& batch) { progress.add(batch); }, ranks.together(), &bytes);
    progress.clear();
    found.push_back({set.name, loader.corpus().name(), e});
  }
  if (!ranks.leads()) return;
  stopping.hold();
  print_result(s, checkpoint, found);
}

}  // namespace

int run_eval(const Words& words) {
  Settings s;
  if (!read_settings(words, s)) return kDone;
  StopAtOnce stopping("stopped; there is no result");
  Ranks ranks(words);
  return ranks.run([&] {
    infer::use_checkpoint(
        real_files(), s.checkpoint,
        [&](const infer::Checkpoint& c) {
          if (s.choices.empty()) return evaluate(c, s, ranks, stopping);
          answer_choices(c, {s.choices, s.tokenizer, s.precision, s.device, s.json}, ranks, stopping);
        },
        s.average);
    return kDone;
  });
}

}  // namespace redline::cli
