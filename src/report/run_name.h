// The name of a run wherever it is shown: the last part of its folder's path.
#pragma once

#include <string>

#include "base/files.h"

namespace redline::report {

std::string run_name(const Path& folder);  // "a" of "runs/a", "runs/a/" and of "." inside of it

}  // namespace redline::report
