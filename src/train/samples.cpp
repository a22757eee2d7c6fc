// Prompts are made once, before the run begins: what is wrong with one costs no step.
#include "train/samples.h"

#include <algorithm>

#include "base/error.h"
#include "base/words.h"

namespace redline::train {
namespace {

constexpr std::int64_t kOwnPrompt = 8;  // tokens of a held-out document

// Of a conversation what stands before its first answer.
std::vector<std::int32_t> beginning_of(const data::Corpus& held_out, std::int64_t most) {
  const std::int64_t own = held_out.masked() ? most : std::min(kOwnPrompt, most);
  const auto feed = held_out.feed({.cut = {.row = own}, .shuffle = false, .repeat = false});
  const auto maker = feed->maker();
  feed->seek({});
  for (data::Chunk chunk; feed->take(chunk); chunk.clear()) {
    maker->make(chunk);
    if (chunk.tokens.empty()) continue;  // documents without text
    const auto first = std::ranges::find_if(chunk.pieces, [](const auto& piece) { return piece.end > 0; });
    chunk.tokens.resize(static_cast<std::size_t>(first->end));
    auto end = std::ranges::find_if_not(chunk.tokens, data::is_context);
    if (end == chunk.tokens.begin()) end += std::min(kOwnPrompt, first->end);
    chunk.tokens.erase(end, chunk.tokens.end());
    std::ranges::transform(chunk.tokens, chunk.tokens.begin(), data::token_id);
    return chunk.tokens;
  }
  fail_user("train.sample_every: there is no held-out document to begin a sample with; set train.sample_prompts");
}

}  // namespace

Samples::Samples(const config::Config& config, const data::Corpus& held_out) : corpus_(held_out) {
  const config::Train& t = config.train;
  const std::int64_t most = std::min(model::kSamplePromptTokens, t.seq_len);
  for (const std::string& prompt : t.sample_prompts) {
    prompts_.push_back(corpus_.encode(prompt));
    const auto tokens = static_cast<std::int64_t>(prompts_.back().size());
    if (tokens < 1 || tokens > most)
      fail_user("{}train.sample_prompts: \"{}\" has {}; a prompt has from 1 to {}",
                config.origins.prefix({"train.sample_prompts"}), prompt, counted(tokens, "token"), most);
  }
  if (prompts_.empty()) prompts_.push_back(beginning_of(held_out, most));
  options_.tokens = t.sample_tokens;
  options_.choice.temperature = t.sample_temperature;
  options_.seed = static_cast<std::uint64_t>(t.seed);
  if (const auto end = corpus_.end_token()) options_.stop_tokens = {*end};
}

std::vector<SampledText> Samples::write(model::Engine& engine, const std::function<bool()>& go_on) const {
  model::Decoding decoding(engine);
  const model::Generated g =
      model::generate(decoding, prompts_, options_, [&](std::size_t, std::int32_t) { return go_on(); });
  std::vector<SampledText> texts;
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    // Decoded together, since some tokenizers write a token otherwise at the beginning of a text.
    std::vector<std::int32_t> all = prompts_[i];
    const std::string prompt = corpus_.decode(all);
    all.insert(all.end(), g.texts[i].tokens.begin(), g.texts[i].tokens.end());
    const std::string whole = corpus_.decode(all);
    texts.push_back(whole.starts_with(prompt) ? SampledText{prompt, whole.substr(prompt.size())}
                                              : SampledText{prompt, corpus_.decode(g.texts[i].tokens)});
  }
  return texts;
}

}  // namespace redline::train
