// Writes text with the model while it trains (train.sample_every), by the decoding programs of the run's own engine.
// Nothing that a step reads is changed.
#pragma once

#include <functional>
#include <vector>

#include "data/loader.h"
#include "model/generate.h"
#include "train/observer.h"

namespace redline::train {

class Samples {
 public:
  // Without prompts the first held-out document gives one. A prompt that cannot be used is a UserError.
  Samples(const config::Config& config, const data::Corpus& held_out);

  // Texts end where they are when `go_on` returns false.
  std::vector<SampledText> write(model::Engine& engine, const std::function<bool()>& go_on) const;

 private:
  const data::Corpus& corpus_;
  std::vector<std::vector<std::int32_t>> prompts_;
  model::GenerateOptions options_;
};

}  // namespace redline::train
