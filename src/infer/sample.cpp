// Greedy and temperature sampling.
#include "infer/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.h"
#include "data/ping.h"

namespace redline::infer {
std::int32_t choose_token(std::span<const float> logits, double temperature, std::int64_t top_k, double u) {
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto value = [&](std::int32_t id) {
    const float v = logits[static_cast<std::size_t>(id)];
    return std::isfinite(v) ? static_cast<double>(v) : -INFINITY;
  };
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    return value(a) != value(b) ? value(a) > value(b) : a < b;
  };
  const std::int32_t best = *std::ranges::min_element(ids, likelier);
  if (temperature <= 0 || value(best) == -INFINITY) return best;
  if (top_k > 0 && top_k < static_cast<std::int64_t>(ids.size())) {
    std::ranges::nth_element(ids, ids.begin() + top_k - 1, likelier);
    ids.resize(static_cast<std::size_t>(top_k));
    std::ranges::sort(ids);
  }
  std::vector<double> weights(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) weights[i] = std::exp((value(ids[i]) - value(best)) / temperature);
  double left = u * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t i = 0; i < ids.size(); ++i)
    if ((left -= weights[i]) < 0) return ids[i];
  return best;  // rounding left a crumb
}

Sample sample(const Checkpoint& checkpoint, std::span<const std::int32_t> prompt, const SampleOptions& options,
              device::Device& device, const std::function<void(std::int32_t)>& each) {
  REDLINE_CHECK(!prompt.empty(), "a prompt has at least one token");
  const auto prompt_size = static_cast<std::int64_t>(prompt.size());
  const std::int64_t window =
      std::min(checkpoint.max_positions, prompt_size + std::max<std::int64_t>(options.tokens, 1));
  model::LoweringOptions lowering = model::lowering_options(checkpoint.run.value_or(config::Config{}), device.kind());
  lowering.batch = {1, window, 1};
  lowering.training = false;
  lowering.logits = true;
  const auto engine = load_engine(checkpoint, lowering, device);
  const auto vocab = static_cast<std::size_t>(checkpoint.model.vocab);
  const Random random(options.seed, 0);

  data::Batch batch(lowering.batch);
  std::vector<std::int32_t> text(prompt.begin(), prompt.end());
  Sample out;
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    // Past the window the oldest tokens are forgotten: the model has never seen a later position.
    const std::size_t seen = std::min(text.size(), static_cast<std::size_t>(window));
    batch.clear();
    batch.append(std::span(text).last(seen));
    engine->upload(batch);
    const std::vector<float> logits = engine->logits();
    const std::int32_t token = choose_token(std::span(logits).subspan((seen - 1) * vocab, vocab), options.temperature,
                                            options.top_k, random.uniform(static_cast<std::uint64_t>(i)));
    if (token == options.end_token) {
      out.ended = true;
      break;
    }
    text.push_back(token);
    out.tokens.push_back(token);
    if (each) each(token);
  }
  return out;
}

Vocabulary::Vocabulary(FileSystem& files, const Checkpoint& checkpoint) : model_vocab_(checkpoint.model.vocab) {
  const std::string folder = checkpoint.folder.string();
  if (files.exists(checkpoint.folder / "tokenizer.json") || files.exists(checkpoint.folder / "tokenizer.model"))
    tokenizer_ = data::open_tokenizer(folder, folder);
  else if (checkpoint.run)
    tokenizer_ = data::open_data_tokenizer(checkpoint.run->data);
  else
    tokenizer_ = data::open_tokenizer(model_vocab_ >= data::kPingVocabulary ? "ping" : "bytes", folder);
}

std::vector<std::int32_t> Vocabulary::encode(const std::string& text) const {
  std::vector<std::int32_t> tokens = tokenizer_->encode(text);
  for (const std::int32_t t : tokens)
    if (t >= model_vocab_)
      fail_user("the prompt has a token {}, outside the model's vocabulary of {}", t, model_vocab_);
  return tokens;
}

std::string Vocabulary::decode(std::span<const std::int32_t> tokens) const { return tokenizer_->decode(tokens); }

}  // namespace redline::infer
