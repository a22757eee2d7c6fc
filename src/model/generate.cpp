// Prompts go through the slots in rounds; equal ones of a round are read once.
#include "model/generate.h"

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "base/random.h"

namespace redline::model {
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
