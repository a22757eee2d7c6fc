// Runs a case: logits, one micro-step for loss and gradients, then the oracle's AdamW steps.
#include "infer/verify.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "infer/fp8_truth.h"
#include "infer/oracle_case.h"
#include "model/family.h"
#include "model/fp8_linears.h"

namespace redline::infer {
namespace {

// The optimizer of the oracle.
const config::Optim kOptim = {
    .lr = 1e-3, .schedule = "constant", .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1.0};

constexpr std::int64_t kFp8Tokens = 16;  // that products in eight bits want a multiple of

bool in_fp8(const VerifyOptions& options) { return options.precision == "fp8"; }

model::LoweringOptions lowering_options(const OracleCase& c, const std::string& precision, device::Kind kind) {
  config::Config config;
  config.optim = kOptim;
  config.precision.matmul = precision;
  model::LoweringOptions options = model::lowering_options(config, kind);
  options.batch = c.batch.shape;
  options.logits = true;
  const config::Model& m = c.checkpoint.model;
  if (precision == "fp8")
    options.fp8 = model::fp8_candidates(model::family_of(m).table(m), options.batch.tokens()).products;
  return options;
}

bool is_exact(const model::LoweringOptions& o) { return o.compute == DType::f32 && o.products.math == ops::Math::full; }

// A case on a device. Tells what it computed by the oracle's keys.
class Run {
 public:
  using Take = std::function<void(const std::string& key, const std::vector<float>& ours)>;
  Run(const OracleCase& c, device::Device& device, const VerifyOptions& options)
      : case_(c), options_(options), lowering_(lowering_options(c, options.precision, device.kind())) {
    engine_ = load_engine(case_.checkpoint, lowering_, device);
    engine_->upload(case_.batch);
  }
  const model::LoweringOptions& lowering() const { return lowering_; }
  const std::vector<std::string>& absent() const { return absent_; }

  model::Engine& engine() { return *engine_; }
  void set_step(std::int64_t step) {
    engine_->set_step(static_cast<std::uint64_t>(step), kOptim.lr, static_cast<double>(case_.batch.pairs), 0);
  }

  // Where there is a truth, the first step is compared with it.
  void run(const Take& take, Run* truth, std::vector<Comparison>& with_truth) {
    tell("logits");
    take("logits", engine_->logits());
    tell("gradients");
    set_step(0);
    if (in_fp8(options_)) engine_->calibrate();
    if (truth) {  // which has scales before it is given others, or would look for its own
      truth->engine().calibrate();
      take_scales(truth->engine(), *engine_);
    }
    if (options_.before_step) options_.before_step(*engine_);
    if (truth) with_truth = compare_step(*engine_, truth->engine());
    engine_->micro_step(true);
    take("loss", {static_cast<float>(loss())});
    each_stored("grad.", optim::kGradients, inv_pairs(), take);
    train(take);
    each_stored("final.", optim::kParameters, 1, take);
  }

 private:
  double inv_pairs() const { return 1.0 / static_cast<double>(case_.batch.pairs); }
  double loss() { return engine_->loss_sum() * inv_pairs(); }
  void tell(const std::string& what) {
    if (options_.progress) options_.progress(what);
  }
  void train(const Take& take) {
    std::vector<float> losses, norms;
    const std::int64_t steps = case_.train_steps();
    for (std::int64_t step = 0; step < steps; ++step) {
      tell(fmt::format("training step {}/{}", step + 1, steps));
      set_step(step);
      engine_->micro_step(true);
      losses.push_back(static_cast<float>(loss()));
      engine_->update();
      engine_->post_result();
      norms.push_back(engine_->take_result().update.grad_norm);
    }
    take("train_losses", losses);
    take("grad_norms", norms);
  }

  // Our values times `scale`, for each parameter that the case has under the prefix.
  void each_stored(const std::string& prefix, std::string_view array, double scale, const Take& take) {
    // A case holds all of a kind or none of it.
    if (!case_.oracle->find(prefix + engine_->layout().stored.front().name)) {
      absent_.push_back(prefix);
      return;
    }
    const float* const values = engine_->executor().tensor(engine_->lowered().at(array)).f32();
    for (const model::StoredParameter& p : engine_->layout().stored) {
      std::vector<float> ours(static_cast<std::size_t>(p.elements));
      engine_->device().copy_out(ours.data(), values + p.offset, p.elements * static_cast<std::int64_t>(sizeof(float)));
      for (float& v : ours) v = static_cast<float>(v * scale);
      take(prefix + p.name, ours);
    }
  }

  const OracleCase& case_;
  const VerifyOptions& options_;
  model::LoweringOptions lowering_;
  std::unique_ptr<model::Engine> engine_;
  std::vector<std::string> absent_;
};

void compare(Verification& v, const std::string& key, std::span<const float> ours, std::span<const float> reference,
             const Tolerances& tolerances) {
  const auto add = [&](Measure how, double tolerance) {
    v.comparisons.push_back({key, how, measure(how, ours, reference), tolerance});
  };
  const bool gradient = key.starts_with("grad.");
  if (gradient && tolerances.direction > 0) {
    add(Measure::direction, tolerances.direction);
    add(Measure::length, tolerances.length);
  } else if (gradient || key.starts_with("final.")) {
    add(Measure::difference, tolerances.parameters);
  } else {
    add(Measure::difference, key == "grad_norms" ? tolerances.norms : tolerances.forward);
  }
}

// The worst against its tolerance first.
void sort(std::vector<Comparison>& comparisons) {
  std::ranges::stable_sort(comparisons, std::greater(),
                           [](const Comparison& c) { return std::isnan(c.error) ? INFINITY : c.error / c.tolerance; });
}

}  // namespace

// A cast leaves numbers off by 2.7% (e4m3) or 5.3% (e5m2) in the root of the mean square, whatever the scale. Errors of
// different casts are independent: along a path their squares add, and a product adds those of its two operands. A
// layer has four products one behind the other, forward with both operands in e4m3, backward with gradients in e5m2 and
// weights in e4m3; a gradient of weights is one more of the latter:
//   sigma^2 = layers * (4 * 2 e4m3^2 + 4 * (e4m3^2 + e5m2^2)) + e4m3^2 + e5m2^2
// This is too much, since the residual stream carries most past each branch, and too little where two results of one
// product multiply each other (queries and keys, gate and up) and its casts count twice. An error of sigma at right
// angles to a tensor is 1 - cos = sigma^2 / 2, and sigma^2 with the casts twice: that is for the direction. Of the
// length only the part of an error along the tensor counts: two deviations of a mean of 16 parts are sigma / 2. A scale
// that is off by two changes the length of some gradient by a half at least, which is more than that up to some 40
// layers. Training moves weights by 0.3 of their length at most (six steps of 1e-3 on weights of 0.02), and sigma of
// that elsewhere. Logits are bf16's and losses are means over tokens: both as in bf16.
Tolerances fp8_tolerances(std::int64_t layers) {
  constexpr double kOfE4m3 = 0.027 * 0.027, kOfE5m2 = 0.053 * 0.053;
  const double squares = static_cast<double>(layers) * (8 * kOfE4m3 + 4 * (kOfE4m3 + kOfE5m2)) + kOfE4m3 + kOfE5m2;
  const double sigma = std::sqrt(squares);
  return {.forward = kRoundedTolerances.forward,
          .norms = sigma / 2,
          .parameters = 0.3 * sigma,
          .direction = squares,
          .length = sigma / 2};
}

bool Verification::within() const {
  return std::ranges::all_of(comparisons, [](const Comparison& c) { return c.within(); });
}

double measure(Measure how, std::span<const float> ours, std::span<const float> oracle) {
  double difference = 0, dot = 0, length = 0, oracle_length = 0;  // squared
  for (std::size_t i = 0; i < oracle.size(); ++i) {
    const double a = ours[i], b = oracle[i];
    difference += (a - b) * (a - b);
    dot += a * b;
    length += a * a;
    oracle_length += b * b;
  }
  if (oracle_length == 0) return std::sqrt(difference);
  switch (how) {
    case Measure::difference: return std::sqrt(difference / oracle_length);
    case Measure::direction: return length == 0 ? 1 : 1 - dot / std::sqrt(length * oracle_length);
    case Measure::length: return std::abs(std::sqrt(length / oracle_length) - 1);
  }
  return NAN;
}

Verification verify(FileSystem& files, const Path& folder, device::Device& device, const VerifyOptions& options) {
  const OracleCase c = read_case(files, folder, in_fp8(options) ? kFp8Tokens : 1);
  Verification v{.tokens = c.batch.real_tokens,
                 .documents = c.batch.documents,
                 .pairs = c.batch.pairs,
                 .train_steps = c.train_steps(),
                 .comparisons = {},
                 .absent = {}};
  Run run(c, device, options);
  std::unique_ptr<device::CpuDevice> cpu;
  std::unique_ptr<Run> truth;
  if (in_fp8(options) && device.kind() != device::Kind::cpu) {
    cpu = std::make_unique<device::CpuDevice>();
    truth = std::make_unique<Run>(c, *cpu, options);
    truth->set_step(0);
  }
  const Tolerances tolerances = in_fp8(options)            ? fp8_tolerances(c.checkpoint.model.layers)
                                : is_exact(run.lowering()) ? kExactTolerances
                                                           : kRoundedTolerances;
  std::vector<Comparison> with_truth;
  run.run([&](const std::string& key, const auto& ours) { compare(v, key, ours, c.floats(key), tolerances); },
          truth.get(), with_truth);
  v.comparisons.insert(v.comparisons.end(), with_truth.begin(), with_truth.end());
  v.absent = run.absent();
  sort(v.comparisons);
  return v;
}

}  // namespace redline::infer
