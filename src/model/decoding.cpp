// Moves tokens and positions to the decoding programs and logits back.
#include "model/decoding.h"

#include <algorithm>
#include <numeric>

#include "program/program.h"

namespace redline::model {
namespace {

template <class T>
std::int64_t bytes_of(const std::vector<T>& v) {
  return static_cast<std::int64_t>(v.size() * sizeof(T));
}

}  // namespace

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
  executor.write(d.prompt.tokens, prompt_.data(), bytes_of(prompt_));
  executor.write(d.prompt.positions, positions_.data(), bytes_of(positions_));
  executor.write(d.prompt.doc_offsets, offsets, sizeof offsets);
  executor.write(d.prompt.slot_documents, documents_.data(), bytes_of(documents_));
  executor.write(d.last_row, &last, sizeof last);
  executor.expect(ops::Documents::packed);
  executor.run(kPrefill);
  executor.read(d.prompt_logits, prompt_logits_.data(), bytes_of(prompt_logits_));
  return prompt_logits_;
}

// A slot without a token writes over the place behind its text, or over its last one where that is full: nobody reads
// it.
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
  executor.write(d.next_input, input_.data(), bytes_of(input_));
  executor.expect(ops::Documents::packed);
  executor.run(kDecode);
  executor.read(d.slot_logits, next_logits_.data(), bytes_of(next_logits_));
  return next_logits_;
}

double Decoding::step_bytes(double cached_tokens) const {
  double bytes = 0;
  for (const program::Node& node : engine_.programs().find(kDecode).nodes) bytes += node.cost.bytes;
  double caches = 0;
  for (const program::LayerCache& layer : engine_.lowered().decode.next.caches)
    caches +=
        static_cast<double>(engine_.programs().at(layer.keys).bytes() + engine_.programs().at(layer.values).bytes());
  return bytes - caches + caches * cached_tokens / static_cast<double>(shape_.slots * shape_.positions);
}

}  // namespace redline::model
