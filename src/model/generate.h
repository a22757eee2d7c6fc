// Generates text. TokenChooser chooses the next token; Decoding continues texts token by token, with the prefill and
// decode programs of an engine and their caches; generate() chooses tokens and gives them back to the model, several
// texts at a time. A command on a checkpoint and a trainer between steps both use it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/engine.h"

namespace redline::model {

struct ChoiceOptions {
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 0;    // only among the k likeliest; 0: among all
  double top_p = 1;          // of those, only among the fewest that hold this share of the probability
};

// Holds the memory that a choice needs.
class TokenChooser {
 public:
  // `u` in [0, 1) decides. Ties go to the lower id. A token whose logit is not finite is chosen only where no logit is
  // finite.
  std::int32_t choose(std::span<const float> logits, const ChoiceOptions& options, double u);

 private:
  void keep_likeliest(std::size_t count);
  void keep_share(double share);

  struct Candidate {
    std::int32_t id;
    float logit;
  };
  static bool likelier(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  }
  std::vector<Candidate> candidates_;
  std::vector<double> weights_;
};

class Decoding {
 public:
  explicit Decoding(Engine& engine);  // lowered with options.decode; must outlive this

  std::int64_t slots() const { return shape_.slots; }
  std::int64_t positions() const { return shape_.positions; }  // tokens that a text may have
  std::int64_t length(std::int64_t slot) const { return lengths_[static_cast<std::size_t>(slot)]; }

  // Replaces the contents of these slots by the text. The logits after it, [vocab], are valid until the next call.
  std::span<const float> prefill(std::span<const std::int32_t> text, std::span<const std::int64_t> slots);

  // Appends tokens[s] to the text of slot s, unless it is kNoToken. The logits after it, [slots, vocab], are valid
  // until the next call. A slot must hold a text, with room for one more token.
  static constexpr std::int32_t kNoToken = -1;
  std::span<const float> step(std::span<const std::int32_t> tokens);

  // The least bytes that a step moves when its texts have so many tokens in all: weights, activations, and the used
  // part of the caches.
  double step_bytes(double cached_tokens) const;

 private:
  Engine& engine_;
  DecodeShape shape_;
  std::vector<std::int64_t> lengths_;  // by slot
  std::vector<std::int32_t> input_;    // [2, rows]: tokens, positions
  std::vector<std::int32_t> prompt_, positions_, documents_;
  std::vector<float> prompt_logits_, next_logits_;
};

struct GenerateOptions {
  std::int64_t tokens = 200;  // at most, of each text
  ChoiceOptions choice;
  std::uint64_t seed = 0;                      // text i draws from stream i, whatever the other texts
  std::vector<std::int32_t> stop_tokens = {};  // where a text ends; they are not part of it
};

struct Continuation {
  std::vector<std::int32_t> tokens;  // without the prompt and without the stop token
  bool ended = false;                // by a stop token, or by the listener
};

struct GenerateFigures {
  std::int64_t prompt_tokens = 0;  // read
  std::int64_t steps = 0;          // runs of the decode program
  std::int64_t decoded = 0;        // tokens from these runs
  double prefill_seconds = 0, decode_seconds = 0;
  double decode_bytes = 0;  // moved by the steps, at least
};

struct Generated {
  std::vector<Continuation> texts;  // by prompt
  GenerateFigures figures;
};

// Continues every prompt. A text that has filled its positions goes on from its newer half, since the model has never
// seen a later position. `heard(i, token)` gets every token of text i as it comes; false ends that text.
Generated generate(Decoding& decoding, std::span<const std::vector<std::int32_t>> prompts,
                   const GenerateOptions& options, const std::function<bool(std::size_t i, std::int32_t token)>& heard);

}  // namespace redline::model
