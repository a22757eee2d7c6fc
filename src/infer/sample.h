// Samples text from a checkpoint: text to tokens, the programs that generate tokens (model/generate.h), and tokens to
// text as they come.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "infer/load.h"
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

// Text to tokens of a checkpoint and back, by its model's tokenizer (infer/load.h).
class Vocabulary {
 public:
  // A UserError where there is no tokenizer, or where it has more tokens than the model.
  Vocabulary(FileSystem& files, const Checkpoint& checkpoint, const std::string& given = {});
  // Puts before a text what the model saw before every text (ModelTokenizer::beginning), unless it begins so. A token
  // that the model does not know is a UserError.
  std::vector<std::int32_t> encode(const std::string& text) const;
  std::string decode(std::span<const std::int32_t> tokens) const;
  // The tokens that end a text: the tokenizer's own, and the ones that generation_config.json or config.json name.
  const std::vector<std::int32_t>& end_tokens() const { return end_tokens_; }

 private:
  std::int64_t model_vocab_;
  std::shared_ptr<const data::Tokenizer> tokenizer_;
  std::vector<std::int32_t> beginning_, end_tokens_;
};

// Turns tokens into text as they come. Text that was given out never changes. A token may end inside a character, and
// text may be the beginning of a stop string: both wait for the tokens that decide it.
class TextStream {
 public:
  using Decode = std::function<std::string(std::span<const std::int32_t>)>;
  // `before`: the tokens that the text follows; some tokenizers write a token otherwise at the beginning.
  TextStream(Decode decode, std::span<const std::int32_t> before, std::vector<std::string> stops);

  std::string push(std::int32_t token);              // the text that is final now
  std::string finish();                              // the rest, at the end
  bool stopped() const { return stopped_; }          // a stop string has come: the text ends before it
  const std::string& text() const { return text_; }  // all text given out

 private:
  void add(std::string_view more);
  std::string give(std::size_t end);

  Decode decode_;
  std::vector<std::int32_t> tokens_;  // the last ones
  std::size_t known_;                 // how many of them are in the text; they affect how the rest is written
  std::vector<std::string> stops_;
  std::string text_, waiting_;  // given out; complete characters that are not yet
  bool stopped_ = false;
};

}  // namespace redline::infer
