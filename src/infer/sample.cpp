// Lowers a checkpoint for the prompt and the number of tokens, and lets it write. The text of new tokens is found by
// decoding them together with those before them, whose text is cut off again.
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

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // an incomplete character is decoded to it
constexpr std::size_t kContext = 8;                        // tokens before the text that are decoded with it

// How much of the end of `text` may be the beginning of `stop`.
std::size_t begun(std::string_view text, std::string_view stop) {
  for (std::size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n)
    if (text.ends_with(stop.substr(0, n))) return n;
  return 0;
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
    : model_vocab_(checkpoint.model.vocab) {
  ModelTokenizer found = require_tokenizer(files, checkpoint, given);
  tokenizer_ = std::move(found.tokenizer);
  beginning_ = std::move(found.beginning);
  add_end_tokens(files, checkpoint.folder / "generation_config.json", model_vocab_, end_tokens_);
  if (end_tokens_.empty()) add_end_tokens(files, checkpoint.folder / "config.json", model_vocab_, end_tokens_);
  if (const auto end = tokenizer_->end_token()) end_tokens_.push_back(*end);
}

std::vector<std::int32_t> Vocabulary::encode(const std::string& text) const {
  std::vector<std::int32_t> tokens = tokenizer_->encode(text);
  data::begin_with(beginning_, 0, tokens);
  for (const std::int32_t t : tokens)
    if (t >= model_vocab_)
      fail_user("the prompt has a token {}, outside the model's vocabulary of {}", t, model_vocab_);
  return tokens;
}

std::string Vocabulary::decode(std::span<const std::int32_t> tokens) const { return tokenizer_->decode(tokens); }

TextStream::TextStream(Decode decode, std::span<const std::int32_t> before, std::vector<std::string> stops)
    : decode_(std::move(decode)),
      tokens_(before.end() - static_cast<std::ptrdiff_t>(std::min(before.size(), kContext)), before.end()),
      known_(tokens_.size()),
      stops_(std::move(stops)) {
  std::erase(stops_, "");
}

std::string TextStream::push(std::int32_t token) {
  if (stopped_) return {};
  tokens_.push_back(token);
  const std::string before = decode_(std::span(tokens_).first(known_)), all = decode_(tokens_);
  if (all.ends_with(kReplacement) || all.size() < before.size()) return {};
  // One token that is in the text is enough from here on: the next one is written as it follows its neighbour.
  if (known_ > kContext) tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(known_ - 1));
  known_ = tokens_.size();
  add(std::string_view(all).substr(before.size()));
  std::size_t held = 0;
  for (const std::string& stop : stops_) held = std::max(held, begun(waiting_, stop));
  return give(stopped_ ? waiting_.size() : waiting_.size() - held);
}

std::string TextStream::finish() {
  if (!stopped_ && known_ < tokens_.size()) {
    const std::string before = decode_(std::span(tokens_).first(known_)), all = decode_(tokens_);
    known_ = tokens_.size();
    if (all.size() > before.size()) add(std::string_view(all).substr(before.size()));
  }
  return give(waiting_.size());
}

void TextStream::add(std::string_view more) {
  waiting_ += more;
  std::size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, waiting_.find(stop));
  if (end == std::string::npos) return;
  waiting_.resize(end);
  stopped_ = true;
}

std::string TextStream::give(std::size_t end) {
  std::string sure = waiting_.substr(0, end);
  waiting_.erase(0, end);
  text_ += sure;
  return sure;
}
}  // namespace redline::infer
