// Mapping of files that others wrote.
#pragma once

#include "base/files.h"

namespace redline::data {

MappedFile map_tokens(const Path& path);  // what is missing or cannot be read is a UserError

}  // namespace redline::data
