// Deficits: part times all tokens, less whole times the source's own. The products may be beyond 64 bits, their
// difference is not: it stays within some pieces of 2^24 tokens times 2^30, so that arithmetic modulo 2^64 has it
// exactly.
#include "data/mixture_schedule.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace redline::data {
namespace {

constexpr double kWhole = 0x1p30;  // about: a share is right to 1e-9

}  // namespace

MixtureSchedule::MixtureSchedule(const std::vector<double>& weights) : tokens_(weights.size()) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (const double weight : weights)
    parts_.push_back(std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::llround(weight / sum * kWhole))));
  whole_ = std::accumulate(parts_.begin(), parts_.end(), std::uint64_t{0});
}

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
