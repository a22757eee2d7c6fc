// Texts continued token by token: the prefill and decode programs of an engine, and which token stands where in their
// caches. Which token comes next is somebody else's choice (model/generate.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/engine.h"

namespace redline::model {

class Decoding {
 public:
  explicit Decoding(Engine& engine);  // lowered with options.decode; must outlive this

  std::int64_t slots() const { return shape_.slots; }
  std::int64_t positions() const { return shape_.positions; }    // tokens that a text may have
  std::int64_t longest_prompt() const { return shape_.prompt; }  // tokens that prefill() takes
  std::int64_t length(std::int64_t slot) const { return lengths_[static_cast<std::size_t>(slot)]; }

  // Puts the text into these slots in place of what they held. The logits behind it, [vocab], are good until the next
  // call.
  std::span<const float> prefill(std::span<const std::int32_t> text, std::span<const std::int64_t> slots);

  // Adds tokens[s] to every slot s that is not kNoToken, and the logits behind it, [slots, vocab], are good until the
  // next call. A slot must hold a text, with room for one more token.
  static constexpr std::int32_t kNoToken = -1;
  std::span<const float> step(std::span<const std::int32_t> tokens);

  // Bytes that a step must move at least when its texts have so many tokens in all: weights, activations, and the part
  // of the caches that is in use.
  double step_bytes(double cached_tokens) const;

 private:
  Engine& engine_;
  DecodeShape shape_;
  std::vector<std::int64_t> lengths_;  // by slot
  std::vector<std::int32_t> input_;    // [2, rows]: tokens, positions
  std::vector<std::int32_t> prompt_, positions_, documents_;
  std::vector<float> prompt_logits_, next_logits_;
};

}  // namespace redline::model
