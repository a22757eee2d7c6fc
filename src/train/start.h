// Where a run's weights come from when it does not start from random ones: the folder of model.init_from.
#pragma once

#include <functional>

#include "data/source.h"
#include "io/weight_files.h"
#include "train/trainer.h"

namespace redline::train {

// Gives `load` weights that hold every parameter of the configuration's model; else a UserError. Of a run they are those of
// its newest checkpoint that `load` finds whole (io/checkpoint_folder.h). Tells the observers what the run starts from, and
// warns them when its data were tokenized otherwise than the folder's model.
void load_start(const config::Config& config, const data::Corpus& corpus, const TrainOptions& options,
                FileSystem& files, const std::function<void(const io::WeightFiles&)>& load);

}  // namespace redline::train
