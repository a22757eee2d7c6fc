// model.init_from: takes the shape of a model from the folder with its first weights.
#pragma once

#include <string_view>

#include "config/load.h"

namespace redline::model {

// Copies `from` into [model], except settings of training (dropout) and max_positions, which the user may widen. A key
// that the user wrote with another value is a UserError that names it. `where` is the file that `from` was read from.
void take_model(config::Config& config, const config::Model& from, std::string_view where);

// For config::load(): takes the model from the folder that model.init_from names, if any, and fills in the family's own
// settings.
config::Complete complete_model(FileSystem& files);

}  // namespace redline::model
