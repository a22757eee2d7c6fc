// A file that is read whole because it is small. One that is not (damaged, or somebody's trap) is refused before its
// bytes fill the memory.
#pragma once

#include <cstdint>
#include <string>

#include "base/files.h"

namespace redline {

// A UserError where the file has more than `most` bytes.
std::string read_at_most(FileSystem& files, const Path& path, std::uint64_t most);

}  // namespace redline
