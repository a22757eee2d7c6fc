// Runs a case: logits, one micro-step for loss and gradients, then the oracle's AdamW steps.
#include "infer/verify.h"

#include <algorithm>
#include <cmath>

#include "infer/oracle_case.h"

namespace redline::infer {
namespace {

// What the oracle trained with.
const config::Optim kOptim = {
    .lr = 1e-3, .schedule = "constant", .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1.0};

model::LoweringOptions lowering_options(const OracleCase& c, const std::string& precision, device::Kind kind) {
  config::Config config;
  config.optim = kOptim;
  config.precision.matmul = precision;
  model::LoweringOptions options = model::lowering_options(config, kind);
  options.batch = c.batch.shape;
  options.logits = true;
  return options;
}

class Run {
 public:
  Run(OracleCase c, device::Device& device, const VerifyOptions& options)
      : case_(std::move(c)), progress_(options.progress) {
    const model::LoweringOptions lowering = lowering_options(case_, options.precision, device.kind());
    const bool exact = lowering.compute == DType::f32 && lowering.products.math == ops::Math::full;
    tolerances_ = exact ? kExactTolerances : kRoundedTolerances;
    engine_ = load_engine(case_.checkpoint, lowering, device);
    engine_->upload(case_.batch);
    result_.tokens = case_.batch.real_tokens;
    result_.documents = case_.batch.documents;
    result_.pairs = case_.batch.pairs;
    result_.train_steps = case_.train_steps();
  }

  Verification run() {
    tell("logits");
    compare("logits", engine_->logits(), tolerances_.forward);
    tell("gradients");
    micro_step(0);
    compare("loss", {static_cast<float>(loss())}, tolerances_.forward);
    compare_gradients();
    train();
    compare_parameters();
    std::ranges::stable_sort(result_.comparisons,
                             [](const Comparison& a, const Comparison& b) { return rank(a) > rank(b); });
    return std::move(result_);
  }

 private:
  static double rank(const Comparison& c) { return std::isnan(c.error) ? INFINITY : c.error / c.tolerance; }
  double inv_pairs() const { return 1.0 / static_cast<double>(case_.batch.pairs); }
  double loss() { return engine_->loss_sum() * inv_pairs(); }
  void tell(const std::string& what) {
    if (progress_) progress_(what);
  }

  void micro_step(std::int64_t step) {
    engine_->set_step(static_cast<std::uint64_t>(step), kOptim.lr, inv_pairs(), 0);
    engine_->micro_step(true);
  }

  void train() {
    std::vector<float> losses, norms;
    for (std::int64_t step = 0; step < result_.train_steps; ++step) {
      tell(fmt::format("training step {}/{}", step + 1, result_.train_steps));
      micro_step(step);
      losses.push_back(static_cast<float>(loss()));
      engine_->update();
      engine_->post_result();
      norms.push_back(engine_->take_result().update.grad_norm);
    }
    compare("train_losses", losses, tolerances_.forward);
    compare("grad_norms", norms, tolerances_.norms);
  }

  void compare(const std::string& key, const std::vector<float>& ours, double tolerance,
               Measure how = Measure::difference) {
    result_.comparisons.push_back({key, how, measure(how, ours, case_.floats(key)), tolerance});
  }

  void compare_gradients() {
    each_stored("grad.", optim::kGradients, inv_pairs(), [&](const std::string& key, const auto& ours) {
      if (tolerances_.direction == 0) return compare(key, ours, tolerances_.parameters);
      compare(key, ours, tolerances_.direction, Measure::direction);
      compare(key, ours, tolerances_.length, Measure::length);
    });
  }

  void compare_parameters() {
    each_stored("final.", optim::kParameters, 1,
                [&](const std::string& key, const auto& ours) { compare(key, ours, tolerances_.parameters); });
  }

  // take(key, our values times `scale`) for each parameter that the case has under the prefix.
  template <class Take>
  void each_stored(const std::string& prefix, std::string_view array, double scale, const Take& take) {
    // A case holds all of a kind or none of it.
    if (!case_.oracle->find(prefix + engine_->layout().stored.front().name)) {
      result_.absent.push_back(prefix);
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

  OracleCase case_;
  const std::function<void(const std::string&)>& progress_;
  Tolerances tolerances_;
  std::unique_ptr<model::Engine> engine_;
  Verification result_;
};

}  // namespace

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
  return Run(read_case(files, folder), device, options).run();
}

}  // namespace redline::infer
