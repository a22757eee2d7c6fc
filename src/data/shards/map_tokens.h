// Mapping of files that others wrote, and what tells one from another without reading all of it.
#pragma once

#include <span>

#include "base/files.h"
#include "base/hash.h"

namespace redline::data {

MappedFile map_tokens(const Path& path);  // what is missing or cannot be read is a UserError

// The size, and the first and last 64 KiB: cheap for any size, and no other file is likely to share them.
void hash_edges(Hasher& hasher, std::span<const std::byte> bytes);

}  // namespace redline::data
