// Parity with Hugging Face: the same weights and documents through our programs, compared tensor by tensor with what an
// oracle computed in float64.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "device/device.h"
#include "model/engine.h"

namespace redline::infer {

// How far a tensor may be from the oracle's. In fp32 all of it is compared element by element. Where products round
// their operands (bf16, tf32) a gradient is compared by its direction and its length.
struct Tolerances {
  double forward = 1e-4;     // logits, losses
  double norms = 1e-4;       // gradient norms
  double parameters = 1e-3;  // gradients, and parameters after training
  double direction = 0;      // one minus the cosine; 0: gradients are compared by element
  double length = 0;
};
inline constexpr Tolerances kExactTolerances{};
inline constexpr Tolerances kRoundedTolerances{
    .forward = 2e-2, .norms = 2e-2, .parameters = 5e-2, .direction = 1e-3, .length = 2e-2};
// Of products in eight bits against the oracle, from the number of casts (verify.cpp).
Tolerances fp8_tolerances(std::int64_t layers);

enum class Measure {
  difference,  // |a - b| / |b| over the whole tensor; |a - b| where the oracle's tensor is zero
  direction,   // 1 - cos(a, b)
  length,      // | |a| - |b| | / |b|
};
constexpr std::string_view name_of(Measure m) {
  constexpr std::string_view kNames[] = {"difference", "direction", "length"};
  return kNames[static_cast<int>(m)];
}
double measure(Measure how, std::span<const float> ours, std::span<const float> oracle);

struct Comparison {
  std::string name;  // the oracle's key
  Measure measure = Measure::difference;
  double error = 0;
  double tolerance = 0;
  std::string against = "oracle";  // or "cpu": tensors of a card's step in eight bits, by their own names
  bool within() const { return error <= tolerance; }  // NaN is not
};

struct Verification {
  std::int64_t tokens = 0, documents = 0, pairs = 0, train_steps = 0;
  std::vector<Comparison> comparisons;  // the worst against its tolerance first
  std::vector<std::string> absent;      // kinds that the case does not hold, so that nothing was compared: "final."
  bool within() const;
};

struct VerifyOptions {
  std::string precision = "bf16";  // as precision.matmul; the CPU computes in fp32 whatever it is, but for fp8
  std::function<void(const std::string& doing)> progress;  // told what is being done
  std::function<void(model::Engine& engine)> before_step;  // tests break something here, once there are scales
};

// In fp8 a card is compared with the CPU as well, which makes the same casts, at the tolerances of bf16 (fp8_truth.h).
// A case that cannot be read is a UserError.
Verification verify(FileSystem& files, const Path& folder, device::Device& device, const VerifyOptions& options = {});

}  // namespace redline::infer
