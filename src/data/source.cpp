// Which source a configuration means.
#include "data/source.h"

#include <algorithm>

#include "base/error.h"
#include "data/noise.h"
#include "data/ping.h"
#include "data/text.h"

namespace redline::data {
namespace {

bool is_ping(const std::vector<std::string>& names, const std::string& key) {
  const auto count = std::ranges::count(names, "ping");
  if (count > 0 && names.size() > 1)
    fail_user("{}: \"ping\" is generated and stands alone; a file of that name is ./ping", key);
  return count > 0;
}

// "random:VOCABULARY" alone; training and held-out tokens differ by their seed.
std::unique_ptr<DocumentSource> open_noise(const std::vector<std::string>& names, const std::string& key,
                                           std::int64_t seed) {
  if (names.size() != 1) return nullptr;
  const std::optional<std::int64_t> vocabulary = noise_vocabulary(names[0], key);
  return vocabulary ? make_noise(seed, *vocabulary) : nullptr;
}

}  // namespace

std::int64_t DocumentSource::length(std::int64_t index) const {
  std::vector<std::int32_t> tokens;
  read(index, tokens);
  return static_cast<std::int64_t>(tokens.size());
}

std::unique_ptr<DocumentSource> open_training_source(const config::Data& data) {
  if (is_ping(data.train, "data.train")) return make_ping(data.seed, data.documents, PingPart::training);
  if (auto noise = open_noise(data.train, "data.train", data.seed)) return noise;
  return open_text(data.train, "data.train", data.eval.empty() ? TextPart::training : TextPart::all, data.seed);
}

std::unique_ptr<DocumentSource> open_held_out_source(const config::Data& data) {
  const bool split = data.eval.empty();
  const std::vector<std::string>& names = split ? data.train : data.eval;
  const std::string key = split ? "data.train" : "data.eval";
  if (is_ping(names, key)) return make_ping(data.seed, 0, PingPart::held_out);
  if (auto noise = open_noise(names, key, ~data.seed)) return noise;
  return open_text(names, key, split ? TextPart::held_out : TextPart::all, data.seed);
}

void require_vocabulary(const DocumentSource& source, std::int64_t model_vocab, const config::Origins& origins) {
  if (source.vocabulary() > model_vocab)
    fail_user("{}model.vocab is {}, but the data ({}) has a vocabulary of {}; set model.vocab to at least that",
              origins.prefix({"model.vocab", "data.train", "data.eval"}), model_vocab, source.name(),
              source.vocabulary());
}

}  // namespace redline::data
