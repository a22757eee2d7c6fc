// Lowers a checkpoint for the prompt and the number of tokens, and lets it write.
#include "infer/sample.h"

#include <algorithm>

#include "base/words.h"
#include "io/json.h"

namespace redline::infer {
namespace {

// "eos_token_id" of a Hugging Face folder: a number or a list of them.
void add_end_tokens(FileSystem& files, const Path& path, std::int64_t vocab, std::vector<std::int32_t>& tokens) {
  if (!files.exists(path)) return;
  const io::Json json = io::read_json(files, path);
  const auto it = json.find("eos_token_id");
  if (it == json.end() || it->is_null()) return;
  for (const io::Json& id : it->is_array() ? *it : io::Json::array({*it})) {
    if (!id.is_number_integer()) fail_user("{}: eos_token_id must be a whole number or a list of them", path.string());
    // An id that the model does not have never comes.
    if (const auto n = id.get<std::int64_t>(); n >= 0 && n < vocab) tokens.push_back(static_cast<std::int32_t>(n));
  }
}

}  // namespace

void check_prompt(const Checkpoint& checkpoint, std::span<const std::int32_t> prompt) {
  if (prompt.empty()) fail_user("the prompt has no tokens; give at least one to continue");
  if (static_cast<std::int64_t>(prompt.size()) > checkpoint.max_positions)
    fail_user("the prompt has {}, but the model of {} has {}; give a shorter prompt", counted(prompt.size(), "token"),
              checkpoint.folder.string(), counted(checkpoint.max_positions, "position"));
}

model::Generated sample(const Checkpoint& checkpoint, std::span<const std::int32_t> prompt,
                        const SampleOptions& options, device::Device& device,
                        const std::function<bool(std::size_t, std::int32_t)>& heard) {
  check_prompt(checkpoint, prompt);
  config::Config config = checkpoint.run.value_or(config::Config{});
  if (!options.precision.empty()) config.precision.matmul = options.precision;
  model::LoweringOptions lowering = model::lowering_options(config, device.kind());
  lowering.batch = {1, 1, 1};
  lowering.training = false;
  lowering.decode = model::decode_shape(device.kind(), options.samples, static_cast<std::int64_t>(prompt.size()),
                                        options.generate.tokens, checkpoint.max_positions);
  const auto engine = load_engine(checkpoint, lowering, device, options.loading);
  model::Decoding decoding(*engine);
  // A card makes its plans the first time a program runs; the figures are of what comes after.
  if (device.runs_ahead()) {
    const std::int64_t slot = 0;
    decoding.prefill(prompt.first(1), {&slot, 1});
    if (decoding.positions() > 1) decoding.step(prompt.first(1));
  }
  const std::vector<std::vector<std::int32_t>> prompts(static_cast<std::size_t>(options.samples),
                                                       {prompt.begin(), prompt.end()});
  return model::generate(decoding, prompts, options.generate, heard);
}

Vocabulary::Vocabulary(FileSystem& files, const Checkpoint& checkpoint, const std::string& given)
    : model_vocab_(checkpoint.model.vocab), tokenizer_(require_tokenizer(files, checkpoint, given).tokenizer) {
  if (!checkpoint.run) beginning_ = tokenizer_->beginning();
  add_end_tokens(files, checkpoint.folder / "generation_config.json", model_vocab_, end_tokens_);
  if (end_tokens_.empty()) add_end_tokens(files, checkpoint.folder / "config.json", model_vocab_, end_tokens_);
  if (const auto end = tokenizer_->end_token()) end_tokens_.push_back(*end);
}

std::vector<std::int32_t> Vocabulary::encode(const std::string& text) const {
  std::vector<std::int32_t> tokens = tokenizer_->encode(text);
  const bool begins =
      tokens.size() >= beginning_.size() && std::equal(beginning_.begin(), beginning_.end(), tokens.begin());
  if (!begins) tokens.insert(tokens.begin(), beginning_.begin(), beginning_.end());
  for (const std::int32_t t : tokens)
    if (t >= model_vocab_)
      fail_user("the prompt has a token {}, outside the model's vocabulary of {}", t, model_vocab_);
  return tokens;
}

std::string Vocabulary::decode(std::span<const std::int32_t> tokens) const { return tokenizer_->decode(tokens); }

}  // namespace redline::infer
