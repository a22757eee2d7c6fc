// Reads a small file whole. A file that is too large (damaged, or a trap) is refused before its bytes fill the
// memory.
#pragma once

#include <cstdint>
#include <string>

#include "base/files.h"

namespace redline {

// A UserError where the file has more than `most` bytes.
std::string read_at_most(FileSystem& files, const Path& path, std::uint64_t most);

}  // namespace redline
