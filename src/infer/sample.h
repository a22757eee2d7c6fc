// Text from a model, token by token. Every token runs the whole window again through the logits program: there is no
// cache of keys and values yet, so the cost of a token grows with the window and not with what is new.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/source.h"
#include "infer/load.h"

namespace redline::infer {

struct SampleOptions {
  std::int64_t tokens = 200;  // at most
  double temperature = 0.8;   // 0: always the likeliest token
  std::int64_t top_k = 0;     // only among the k likeliest; 0: among all
  std::uint64_t seed = 0;
  std::optional<std::int32_t> end_token = {};  // where the text ends
};

struct Sample {
  std::vector<std::int32_t> tokens;  // without the prompt and without the end token
  bool ended = false;                // the model said the end token
};

// `u` in [0, 1) decides. Ties go to the lower id; logits that are not finite are never chosen while one is.
std::int32_t choose_token(std::span<const float> logits, double temperature, std::int64_t top_k, double u);

// `each` hears every token as it comes.
Sample sample(const Checkpoint& checkpoint, std::span<const std::int32_t> prompt, const SampleOptions& options,
              device::Device& device, const std::function<void(std::int32_t)>& each);

// How a checkpoint's tokens are read and written: by the tokenizer in its folder, else by that of its training data; for a
// Hugging Face folder without one by ping's roles, or plain bytes when its vocabulary is too small for them.
class Vocabulary {
 public:
  Vocabulary(FileSystem& files, const Checkpoint& checkpoint);
  std::vector<std::int32_t> encode(const std::string& text) const;  // a UserError when the model does not know a token
  std::string decode(std::span<const std::int32_t> tokens) const;
  std::optional<std::int32_t> end_token() const { return tokenizer_->end_token(); }

 private:
  std::int64_t model_vocab_;
  std::shared_ptr<const data::Tokenizer> tokenizer_;
};

}  // namespace redline::infer
