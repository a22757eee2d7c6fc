// The held-out sets of a run, each with its own loader.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/loader.h"
#include "dist/sharing.h"
#include "io/communicator.h"
#include "model/evaluate.h"
#include "train/observer.h"

namespace redline::train {

class HeldOut {
 public:
  HeldOut(const config::Data& data, data::BatchShape shape, const dist::Sharing& sharing);

  // The corpus of the first set. This set ends a run (train.target_loss, train.patience) and gives prompts to samples.
  const data::Corpus& corpus() const { return sets_[0].loader->corpus(); }
  std::optional<data::EpochSize> epoch_size() const { return sets_[0].loader->epoch_size(); }
  std::vector<const data::Corpus*> corpora() const;  // of all of them
  bool named() const { return named_; }              // data.eval names sets

  // Evaluates each set from its beginning, up to so many batches of each (0: all), the first set first. With
  // `first_alone` only that one.
  std::vector<HeldOutLoss> evaluate(model::Engine& engine, std::int64_t batches,
                                    const std::function<void(std::int64_t done, std::int64_t of)>& progress,
                                    io::Communicator* ranks, bool first_alone = false);

 private:
  struct Set {
    std::string name;
    std::unique_ptr<data::Loader> loader;
    model::BytesOfIds bytes;
  };
  std::vector<Set> sets_;
  bool named_;
};

}  // namespace redline::train
