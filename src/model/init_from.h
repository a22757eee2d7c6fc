// model.init_from: the shape of a model, taken from the folder whose weights it starts with.
#pragma once

#include <string_view>

#include "config/load.h"

namespace redline::model {

// Gives [model] what `from` says, but for what is a matter of training and not of the weights (dropout) or the user's
// to widen (max_positions). A key that the user wrote with another value is a UserError that names it. `where` is the
// file that `from` was read from.
void take_model(config::Config& config, const config::Model& from, std::string_view where);

// For config::load(): takes the model from the folder that model.init_from names, where it names one, and settles what
// the family decides.
config::Complete complete_model(FileSystem& files);

}  // namespace redline::model
