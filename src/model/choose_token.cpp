// Greedy and random choice of a token.
#include "model/choose_token.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace redline::model {
namespace {

std::int32_t likeliest(std::span<const float> logits) {
  std::size_t best = 0;
  float top = -INFINITY;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i]) || logits[i] <= top) continue;
    best = i;
    top = logits[i];
  }
  return static_cast<std::int32_t>(best);
}

}  // namespace

// In the order of ids, which is that of the draw.
void TokenChooser::keep_likeliest(std::size_t count) {
  if (count >= candidates_.size()) return;
  std::ranges::nth_element(candidates_, candidates_.begin() + static_cast<std::ptrdiff_t>(count) - 1, likelier);
  candidates_.resize(count);
  std::ranges::sort(candidates_, {}, &Candidate::id);
}

// The likeliest are few as a rule, so only as many are sorted as the share turns out to need.
void TokenChooser::keep_share(double share) {
  const double wanted = share * std::accumulate(weights_.begin(), weights_.end(), 0.0);
  std::vector<std::size_t> order(candidates_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto before = [&](std::size_t a, std::size_t b) { return likelier(candidates_[a], candidates_[b]); };
  double held = 0;
  std::size_t kept = 0;
  for (std::size_t sorted = 0; kept < order.size() && (kept == 0 || held < wanted);) {
    if (kept == sorted) {
      sorted = std::min(order.size(), std::max<std::size_t>(64, 4 * sorted));
      std::partial_sort(order.begin() + static_cast<std::ptrdiff_t>(kept),
                        order.begin() + static_cast<std::ptrdiff_t>(sorted), order.end(), before);
    }
    held += weights_[order[kept++]];
  }
  order.resize(kept);
  std::ranges::sort(order);
  for (std::size_t i = 0; i < order.size(); ++i) {
    candidates_[i] = candidates_[order[i]];
    weights_[i] = weights_[order[i]];
  }
  candidates_.resize(order.size());
  weights_.resize(order.size());
}

std::int32_t TokenChooser::choose(std::span<const float> logits, const ChoiceOptions& options, double u) {
  const std::int32_t best = likeliest(logits);
  const float top = logits[static_cast<std::size_t>(best)];
  if (options.temperature <= 0 || !std::isfinite(top)) return best;
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (std::isfinite(logits[i])) candidates_.push_back({static_cast<std::int32_t>(i), logits[i]});
  if (options.top_k > 0) keep_likeliest(static_cast<std::size_t>(options.top_k));
  weights_.clear();
  for (const Candidate& c : candidates_)
    weights_.push_back(std::exp((static_cast<double>(c.logit) - static_cast<double>(top)) / options.temperature));
  if (options.top_p < 1) keep_share(options.top_p);
  double left = u * std::accumulate(weights_.begin(), weights_.end(), 0.0);
  for (std::size_t i = 0; i < weights_.size(); ++i)
    if ((left -= weights_[i]) < 0) return candidates_[i].id;
  return best;  // rounding left a crumb
}

}  // namespace redline::model
