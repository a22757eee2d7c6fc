// Continues texts token by token: runs the prefill and decode programs of an engine, and keeps track of their caches.
// model/generate.h chooses the tokens.
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

  // Replaces the contents of these slots by the text. The logits behind it, [vocab], are valid until the next call.
  std::span<const float> prefill(std::span<const std::int32_t> text, std::span<const std::int64_t> slots);

  // Appends tokens[s] to the text of slot s, unless it is kNoToken. The logits behind it, [slots, vocab], are valid
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

}  // namespace redline::model
