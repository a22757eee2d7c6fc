// redline eval.
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/clock.h"
#include "base/counted.h"
#include "base/error.h"
#include "cli/arguments.h"
#include "cli/commands.h"
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
  std::string checkpoint, tokenizer, precision, device = "auto";
  std::vector<std::string> data;
  std::int64_t batches = -1;
  bool average = false, per_document = false, json = false;
};

bool is_ping(const Settings& s) { return s.data == std::vector<std::string>{"ping"}; }

// False: only help was asked for.
bool read_settings(const Words& words, Settings& s) {
  Arguments arguments("eval", "loss, perplexity and bits a byte on held-out data",
                      "--checkpoint DIR [--data FILES...] [--batches N] [--json]",
                      {"redline eval --checkpoint runs/a", "redline eval --checkpoint runs/a --data notes.txt",
                       "redline eval --checkpoint HF_DIR --data shards/ --per-document"});
  arguments.text("--checkpoint", "DIR", s.checkpoint,
                 "a run (its newest checkpoint), a step, or a Hugging Face folder");
  arguments.texts("--data", "FILES", s.data,
                  "a prepared folder, text or .jsonl files, or ping: the generated corpus (default: the run's held-out "
                  "data)");
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
  if (s.checkpoint.empty()) fail_user("redline eval needs --checkpoint DIR");
  if (!s.tokenizer.empty() && (s.data.empty() || is_ping(s)))
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
  if (is_ping(s)) {
    c.data.train = s.data;
    c.data.eval.clear();
    c.data.tokenizer.clear();
  } else if (!s.data.empty()) {
    c.data.eval = s.data;
    c.data.train = {"ping"};  // whose tokens are not asked for
    // Plain text of a run on plain text is read as it was there.
    const bool plain = s.tokenizer.empty() && c.data.tokenizer.empty() && tokenizer.tokenizer &&
                       tokenizer.tokenizer->name() == "bytes";
    if (!plain || data::needs_stream(c.data.eval, "--data")) c.data.tokenizer = tokenizer.name;
  } else if (tokenizer.tokenizer) {
    c.data.tokenizer = tokenizer.name;
  }
  if (s.per_document) c.train.batch_size = c.data.max_segments = 1;
  return c;
}

// Ids of another tokenizer mean nothing to the model, and no figure would tell.
void refuse_other_tokenizer(const Settings& s, const infer::Checkpoint& checkpoint, const data::Tokenizer& model) {
  for (const std::string& folder : s.data) {
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
  const bool text = !data::noise_vocabulary(s.data[0], "--data") && !data::are_token_files(s.data, "--data");
  const infer::ModelTokenizer found = text ? infer::require_tokenizer(files, checkpoint, s.tokenizer)
                                           : infer::tokenizer_of(files, checkpoint, s.tokenizer);
  if (found.tokenizer) refuse_other_tokenizer(s, checkpoint, *found.tokenizer);
  return found;
}

// Bytes of text behind the tokens that were predicted.
class TextBytes {
 public:
  explicit TextBytes(const data::Corpus& corpus) : of_id_(corpus.bytes_of_ids()) {
    if (!of_id_) why_not_ = fmt::format("the tokens of {} stand for no known text", corpus.name());
  }
  void add(const data::Batch& batch) {
    if (!of_id_) return;
    for (std::int64_t i = 0; i < batch.real_tokens; ++i) {
      const std::int32_t target = batch.targets[static_cast<std::size_t>(i)];
      if (target < 0) continue;
      const std::int32_t bytes = (*of_id_)[static_cast<std::size_t>(target)];
      if (bytes == data::Tokenizer::kUnknownBytes)
        why_not_ = "some tokens stand for text that their tokenizer does not know";
      total_ += std::max(bytes, 0);
    }
  }
  std::int64_t total() const { return total_; }
  std::string why_not() const { return why_not_.empty() && total_ == 0 ? "no text was predicted" : why_not_; }
  // On rank 0, those of all ranks.
  void add_up(io::Together& ranks) {
    total_ = [&] {
      std::int64_t sum = 0;
      for (const std::string& words : ranks.gather(fmt::format("{} {}", total_, why_not_))) {
        const std::size_t space = words.find(' ');
        sum += std::stoll(words.substr(0, space));
        if (why_not_.empty()) why_not_ = words.substr(space + 1);
      }
      return sum;
    }();
  }
  double bits(const model::Evaluation& e) const {
    return e.loss * static_cast<double>(e.pairs) / std::log(2.0) / static_cast<double>(total_);
  }

 private:
  std::optional<std::vector<std::int32_t>> of_id_;
  std::int64_t total_ = 0;
  std::string why_not_;
};

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

void print_result(const Settings& s, const infer::Checkpoint& checkpoint, const std::string& name,
                  const model::Evaluation& e, const TextBytes& bytes) {
  const double perplexity = std::exp(e.loss);
  const std::string why_not = bytes.why_not();
  if (s.json) {
    io::Json out = {{"checkpoint", checkpoint.folder.string()},
                    {"average", checkpoint.average},
                    {"data", name},
                    {"loss", e.loss},
                    {"perplexity", perplexity},
                    {"pairs", e.pairs},
                    {"tokens", e.tokens},
                    {"documents", e.documents},
                    {"batches", e.batches}};
    out["bits_per_byte"] = why_not.empty() ? io::Json(bytes.bits(e)) : io::Json(nullptr);
    if (why_not.empty())
      out["bytes"] = bytes.total();
    else
      out["bits_per_byte_note"] = why_not;
    return print_json(out);
  }
  print(fmt::format("checkpoint   {}{}\ndata         {}: {}, {}, {}\n", checkpoint.folder.string(),
                    checkpoint.average ? ", the average of its weights" : "", name, counted(e.documents, "document"),
                    counted(e.tokens, "token"), counted(e.batches, "batch")));
  print(fmt::format("loss         {}\nperplexity   {}\n", report::plain(e.loss, 4), report::plain(perplexity, 3)));
  print(why_not.empty()
            ? fmt::format("bits a byte  {} over {}\n", report::plain(bytes.bits(e), 4), counted(bytes.total(), "byte"))
            : fmt::format("bits a byte  none: {}\n", why_not));
}

void evaluate(const infer::Checkpoint& checkpoint, const Settings& s, Ranks& ranks, StopAtOnce& stopping) {
  if (!checkpoint.run && s.data.empty())
    fail_user("redline eval needs --data FILES: {} is of no run, so that it has no held-out data of its own",
              checkpoint.folder.string());
  const config::Config c = config_of(checkpoint, s, tokenizer_for(checkpoint, s));
  auto source = data::open_held_out_source(c.data);
  if (source->vocabulary() > checkpoint.model.vocab)
    fail_user(
        "{}: the model's vocabulary of {} is smaller than that of the data ({}), {}; give data of its own tokenizer",
        checkpoint.folder.string(), checkpoint.model.vocab, source->name(), source->vocabulary());
  std::int64_t batches = s.batches;
  if (batches < 0) batches = s.data.empty() || source->endless() ? c.train.eval_batches : 0;
  if (batches == 0 && source->endless()) fail_user("--batches 0: {} never ends; give a number", source->name());

  const auto device = device::open_device(s.device);
  model::LoweringOptions lowering = model::lowering_options(c, device->kind());
  lowering.training = false;
  Loading loading;
  const auto engine = infer::load_engine(checkpoint, lowering, *device, loading.progress());
  TextBytes bytes(*source);
  data::LoaderOptions options = data::evaluation_options(c.data, lowering.batch);
  options.rank = ranks.rank();
  options.ranks = ranks.count();
  data::Loader loader(std::move(source), options);
  Progress progress(loader);
  const model::Evaluation e = model::evaluate(
      *engine, loader, batches,
      [&](std::int64_t done, std::int64_t of) {
        if (ranks.leads()) progress.show(done, of);
      },
      [&](const data::Batch& batch) {
        bytes.add(batch);
        progress.add(batch);
      },
      ranks.together());
  if (ranks.together()) bytes.add_up(*ranks.together());
  progress.clear();
  if (!ranks.leads()) return;
  stopping.hold();
  print_result(s, checkpoint, loader.corpus().name(), e, bytes);
}

}  // namespace

int run_eval(const Words& words) {
  Settings s;
  if (!read_settings(words, s)) return kDone;
  StopAtOnce stopping("stopped; there is no result");
  Ranks ranks(words);
  return ranks.run([&] {
    infer::use_checkpoint(
        real_files(), s.checkpoint, [&](const infer::Checkpoint& c) { evaluate(c, s, ranks, stopping); }, s.average);
    return kDone;
  });
}

}  // namespace redline::cli
