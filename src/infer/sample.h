// Text from a checkpoint: which tokens it speaks in, and the programs that write it (model/generate.h).
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

// Continues a prompt that can be. `heard(sample, token)` is told every token
// as it comes; false ends that sample.
model::Generated sample(const Checkpoint& checkpoint, std::span<const std::int32_t> prompt,
                        const SampleOptions& options, device::Device& device,
                        const std::function<bool(std::size_t sample, std::int32_t token)>& heard);

// How a checkpoint's tokens are read and written: by its model's tokenizer (infer/model_tokenizer.h).
class Vocabulary {
 public:
  // A UserError when there is none, or when it knows more than the model.
  Vocabulary(FileSystem& files, const Checkpoint& checkpoint, const std::string& given = {});
  // Behind what the tokenizer of a Hugging Face folder puts before a text, unless the text begins with it: such a model
  // has seen no text without. A run of ours has seen none with it. A UserError when the model does not know a token.
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
