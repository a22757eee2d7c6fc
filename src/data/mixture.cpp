// The properties of a mixture, from those of its parts, and its turns.
#include "data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/hash.h"
#include "base/random.h"

namespace redline::data {
namespace {

constexpr std::uint64_t kPartStreams = 0x6D6978ull;  // "mix": keeps these numbers apart from others of the seed
constexpr double kSharesInAll = 0x1p30;              // about: a share is right to 1e-9

}  // namespace

Mixture::Mixture(std::vector<Part> parts, std::size_t speaks) : parts_(std::move(parts)), speaks_(speaks) {
  REDLINE_CHECK(speaks_ < parts_.size(), "a mixture of {} parts has no part {}", parts_.size(), speaks_);
}

std::vector<double> Mixture::weights() const {
  std::vector<double> weights;
  for (const Part& part : parts_) weights.push_back(part.weight);
  return weights;
}

FeedOptions Mixture::options_of(std::size_t part, FeedOptions options) const {
  const std::uint64_t seed = options.seed.value_or(parts_[part].corpus->order_seed());
  options.seed = Random(seed ^ kPartStreams, part).bits(0);
  return options;
}

std::string Mixture::name() const {
  const std::vector<double> all = weights();
  const double sum = std::accumulate(all.begin(), all.end(), 0.0);
  std::string text = "a mixture of ";
  for (std::size_t i = 0; i < parts_.size(); ++i)
    text += fmt::format("{}{} ({:.3g}%)",
                        i == 0                   ? ""
                        : i + 1 == parts_.size() ? " and "
                                                 : ", ",
                        parts_[i].name, 100 * parts_[i].weight / sum);
  return text;
}

bool Mixture::endless() const {
  return std::ranges::any_of(parts_, [](const Part& part) { return part.corpus->endless(); });
}

std::int64_t Mixture::vocabulary() const {
  std::int64_t most = 0;
  for (const Part& part : parts_) most = std::max(most, part.corpus->vocabulary());
  return most;
}

std::uint64_t Mixture::fingerprint() const {
  Hasher hasher;
  for (const Part& part : parts_) {
    const std::uint64_t own = part.corpus->fingerprint();
    hasher.update(std::as_bytes(std::span(&own, 1)));
  }
  return hasher.digest();
}

std::vector<Path> Mixture::files() const {
  std::vector<Path> all;
  for (const Part& part : parts_) {
    const std::vector<Path> own = part.corpus->files();
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

bool Mixture::checked_when_read() const {
  return std::ranges::all_of(parts_, [](const Part& part) { return part.corpus->checked_when_read(); });
}

std::string Mixture::decode(const std::vector<std::int32_t>& tokens) const {
  return parts_[speaks_].corpus->decode(tokens);
}
std::vector<std::int32_t> Mixture::encode(const std::string& text) const {
  return parts_[speaks_].corpus->encode(text);
}
std::optional<std::vector<std::int32_t>> Mixture::beginning() const {
  for (const Part& part : parts_)
    if (auto known = part.corpus->beginning()) return known;
  return {};
}
// The end of an answer, where some part has answers: a model's text ends there.
std::optional<std::int32_t> Mixture::end_token() const {
  const auto chat = std::ranges::find_if(parts_, [](const Part& part) { return part.corpus->masked(); });
  return (chat == parts_.end() ? parts_[speaks_] : *chat).corpus->end_token();
}
bool Mixture::masked() const {
  return std::ranges::any_of(parts_, [](const Part& part) { return part.corpus->masked(); });
}
std::unique_ptr<Feed> Mixture::feed(const FeedOptions& options) const {
  return parts_[speaks_].corpus->feed(options_of(speaks_, options));
}

// Ids of a part that tells no bytes may stand for any text.
std::optional<std::vector<std::int32_t>> Mixture::bytes_of_ids() const {
  std::optional<std::vector<std::int32_t>> longest;
  for (const Part& part : parts_) {
    std::optional<std::vector<std::int32_t>> own = part.corpus->bytes_of_ids();
    if (!own) return {};
    if (!longest || own->size() > longest->size()) std::swap(longest, own);
    if (!own) continue;
    for (std::size_t id = 0; id < own->size(); ++id)  // what closes the documents of one part is no text of another's
      if ((*own)[id] == 0) (*longest)[id] = 0;
  }
  return longest;
}

std::vector<std::string> names_of_entries(const std::vector<std::string>& entries) {
  std::vector<std::string> names;
  for (const std::string& entry : entries) {
    const Path path = entry;
    const std::string last = (path.has_filename() ? path : path.parent_path()).filename().string();
    names.push_back(last.empty() ? entry : last);
  }
  if (std::set(names.begin(), names.end()).size() < names.size()) names = entries;
  const std::vector<std::string> all = names;
  for (std::size_t i = 0; i < names.size(); ++i)  // an entry that is there twice
    if (std::ranges::count(all, all[i]) > 1) names[i] += fmt::format("#{}", i + 1);
  return names;
}

MixtureSchedule::MixtureSchedule(const std::vector<double>& weights) : tokens_(weights.size()) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (const double weight : weights)
    parts_.push_back(std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::llround(weight / sum * kSharesInAll))));
  whole_ = std::accumulate(parts_.begin(), parts_.end(), std::uint64_t{0});
}

// Deficits: part times all tokens, less whole times the source's own. The products may be beyond 64 bits, their
// difference is not: it stays within some pieces of 2^24 tokens times 2^30, so that arithmetic modulo 2^64 has it
// exactly.
std::size_t MixtureSchedule::next() const {
  std::size_t furthest = 0;
  std::int64_t most = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto deficit =
        static_cast<std::int64_t>(parts_[i] * all_tokens_ - whole_ * static_cast<std::uint64_t>(tokens_[i]));
    if (i > 0 && deficit <= most) continue;
    furthest = i;
    most = deficit;
  }
  return furthest;
}

void MixtureSchedule::drew(std::size_t source, std::int64_t tokens) {
  if (!several()) return;
  tokens_[source] += tokens;
  all_tokens_ += static_cast<std::uint64_t>(tokens);
}

bool MixtureSchedule::fits(const LoaderState& state) const {
  if (!several() && !state.sources.empty()) return false;
  const bool begins = state.sources.empty() && state.next == FeedPlace{} && state.waiting.empty();
  if (several() && !begins && state.sources.size() != parts_.size()) return false;
  const auto negative = [](const SourcePlace& s) { return s.tokens < 0; };
  const auto of_none = [&](const PieceId& id) {
    return id.source < 0 || static_cast<std::size_t>(id.source) >= sources();
  };
  return std::ranges::none_of(state.sources, negative) && std::ranges::none_of(state.waiting, of_none);
}

void MixtureSchedule::restore(const LoaderState& state) {
  all_tokens_ = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    tokens_[i] = state.sources.empty() ? 0 : state.sources[i].tokens;
    all_tokens_ += static_cast<std::uint64_t>(tokens_[i]);
  }
}

}  // namespace redline::data
