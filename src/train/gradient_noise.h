// How noisy a step's gradient is: the batch at which its noise is as large as itself (the noise scale of McCandlish
// and others, "An Empirical Model of Large-Batch Training"). A gradient of n pairs is their sum; with the mean
// gradient G of one pair and the trace S of its covariance
//   E |g|^2 = n^2 |G|^2 + n S,
// so that gradients of two sizes give both. The scale is S / |G|^2, in pairs: tokens.
#pragma once

#include <cstdint>
#include <optional>

namespace redline::train {

// Some gradients of about as many pairs each.
struct GradientSize {
  double squares = 0;  // sum of their squared norms
  double pairs = 0;    // of all of them
  double count = 1;    // how many they are
};

// Estimates without bias; one look's may well be below zero.
struct NoiseEstimate {
  double signal = 0;  // |G|^2
  double noise = 0;   // S
};
// Empty where both have the same size, or a number is not finite.
std::optional<NoiseEstimate> estimate_noise(const GradientSize& small, const GradientSize& large);

// Means of both over the last looks, and then their ratio: the ratio of single ones would have a bias.
class NoiseScale {
 public:
  void add(const NoiseEstimate& look);
  std::optional<double> pairs() const;  // empty where a mean is not above zero

 private:
  static constexpr double kReach = 20;  // looks
  NoiseEstimate mean_;
  double looks_ = 0;
};

}  // namespace redline::train
