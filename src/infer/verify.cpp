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

class Run {
 public:
  Run(OracleCase c, device::Device& device, const std::function<void(const std::string&)>& progress)
      : case_(std::move(c)), progress_(progress) {
    const model::LoweringOptions options{
        .batch = case_.batch.shape, .accumulate = false, .logits = true, .optim = kOptim};
    engine_ = load_engine(case_.checkpoint, options, device);
    engine_->upload(case_.batch);
    result_.tokens = case_.batch.real_tokens;
    result_.documents = case_.batch.documents;
    result_.pairs = case_.batch.pairs;
    result_.train_steps = case_.train_steps();
  }

  Verification run() {
    tell("logits");
    compare("logits", engine_->logits(), kForwardTolerance);
    tell("gradients");
    micro_step(0);
    compare("loss", {static_cast<float>(loss())}, kForwardTolerance);
    compare_parameters("grad.", model::Flat::gradients, inv_pairs());
    train();
    compare_parameters("final.", model::Flat::parameters, 1);
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
      norms.push_back(engine_->update_result().grad_norm);
    }
    compare("train_losses", losses, kForwardTolerance);
    compare("grad_norms", norms, kForwardTolerance);
  }

  void compare(const std::string& key, const std::vector<float>& ours, double tolerance) {
    result_.comparisons.push_back({key, relative_error(ours, case_.floats(key)), tolerance});
  }

  void compare_parameters(const std::string& prefix, model::Flat which, double scale) {
    const std::span<const float> flat = engine_->read(which);
    for (const model::StoredParameter& p : engine_->layout().stored) {
      if (!case_.oracle->find(prefix + p.name)) return;  // this kind is not in the case
      const auto part = flat.subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.elements));
      std::vector<float> ours(part.begin(), part.end());
      for (float& v : ours) v = static_cast<float>(v * scale);
      compare(prefix + p.name, ours, kParameterTolerance);
    }
  }

  OracleCase case_;
  const std::function<void(const std::string&)>& progress_;
  std::unique_ptr<model::Engine> engine_;
  Verification result_;
};

}  // namespace

bool Verification::within() const {
  return std::ranges::all_of(comparisons, [](const Comparison& c) { return c.within(); });
}

double relative_error(std::span<const float> ours, std::span<const float> oracle) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < oracle.size(); ++i) {
    const double a = ours[i], b = oracle[i];
    difference += (a - b) * (a - b);
    norm += b * b;
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

Verification verify(FileSystem& files, const Path& folder, device::Device& device,
                    const std::function<void(const std::string&)>& progress) {
  return Run(read_case(files, folder), device, progress).run();
}

}  // namespace redline::infer
