// Samples text from a checkpoint: its tokens, and the programs that generate them (model/generate.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "infer/model_tokenizer.h"
#include "model/generate.h"

namespace redline::infer {

struct SampleOptions {
  model::GenerateOptions generate;
  std::int64_t samples = 1;     // of the prompt
  std::string precision;        // bf16 | tf32 | fp32, on a GPU; empty: as the model was trained
  model::LoadProgress loading;  // of the weights
};

// A prompt without tokens, or longer than the model's positions, is a UserError.
void check_prompt(const Checkpoint& checkpoint, std::span<const std::int32_t> prompt);

// Continues a prompt that check_prompt has passed. `heard(sample, token)` gets every token as it comes; false ends that
// sample.
model::Generated sample(const Checkpoint& checkpoint, std::span<const std::int32_t> prompt,
                        const SampleOptions& options, device::Device& device,
                        const std::function<bool(std::size_t sample, std::int32_t token)>& heard);

// Text to tokens of a checkpoint and back, by its model's tokenizer (infer/model_tokenizer.h).
class Vocabulary {
 public:
  // A UserError where there is no tokenizer, or where it has more tokens than the model.
  Vocabulary(FileSystem& files, const Checkpoint& checkpoint, const std::string& given = {});
  // In a Hugging Face folder, puts the tokenizer's first tokens before a text that does not begin with them: such a
  // model has seen no text without them. A run of ours has seen none with them. A token that the model does not know is
  // a UserError.
  std::vector<std::int32_t> encode(const std::string& text) const;
  std::string decode(std::span<const std::int32_t> tokens) const;
  // The tokens that end a text: the tokenizer's own, and the ones that generation_config.json or config.json name.
  const std::vector<std::int32_t>& end_tokens() const { return end_tokens_; }

 private:
  std::int64_t model_vocab_;
  std::shared_ptr<const data::Tokenizer> tokenizer_;
  std::vector<std::int32_t> beginning_, end_tokens_;
};

}  // namespace redline::infer
