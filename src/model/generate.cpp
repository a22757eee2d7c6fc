// The choice of a token, greedy or random; tokens and positions to the decoding programs and logits back; and prompts
// through the slots in rounds, where equal ones of a round are read once.
#include "model/generate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/clock.h"
#include "base/random.h"
#include "program/program.h"

namespace redline::model {
namespace {

std::int32_t likeliest(std::span<const float> logits) {
  std::size_t best = 0;
  float top = -INFINITY;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i]) || logits[i] <= top) continue;
    best = i;
    top = logits[i];
  }
  return static_cast<std::int32_t>(best);
}

}  // namespace

// In the order of ids, which is that of the draw.
void TokenChooser::keep_likeliest(std::size_t count) {
  if (count >= candidates_.size()) return;
  std::ranges::nth_element(candidates_, candidates_.begin() + static_cast<std::ptrdiff_t>(count) - 1, likelier);
  candidates_.resize(count);
  std::ranges::sort(candidates_, {}, &Candidate::id);
}

// The likeliest are few as a rule, so only as many are sorted as the share turns out to need.
void TokenChooser::keep_share(double share) {
  const double wanted = share * std::accumulate(weights_.begin(), weights_.end(), 0.0);
  std::vector<std::size_t> order(candidates_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto before = [&](std::size_t a, std::size_t b) { return likelier(candidates_[a], candidates_[b]); };
  double held = 0;
  std::size_t kept = 0;
  for (std::size_t sorted = 0; kept < order.size() && (kept == 0 || held < wanted);) {
    if (kept == sorted) {
      sorted = std::min(order.size(), std::max<std::size_t>(64, 4 * sorted));
      std::partial_sort(order.begin() + static_cast<std::ptrdiff_t>(kept),
                        order.begin() + static_cast<std::ptrdiff_t>(sorted), order.end(), before);
    }
    held += weights_[order[kept++]];
  }
  order.resize(kept);
  std::ranges::sort(order);
  for (std::size_t i = 0; i < order.size(); ++i) {
    candidates_[i] = candidates_[order[i]];
    weights_[i] = weights_[order[i]];
  }
  candidates_.resize(order.size());
  weights_.resize(order.size());
}

std::int32_t TokenChooser::choose(std::span<const float> logits, const ChoiceOptions& options, double u) {
  const std::int32_t best = likeliest(logits);
  const float top = logits[static_cast<std::size_t>(best)];
  if (options.temperature <= 0 || !std::isfinite(top)) return best;
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (std::isfinite(logits[i])) candidates_.push_back({static_cast<std::int32_t>(i), logits[i]});
  if (options.top_k > 0) keep_likeliest(static_cast<std::size_t>(options.top_k));
  weights_.clear();
  for (const Candidate& c : candidates_)
    weights_.push_back(std::exp((static_cast<double>(c.logit) - static_cast<double>(top)) / options.temperature));
  if (options.top_p < 1) keep_share(options.top_p);
  double left = u * std::accumulate(weights_.begin(), weights_.end(), 0.0);
  for (std::size_t i = 0; i < weights_.size(); ++i)
    if ((left -= weights_[i]) < 0) return candidates_[i].id;
  return best;  // rounding left a crumb
}

Decoding::Decoding(Engine& engine) : engine_(engine), shape_(engine.options().decode) {
  REDLINE_CHECK(shape_.slots > 0, "the model was lowered without its decoding programs");
  const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  lengths_.resize(size(shape_.slots));
  input_.resize(size(2 * shape_.rows));
  prompt_.resize(size(shape_.prompt));
  positions_.resize(size(shape_.prompt));
  documents_.resize(size(shape_.slots));
  prompt_logits_.resize(size(engine.model().vocab));
  next_logits_.resize(size(shape_.slots * engine.model().vocab));
}

std::span<const float> Decoding::prefill(std::span<const std::int32_t> text, std::span<const std::int64_t> slots) {
  const auto length = static_cast<std::int64_t>(text.size());
  REDLINE_CHECK(length > 0 && length <= std::min(shape_.prompt, shape_.positions), "a text of {} tokens", length);
  const DecodeValues& d = engine_.lowered().decode;
  program::Executor& executor = engine_.executor();
  std::ranges::copy(text, prompt_.begin());
  std::fill(prompt_.begin() + length, prompt_.end(), 0);
  std::iota(positions_.begin(), positions_.begin() + length, 0);
  std::fill(positions_.begin() + length, positions_.end(), 0);
  std::ranges::fill(documents_, -1);
  for (const std::int64_t slot : slots) {
    documents_[static_cast<std::size_t>(slot)] = 0;
    lengths_[static_cast<std::size_t>(slot)] = length;
  }
  const std::int32_t offsets[] = {0, static_cast<std::int32_t>(length)}, last = offsets[1] - 1;
  executor.write(d.prompt.tokens, prompt_);
  executor.write(d.prompt.positions, positions_);
  executor.write(d.prompt.doc_offsets, offsets, sizeof offsets);
  executor.write(d.prompt.slot_documents, documents_);
  executor.write(d.last_row, &last, sizeof last);
  executor.expect(ops::Documents::packed);
  engine_.continue_texts(kPrefill);
  executor.read(d.prompt_logits, prompt_logits_);
  return prompt_logits_;
}

// A slot without a token writes over the place after its text, or over its last one where that is full: neither is
// read.
std::span<const float> Decoding::step(std::span<const std::int32_t> tokens) {
  REDLINE_CHECK(static_cast<std::int64_t>(tokens.size()) <= shape_.slots, "{} tokens for {} slots", tokens.size(),
                shape_.slots);
  const DecodeValues& d = engine_.lowered().decode;
  std::ranges::fill(input_, 0);
  for (std::size_t s = 0; s < lengths_.size(); ++s) {
    const bool adds = s < tokens.size() && tokens[s] != kNoToken;
    REDLINE_CHECK(!adds || (lengths_[s] > 0 && lengths_[s] < shape_.positions), "slot {} has {} tokens", s,
                  lengths_[s]);
    input_[s] = adds ? tokens[s] : 0;
    input_[s + static_cast<std::size_t>(shape_.rows)] =
        static_cast<std::int32_t>(std::min(lengths_[s], shape_.positions - 1));
    if (adds) ++lengths_[s];
  }
  program::Executor& executor = engine_.executor();
  executor.write(d.next_input, input_);
  executor.expect(ops::Documents::packed);
  engine_.continue_texts(kDecode);
  executor.read(d.slot_logits, next_logits_);
  return next_logits_;
}

double Decoding::step_bytes(double cached_tokens) const {
  double bytes = 0;
  for (const program::Node& node : engine_.programs().find(kDecode).nodes) bytes += node.cost.bytes;
  // A cache is counted whole there; a ring is full before the others are.
  const auto slots = static_cast<double>(shape_.slots);
  for (const program::LayerCache& layer : engine_.lowered().decode.next.caches) {
    const program::Value &keys = engine_.programs().at(layer.keys), &values = engine_.programs().at(layer.values);
    const double filled = std::min(1.0, cached_tokens / (slots * static_cast<double>(keys.shape[2])));
    bytes -= (1 - filled) * static_cast<double>(keys.bytes() + values.bytes());
  }
  return bytes;
}

namespace {

using Tokens = std::vector<std::int32_t>;

// Some prompts, a slot each.
class Round {
 public:
  Round(Decoding& decoding, std::span<const Tokens> prompts, std::size_t first, const GenerateOptions& options,
        const std::function<bool(std::size_t, std::int32_t)>& heard, Generated& out)
      : decoding_(decoding), first_(first), options_(options), heard_(heard), out_(out) {
    for (const Tokens& prompt : prompts) texts_.push_back({prompt, false});
    next_.resize(texts_.size());
  }

  void run() {
    read_prompts();
    const std::int64_t tokens = decoding_.positions() < 2 ? 1 : options_.tokens;  // one position has no room for a next
    for (std::int64_t i = 1; i < tokens && writing(); ++i) {
      make_room();
      step(i);
    }
  }

 private:
  struct Text {
    Tokens tokens;  // with its prompt
    bool done;
  };

  bool writing() const {
    return std::ranges::any_of(texts_, [](const Text& t) { return !t.done; });
  }

  void read_prompts() {
    std::map<Tokens, std::vector<std::int64_t>> slots_of;
    for (std::size_t s = 0; s < texts_.size(); ++s) slots_of[texts_[s].tokens].push_back(static_cast<std::int64_t>(s));
    for (const auto& [prompt, slots] : slots_of) {
      const std::span<const float> logits = prefill(prompt, slots);
      for (const std::int64_t slot : slots) choose(static_cast<std::size_t>(slot), 0, logits);
    }
  }

  std::span<const float> prefill(std::span<const std::int32_t> text, std::span<const std::int64_t> slots) {
    const double start = steady_seconds();
    const std::span<const float> logits = decoding_.prefill(text, slots);
    out_.figures.prefill_seconds += steady_seconds() - start;
    out_.figures.prompt_tokens += static_cast<std::int64_t>(text.size());
    return logits;
  }

  // The last token of a text is not in the cache yet: the step puts it there.
  void make_room() {
    for (std::size_t s = 0; s < texts_.size(); ++s) {
      const auto slot = static_cast<std::int64_t>(s);
      if (texts_[s].done || decoding_.length(slot) < decoding_.positions()) continue;
      const std::int64_t kept = std::max<std::int64_t>(decoding_.positions() / 2, 1);
      const Tokens& tokens = texts_[s].tokens;
      prefill(
          std::span(tokens).subspan(tokens.size() - 1 - static_cast<std::size_t>(kept), static_cast<std::size_t>(kept)),
          {&slot, 1});
    }
  }

  void step(std::int64_t number) {
    const double start = steady_seconds();
    double cached = 0;
    for (std::size_t s = 0; s < texts_.size(); ++s) {
      next_[s] = texts_[s].done ? Decoding::kNoToken : texts_[s].tokens.back();
      if (!texts_[s].done) cached += static_cast<double>(decoding_.length(static_cast<std::int64_t>(s)) + 1);
    }
    const std::span<const float> logits = decoding_.step(next_);
    const std::size_t vocab = logits.size() / static_cast<std::size_t>(decoding_.slots());
    for (std::size_t s = 0; s < texts_.size(); ++s)
      if (!texts_[s].done) {
        choose(s, number, logits.subspan(s * vocab, vocab));
        ++out_.figures.decoded;
      }
    out_.figures.decode_seconds += steady_seconds() - start;
    out_.figures.decode_bytes += decoding_.step_bytes(cached);
    ++out_.figures.steps;
  }

  // The token at `number` of text s.
  void choose(std::size_t s, std::int64_t number, std::span<const float> logits) {
    const double u = Random(options_.seed, first_ + s).uniform(static_cast<std::uint64_t>(number));
    const std::int32_t token = chooser_.choose(logits, options_.choice, u);
    Continuation& out = out_.texts[first_ + s];
    if (std::ranges::find(options_.stop_tokens, token) != options_.stop_tokens.end()) {
      texts_[s].done = out.ended = true;
      return;
    }
    texts_[s].tokens.push_back(token);
    out.tokens.push_back(token);
    if (heard_ && !heard_(first_ + s, token)) texts_[s].done = out.ended = true;
  }

  Decoding& decoding_;
  std::size_t first_;
  const GenerateOptions& options_;
  const std::function<bool(std::size_t, std::int32_t)>& heard_;
  Generated& out_;
  std::vector<Text> texts_;
  Tokens next_;
  TokenChooser chooser_;
};

}  // namespace

Generated generate(Decoding& decoding, std::span<const std::vector<std::int32_t>> prompts,
                   const GenerateOptions& options, const std::function<bool(std::size_t, std::int32_t)>& heard) {
  Generated out;
  out.texts.resize(prompts.size());
  const auto slots = static_cast<std::size_t>(decoding.slots());
  for (std::size_t first = 0; first < prompts.size(); first += slots)
    Round(decoding, prompts.subspan(first, std::min(slots, prompts.size() - first)), first, options, heard, out).run();
  return out;
}

}  // namespace redline::model
