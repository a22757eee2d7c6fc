// The work between steps: evaluations, samples and saves.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/words.h"
#include "data/from_config.h"
#include "data/identity.h"
#include "optim/schedule.h"
#include "train/step_phases.h"

namespace redline::train {
namespace {

constexpr std::int64_t kOwnPrompt = 8;  // tokens of a held-out document

// The beginning of the first held-out document; for a conversation, what stands before its first answer.
std::vector<std::int32_t> beginning_of(const data::Corpus& held_out, std::int64_t most) {
  const std::int64_t own = held_out.masked() ? most : std::min(kOwnPrompt, most);
  const auto feed = held_out.feed({.cut = {.row = own}, .shuffle = false, .repeat = false});
  const auto maker = feed->maker();
  feed->seek({});
  for (data::Chunk chunk; feed->take(chunk); chunk.clear()) {
    maker->make(chunk);
    if (chunk.tokens.empty()) continue;  // documents without text
    const auto first = std::ranges::find_if(chunk.pieces, [](const auto& piece) { return piece.end > 0; });
    chunk.tokens.resize(static_cast<std::size_t>(first->end));
    auto end = std::ranges::find_if_not(chunk.tokens, data::is_context);
    if (end == chunk.tokens.begin()) end += std::min(kOwnPrompt, first->end);
    chunk.tokens.erase(end, chunk.tokens.end());
    std::ranges::transform(chunk.tokens, chunk.tokens.begin(), data::token_id);
    return chunk.tokens;
  }
  fail_user("train.sample_every: there is no held-out document to begin a sample with; set train.sample_prompts");
}

}  // namespace

HeldOut::HeldOut(const config::Config& config, data::BatchShape shape, const dist::Sharing& sharing)
    : tokens_(config.train.eval_tokens), batches_(config.train.eval_batches) {
  for (const data::HeldOutSet& set : data::held_out_sets(data::corpus_options(config))) {
    data::LoaderOptions options = data::evaluation_options(config.data, shape, tokens_);
    options.rank = sharing.group();
    options.ranks = sharing.groups();
    auto loader = std::make_unique<data::Loader>(data::open_held_out_corpus(set.corpus), options);
    const data::Corpus& corpus = loader->corpus();
    sets_.push_back({set.name, std::move(loader), model::BytesOfIds(corpus)});
  }
  named_ = sets_.size() > 1 || sets_[0].name != data::kUnnamedSet;
}

std::vector<const data::Corpus*> HeldOut::corpora() const {
  std::vector<const data::Corpus*> all;
  for (const Set& set : sets_) all.push_back(&set.loader->corpus());
  return all;
}

std::vector<std::pair<std::string, std::string>> HeldOut::trained_on(const data::Corpus& training,
                                                                     const std::vector<Path>& files) const {
  std::vector<std::pair<std::string, std::string>> warnings;
  for (const Set& set : sets_) {
    const data::Corpus& corpus = set.loader->corpus();
    const std::vector<Path> shared = data::shared_files(corpus.files(), files);
    std::string what;
    if (!shared.empty())
      what = fmt::format("{}{} {}", shared[0].string(),
                         shared.size() > 1 ? fmt::format(" and {} more", counted(shared.size() - 1, "file")) : "",
                         shared.size() > 1 ? "are" : "is");
    else if (data::shares_documents(corpus, training))
      what = "most of its first documents, which data.train has in other files or another format, are";
    else
      continue;
    warnings.emplace_back(
        set.name,
        fmt::format("{}: {} trained on as well, so that its loss is not one of held-out data and says nothing "
                    "about other text; let data.eval name files that data.train does not have",
                    named_ ? "data.eval, set " + set.name : "held-out data", what));
  }
  return warnings;
}

std::vector<HeldOutLoss> HeldOut::evaluate(model::Engine& engine,
                                           const std::function<void(std::int64_t, std::int64_t)>& progress,
                                           io::Communicator* ranks, bool first_alone) {
  std::vector<HeldOutLoss> losses;
  for (const Set& set : sets_) {
    set.loader->restore({});
    const std::optional<data::EpochSize> size = set.loader->epoch_size();
    const bool known = size && size->tokens > 0;
    const std::int64_t tokens = known ? std::min(tokens_ > 0 ? tokens_ : size->tokens, size->tokens) : tokens_;
    std::int64_t seen = 0;  // tokens, of this rank
    const model::Evaluation e = model::evaluate(
        engine, *set.loader, batches_,
        [&](std::int64_t done, std::int64_t of) {
          const std::int64_t all = std::max<std::int64_t>(seen * engine.options().sharing.groups(), 1);
          const std::int64_t by_tokens = std::max(done, (done * tokens + all - 1) / all);
          progress(done, of == 0 ? by_tokens : tokens > 0 ? std::min(of, by_tokens) : of);  // the set may end before
        },
        [&](const data::Batch& batch) { seen += batch.real_tokens; }, ranks, &set.bytes);
    HeldOutLoss& of = losses.emplace_back(HeldOutLoss{set.name, e.loss, {}, e.tokens});
    if (e.why_no_bytes.empty()) of.bits_per_byte = e.bits_per_byte();
    if (first_alone) break;
  }
  return losses;
}

Samples::Samples(const config::Config& config, const data::Corpus& held_out) : corpus_(held_out) {
  const config::Train& t = config.train;
  const std::int64_t most = std::min(model::kSamplePromptTokens, t.seq_len);
  for (const std::string& prompt : t.sample_prompts) {
    prompts_.push_back(corpus_.encode(prompt));
    if (const auto begin = corpus_.beginning()) data::begin_with(*begin, 0, prompts_.back());
    const auto tokens = static_cast<std::int64_t>(prompts_.back().size());
    if (tokens < 1 || tokens > most)
      fail_user("{}train.sample_prompts: \"{}\" has {}; a prompt has from 1 to {}",
                config.origins.prefix({"train.sample_prompts"}), prompt, counted(tokens, "token"), most);
  }
  if (prompts_.empty()) prompts_.push_back(beginning_of(held_out, most));
  options_.tokens = t.sample_tokens;
  options_.choice.temperature = t.sample_temperature;
  options_.seed = static_cast<std::uint64_t>(t.seed);
  if (const auto end = corpus_.end_token()) options_.stop_tokens = {*end};
}

std::vector<SampledText> Samples::write(model::Engine& engine, const std::function<bool()>& go_on) const {
  model::Decoding decoding(engine);
  const model::Generated g =
      model::generate(decoding, prompts_, options_, [&](std::size_t, std::int32_t) { return go_on(); });
  std::vector<SampledText> texts;
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    // Decoded together, since some tokenizers write a token otherwise at the beginning of a text.
    std::vector<std::int32_t> all = prompts_[i];
    const std::string prompt = corpus_.decode(all);
    all.insert(all.end(), g.texts[i].tokens.begin(), g.texts[i].tokens.end());
    const std::string whole = corpus_.decode(all);
    texts.push_back(whole.starts_with(prompt) ? SampledText{prompt, whole.substr(prompt.size())}
                                              : SampledText{prompt, corpus_.decode(g.texts[i].tokens)});
  }
  return texts;
}

Asides::Losses Asides::evaluate() {
  const Goodput::Scope evaluating = session_.goodput->in(Part::evaluation);
  const Ends::Timed timed = ends_.timed(Ends::Aside::evaluation);
  const std::int64_t step = session_.state.step;
  Losses found{losses(false), {}};
  if (found.weights.empty()) return {};
  for (const HeldOutLoss& of : found.weights)
    if (!std::isfinite(of.loss))
      rescue_.refuse(fmt::format("after step {} the held-out loss is {}: the parameters are broken and are not saved",
                                 step, of.loss));
  Evaluated evaluated{step, found.weights[0].loss};
  evaluated.bits_per_byte = found.weights[0].bits_per_byte;
  evaluated.tokens = found.weights[0].tokens;
  if (held_out_.named()) evaluated.sets = found.weights;
  session_.keeper.tell(evaluated);
  found.average = loss_of_average();
  return found;
}

// The average stands in the weights' place meanwhile, and they come back whatever happens: a signal ends an evaluation,
// and the state is saved then.
std::optional<double> Asides::loss_of_average() {
  const std::int64_t step = session_.state.step;
  if (!session_.lowering.average || step == 0) return std::nullopt;
  if (optim::average_share(session_.config.train, step - 1, ends_.steps()) == 1) return std::nullopt;
  const auto shown = session_.engine->show_average();
  const std::vector<HeldOutLoss> found = losses(true);
  return found.empty() ? std::nullopt : std::optional(found[0].loss);
}

std::vector<HeldOutLoss> Asides::losses(bool first_alone) {
  // Ranks end an evaluation together.
  const StopFlag* const stop = session_.alone() ? session_.options.stop : nullptr;
  session_.engine->drop_on(stop);
  try {
    end_if_asked(stop);
    return held_out_.evaluate(
        *session_.engine,
        [&](std::int64_t done, std::int64_t of) {
          end_if_asked(stop);
          session_.tell_alive();
          session_.keeper.tell(Evaluating{done, of});
        },
        session_.options.team.communicator, first_alone);
  } catch (const Interrupted&) {
    return {};
  }
}

void Asides::make_samples() {
  if (session_.config.train.sample_every > 0) samples_.emplace(session_.config, held_out_.corpus());
}

void Asides::write_samples(std::int64_t step) {
  const Goodput::Scope sampling = session_.goodput->in(Part::sampling);
  const Ends::Timed timed = ends_.timed(Ends::Aside::sample);
  session_.engine->gather_weights();
  const Team& team = session_.options.team;
  if (!team.leads() && team.sharing.mode != dist::Mode::fsdp) return;  // in fsdp no rank has all weights
  std::vector<SampledText> texts = samples_->write(*session_.engine, [&] {
    session_.tell_alive();
    return !session_.stopping();
  });
  if (!session_.stopping()) session_.keeper.tell(Sampled{step, std::move(texts)});
}

void Saves::save(const data::LoaderState& loader) {
  const double began = steady_seconds();
  session_.saved_at = session_.options.hours_clock();
  session_.save_after = -1;
  RunState& state = session_.state;
  const Goodput::Scope saving = session_.goodput->saving(state.step);
  const Ends::Timed timed = ends_.timed(Ends::Aside::save);
  collect(Keeper::Wait::before_next);
  if (!session_.engine->parameters_finite())  // broken ones are no checkpoint
    rescue_.refuse(fmt::format("after step {} a parameter is not finite and is not saved", state.step));
  data_.tell_changed_files();
  state.loader = loader;
  state.ends = ends_.state();
  data_.identify(state);
  saved_step_ = state.step;
  rescue_.guard().before_save(state.step);
  session_.keeper.save(*session_.engine, state, began);
}

void Saves::collect(Keeper::Wait wait) {
  const std::optional<Keeper::SaveOutcome> save = session_.keeper.collect_save(wait);
  if (!save) return;
  if (!save->written) {
    saved_step_ = safe_step_;
    return;
  }
  safe_step_ = saved_step_;
  ends_.saved_in(save->seconds);
  rescue_.guard().saved(saved_step_);
}

}  // namespace redline::train
