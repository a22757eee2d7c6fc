// Opens every set before the weights are loaded, so that a bad path is an error at once.
#include "infer/held_out.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/words.h"
#include "data/from_config.h"
#include "data/generated.h"
#include "data/identity.h"
#include "data/shards/shards.h"
#include "data/shards/token_files.h"
#include "data/stream.h"

namespace redline::infer {
namespace {

constexpr std::int64_t kMostPositions = 2048;

// The paths of --data, set by set.
std::vector<std::vector<std::string>> paths_of(const std::vector<std::string>& data) {
  std::vector<std::vector<std::string>> all;
  for (const data::HeldOutSet& set : data::held_out_sets({.train = {}, .eval = data})) all.push_back(set.corpus.eval);
  return all;
}

// A checkpoint of ours is evaluated in the shape and on the data of its run; any other gets rows of its own length.
config::Config config_of(const Checkpoint& checkpoint, const HeldOutRequest& request, const ModelTokenizer& tokenizer) {
  config::Config c;
  if (checkpoint.run) {
    c = *checkpoint.run;
    c.train.sample_every = 0;
  } else {
    c.train.seq_len = std::min(checkpoint.max_positions, kMostPositions);
  }
  if (request.seq_len > checkpoint.max_positions)
    fail_user("--seq-len {}: {} has {}; longer rows would be strange to it", request.seq_len,
              checkpoint.folder.string(), counted(checkpoint.max_positions, "position"));
  if (request.seq_len > 0) c.train.seq_len = request.seq_len;
  if (!request.precision.empty()) c.precision.matmul = request.precision;
  if (!request.chat.empty()) c.data.chat = request.chat;
  if (request.generated()) {
    c.data.train = request.data;
    c.data.weights.clear();
    c.data.eval.clear();
    c.data.tokenizer.clear();
  } else if (!request.data.empty()) {
    c.data.eval = request.data;
    c.data.train = {"ping"};  // whose tokens are not asked for
    c.data.weights.clear();
    // Plain text of a run on plain text is read as it was there.
    const bool plain = request.tokenizer.empty() && c.data.tokenizer.empty() && tokenizer.tokenizer &&
                       tokenizer.tokenizer->name() == "bytes";
    const auto streams = [](const std::vector<std::string>& paths) { return data::needs_stream(paths, "--data"); };
    if (!plain || std::ranges::any_of(paths_of(request.data), streams)) c.data.tokenizer = tokenizer.name;
    // Documents begin as the model knows it, whatever the tokenizer that was given says.
    if (tokenizer.tokenizer &&
        tokenizer.beginning != data::document_marks(*tokenizer.tokenizer, c.data.bos, "data.bos").begin)
      c.data.bos = tokenizer.beginning.empty() ? "none" : "always";
  } else if (tokenizer.tokenizer) {
    c.data.tokenizer = tokenizer.name;
  }
  if (request.per_document) c.train.batch_size = c.data.max_segments = 1;
  return c;
}

// Ids of another tokenizer mean nothing to the model, and no figure would tell.
void refuse_other_tokenizer(const HeldOutRequest& request, const Checkpoint& checkpoint, const data::Tokenizer& model) {
  for (const std::string& entry : request.data) {
    const std::string folder = data::named_path(entry).path;
    if (!data::is_prepared_folder(folder)) continue;
    const data::PreparedFolder prepared = data::read_prepared_folder(folder, "--data");
    if (prepared.manifest.tokenizer_hash == model.fingerprint()) continue;
    if (!data::covers(model, *data::open_tokenizer(prepared.tokenizer(), "--data")))
      fail_user(
          "--data {} was prepared with {}, and the model of {} was trained with another tokenizer ({}); prepare it "
          "with that one",
          folder, prepared.manifest.tokenizer_name, checkpoint.folder.string(), model.name());
  }
}

// Nor would it tell that documents begin otherwise than the model knows it. Older folders do not say how theirs begin:
// without a token for it.
void refuse_other_beginning(const HeldOutRequest& request, const Checkpoint& checkpoint, const ModelTokenizer& model) {
  for (const std::string& entry : request.data) {
    const std::string folder = data::named_path(entry).path;
    if (!data::is_prepared_folder(folder)) continue;
    const data::PreparedFolder prepared = data::read_prepared_folder(folder, "--data");
    const auto begin = prepared.beginning();
    if (!begin || *begin == model.beginning) continue;
    const std::string problem = fmt::format(
        "--data {} was prepared {} the token that begins a text, and the model of {} was trained {} it; prepare it "
        "again with --bos {}",
        folder, begin->empty() ? "without" : "with", checkpoint.folder.string(), begin->empty() ? "with" : "without",
        begin->empty() ? "always" : "none");
    if (prepared.manifest.beginning) fail_user("{}", problem);
    log::warn("{}", problem);
  }
}

// The model's, where --data needs one or may be of another.
ModelTokenizer tokenizer_for(const Checkpoint& checkpoint, const HeldOutRequest& request) {
  if (request.generated()) return {};
  FileSystem& files = real_files();
  if (request.data.empty()) {
    // The run's own data are read as they were, also where the tokenizer has moved away.
    const Path file = data::tokenizer_file(checkpoint.run->data.tokenizer);
    return file.empty() || files.exists(file) ? ModelTokenizer{} : tokenizer_of(files, checkpoint, {});
  }
  const bool text = std::ranges::any_of(paths_of(request.data), [](const std::vector<std::string>& paths) {
    return !data::random_vocabulary(paths[0], "--data") && !data::are_token_files(paths, "--data");
  });
  const ModelTokenizer found = text ? require_tokenizer(files, checkpoint, request.tokenizer)
                                    : tokenizer_of(files, checkpoint, request.tokenizer);
  if (found.tokenizer) refuse_other_tokenizer(request, checkpoint, *found.tokenizer);
  if (found.tokenizer) refuse_other_beginning(request, checkpoint, found);
  return found;
}

// Opened and found to fit the model, with how much of it is asked for.
struct Opened {
  std::string name;
  std::unique_ptr<data::Corpus> corpus;
  std::int64_t tokens = 0, batches = 0;  // 0: no limit
};

// A loss on what the run learned from is none of held-out data. Data that are gone cannot be compared.
void warn_of_training_data(const Checkpoint& checkpoint, const data::Corpus& corpus) {
  std::string what;
  try {
    const data::CorpusOptions options = data::corpus_options(checkpoint.run->data);
    const std::vector<Path> shared = data::shared_files(corpus.files(), data::training_files(options));
    if (!shared.empty())
      what = fmt::format("{}{} {}", shared[0].string(),
                         shared.size() > 1 ? fmt::format(" and {} more", counted(shared.size() - 1, "file")) : "",
                         shared.size() > 1 ? "are" : "is");
    else if (data::shares_documents(corpus, *data::open_training_corpus(options)))
      what = "most of the first documents are";
  } catch (const UserError&) {
  }
  if (!what.empty())
    log::warn("--data: {} data that {} was trained on, so that its loss is not one of held-out data", what,
              checkpoint.folder.string());
}

// Files of other programs do not say how documents begin, and are looked at.
void tell_other_beginning(const data::HeldOutSet& set, const data::Corpus& corpus, const ModelTokenizer& model) {
  const auto begin = corpus.beginning();
  const bool prepared = std::ranges::any_of(set.corpus.eval, [](const auto& p) { return data::is_prepared_folder(p); });
  if (!model.tokenizer || prepared || corpus.masked() || !begin || *begin == model.beginning) return;
  log::warn(
      "the documents of {} begin {} the token that begins a text, and the model was trained {} it; they are read "
      "as they are",
      corpus.name(), begin->empty() ? "without" : "with", begin->empty() ? "with" : "without");
}

std::vector<Opened> open_sets(const Checkpoint& checkpoint, const HeldOutRequest& request, const config::Config& c,
                              const ModelTokenizer& tokenizer, bool leads) {
  std::vector<Opened> sets;
  data::CorpusOptions options = data::corpus_options(c.data);
  options.read.vocabulary = checkpoint.model.vocab;
  options.read.row = c.train.seq_len;
  if (!request.data.empty() && leads)
    for (const std::string& sentence : data::roles_in_words(options)) log::note("{}", sentence);
  for (const data::HeldOutSet& set : data::held_out_sets(options)) {
    auto corpus = data::open_held_out_corpus(set.corpus);
    if (corpus->vocabulary() > checkpoint.model.vocab)
      fail_user(
          "{}: the model's vocabulary of {} is smaller than that of the data ({}), {}; give data of its own tokenizer",
          checkpoint.folder.string(), checkpoint.model.vocab, corpus->name(), corpus->vocabulary());
    if (!request.data.empty() && checkpoint.run && leads) warn_of_training_data(checkpoint, *corpus);
    if (leads) tell_other_beginning(set, *corpus, tokenizer);
    std::int64_t tokens = request.tokens.value_or(0), batches = request.batches.value_or(0);
    const bool asked = request.tokens || request.batches;
    if (!asked && (request.data.empty() || corpus->endless())) {
      tokens = c.train.eval_tokens;
      batches = c.train.eval_batches;
      if (tokens == 0 && batches == 0) tokens = config::Train{}.eval_tokens;  // a run that evaluated nothing
    }
    if (tokens == 0 && batches == 0 && corpus->endless())
      fail_user("{} 0: {} never ends; give a number", request.tokens ? "--tokens" : "--batches", corpus->name());
    sets.push_back({set.name, std::move(corpus), tokens, batches});
  }
  return sets;
}

}  // namespace

std::vector<HeldOutResult> evaluate_held_out(const Checkpoint& checkpoint, const HeldOutRequest& request,
                                             io::Communicator* ranks, const model::LoadProgress& loading,
                                             const std::function<void(const HeldOutProgress&)>& progress) {
  if (!checkpoint.run && request.data.empty())
    fail_user("redline eval needs --data FILES: {} is of no run, so that it has no held-out data of its own",
              checkpoint.folder.string());
  const ModelTokenizer tokenizer = tokenizer_for(checkpoint, request);
  const config::Config c = config_of(checkpoint, request, tokenizer);
  std::vector<Opened> sets = open_sets(checkpoint, request, c, tokenizer, !ranks || ranks->rank() == 0);

  const auto device = device::open_device(request.device);
  model::LoweringOptions lowering = model::lowering_options(c, device->kind());
  lowering.training = false;
  const auto engine = load_engine(checkpoint, lowering, *device, loading);
  std::vector<HeldOutResult> results;
  for (Opened& set : sets) {
    const model::BytesOfIds bytes(*set.corpus);
    data::LoaderOptions options = data::evaluation_options(c.data, lowering.batch, set.tokens);
    if (ranks) {
      options.rank = ranks->rank();
      options.ranks = ranks->ranks();
    }
    data::Loader loader(std::move(set.corpus), options);
    HeldOutProgress seen;
    const double start = steady_seconds();
    const model::Evaluation e = model::evaluate(
        *engine, loader, set.batches,
        [&](std::int64_t done, std::int64_t of) {
          seen.done = done;
          seen.of = of;
          seen.seconds = steady_seconds() - start;
          seen.share = loader.epochs_read();
          // A set may end before so many batches.
          if (of > 0 && seen.share && *seen.share > 0)
            seen.of = std::min(of, std::max<std::int64_t>(done, std::llround(static_cast<double>(done) / *seen.share)));
          if (of > 0)
            seen.share = std::max(seen.share.value_or(0), static_cast<double>(done) / static_cast<double>(of));
          if (set.tokens > 0)
            seen.share =
                std::max(seen.share.value_or(0), static_cast<double>(seen.tokens * (ranks ? ranks->ranks() : 1)) /
                                                     static_cast<double>(set.tokens));
          progress(seen);
        },
        [&](const data::Batch& batch) { seen.tokens += batch.real_tokens; }, ranks, &bytes);
    results.push_back({set.name, loader.corpus().name(), c.train.seq_len, e});
  }
  return results;
}

}  // namespace redline::infer
