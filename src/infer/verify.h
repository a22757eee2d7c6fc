// Checks parity with Hugging Face: runs the same weights and documents through our programs, and compares tensor by
// tensor with an oracle's results in float64.
//
// A case is a Hugging Face folder with the expected results (oracle.safetensors) beside its weights. Keys of that file:
// tokens i32[n], doc_offsets i32[docs + 1], logits f32[n, V], loss f32[1], train_losses and grad_norms f32[steps];
// grad.NAME and final.NAME by Hugging Face parameter name, each kind for all parameters or for none.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "config/load.h"
#include "device/device.h"
#include "model/engine.h"

namespace redline::infer {

// The largest errors against the oracle. In fp32 tensors are compared element by element. Where products round their
// operands (bf16, tf32), gradients are compared by direction and length.
struct Tolerances {
  double forward = 1e-4;     // logits, losses
  double norms = 1e-4;       // gradient norms
  double parameters = 1e-3;  // gradients, and parameters after training
  double direction = 0;      // one minus the cosine; 0: gradients are compared by element
  double length = 0;
  double scatter = 0;  // of n elements or rows these and norms are larger by scatter / sqrt(n) of themselves
  double choices = 0;  // share of a token's experts that are others than in fp32; 0: gradients have their own experts
};
inline constexpr Tolerances kExactTolerances{};
inline constexpr Tolerances kRoundedTolerances{.forward = 2e-2,
                                               .norms = 2e-2,
                                               .parameters = 5e-2,
                                               .direction = 1e-3,
                                               .length = 2e-2,
                                               .scatter = 2.83,  // as in eight bits (verify.cpp)
                                               .choices = 5e-2};
// Tolerances for products in eight bits, from the number of casts (verify.cpp).
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
// `all` is the norm of all gradients where this is one of them. Where what a parameter does is taken back, by a norm
// behind it or by the division that makes the weight of a single expert 1, its gradient is 0 but for rounding, the
// oracle's as well: a gradient below a ten-thousandth of all is measured against that much.
double measure(Measure how, std::span<const float> ours, std::span<const float> oracle, double all = 0);

struct Comparison {
  std::string name;  // the oracle's key
  Measure measure = Measure::difference;
  double error = 0;
  double tolerance = 0;
  std::string against = "oracle";  // or "cpu": tensors of a card's step in eight bits, by their own names
  bool within() const { return error <= tolerance; }  // false for NaN
};

struct Verification {
  std::int64_t tokens = 0, documents = 0, pairs = 0, train_steps = 0;
  std::vector<Comparison> comparisons;  // the worst against its tolerance first
  std::vector<std::string> absent;      // kinds of keys that the case does not have: "final."
  bool within() const;
};

struct VerifyOptions {
  std::string precision = "bf16";  // as precision.matmul; the CPU computes in fp32, or simulates fp8
  std::function<void(const std::string& doing)> progress;  // hears the current stage
  std::function<void(model::Engine& engine)> before_step;  // tests break something here, once there are scales
};

// In fp8 a card is also compared with the CPU, which makes the same casts, at the tolerances of bf16 (compare_step). A
// case that cannot be read is a UserError.
Verification verify(FileSystem& files, const Path& folder, device::Device& device, const VerifyOptions& options = {});

// The files of a small case that is compiled in: "config", "model" and "oracle", without their endings.
std::span<const config::EmbeddedFile> check_case();

// A step in eight bits on a card against the CPU's, which makes the same casts. First the CPU gets the card's scales.
void take_scales(model::Engine& truth, model::Engine& from);

// Runs one micro-step of each over the batch that both hold. Two steps that differ in the last bits of bf16 soon have
// other codes: a cast turns a difference d into the root of d times its own step, so that after a few casts only their
// own error is left. So every copy is compared where it is made, and the truth goes on with the other's copy. The
// difference between two casts is then bf16's, with its tolerances. The loss and the gradients are compared last.
std::vector<Comparison> compare_step(model::Engine& engine, model::Engine& truth);

}  // namespace redline::infer
