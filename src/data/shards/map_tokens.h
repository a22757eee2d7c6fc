// Mapping of files of token ids.
#pragma once

#include "base/files.h"

namespace redline::data {

MappedFile map_tokens(const Path& path);  // a missing or unreadable file is a UserError

}  // namespace redline::data
