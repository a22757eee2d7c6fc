// Where a run's weights come from when it does not start from random ones: the folder of model.init_from.
#pragma once

#include <memory>

#include "data/source.h"
#include "io/weight_files.h"
#include "train/trainer.h"

namespace redline::train {

// Weights that hold every parameter of the configuration's model; else a UserError. Tells the observers what the run starts
// from, and warns them when its data were tokenized otherwise than the folder's model.
std::unique_ptr<io::WeightFiles> open_start(const config::Config& config, const data::Corpus& corpus,
                                            const TrainOptions& options, FileSystem& files);

}  // namespace redline::train
