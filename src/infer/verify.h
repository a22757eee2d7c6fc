// Parity with Hugging Face: the same weights and documents through our programs, compared tensor by tensor with what an
// oracle computed in float64.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "device/device.h"

namespace redline::infer {

inline constexpr double kForwardTolerance = 1e-4;    // logits, losses, norms
inline constexpr double kParameterTolerance = 1e-3;  // gradients, parameters after training

struct Comparison {
  std::string name;  // the oracle's key
  double error = 0;  // |a - b| / |b| over the whole tensor; |a - b| where the oracle's tensor is zero
  double tolerance = 0;
  bool within() const { return error <= tolerance; }  // NaN is not
};

struct Verification {
  std::int64_t tokens = 0, documents = 0, pairs = 0, train_steps = 0;
  std::vector<Comparison> comparisons;  // the worst against its tolerance first
  bool within() const;
};

double relative_error(std::span<const float> ours, std::span<const float> oracle);

// `progress` is told what is being done. A case that cannot be read is a UserError.
Verification verify(FileSystem& files, const Path& folder, device::Device& device,
                    const std::function<void(const std::string&)>& progress = {});

}  // namespace redline::infer
