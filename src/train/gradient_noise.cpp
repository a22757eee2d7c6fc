// Two equations, and a mean of what solves them.
#include "train/gradient_noise.h"

#include <algorithm>
#include <cmath>

namespace redline::train {

// Each of a size's gradients has n pairs: squares / pairs = n |G|^2 + S.
std::optional<NoiseEstimate> estimate_noise(const GradientSize& small, const GradientSize& large) {
  const auto per_pair = [](const GradientSize& g) { return g.squares / g.pairs; };
  const double n = small.pairs / small.count, many = large.pairs / large.count;
  NoiseEstimate e;
  e.signal = (per_pair(large) - per_pair(small)) / (many - n);
  e.noise = per_pair(small) - n * e.signal;
  if (!(many > n) || !std::isfinite(e.signal) || !std::isfinite(e.noise)) return std::nullopt;
  return e;
}

void NoiseScale::add(const NoiseEstimate& look) {
  looks_ = std::min(looks_ + 1, kReach);
  mean_.signal += (look.signal - mean_.signal) / looks_;
  mean_.noise += (look.noise - mean_.noise) / looks_;
}

std::optional<double> NoiseScale::pairs() const {
  if (!(mean_.signal > 0) || !(mean_.noise > 0)) return std::nullopt;
  return mean_.noise / mean_.signal;
}

}  // namespace redline::train
