// Mapping of files that others wrote.
#include "data/shards/map_tokens.h"

#include <algorithm>

#include "base/error.h"

namespace redline::data {

MappedFile map_tokens(const Path& path) {
  if (!real_files().exists(path)) fail_user("{}: there is no such file", path.string());
  try {
    return MappedFile(path);
  } catch (const MachineError& e) {
    throw UserError(e.what());
  }
}

void hash_edges(Hasher& hasher, std::span<const std::byte> bytes) {
  const std::uint64_t size = bytes.size();
  const std::size_t edge = std::min<std::size_t>(bytes.size(), 1 << 16);
  hasher.update(std::as_bytes(std::span(&size, 1)));
  hasher.update(bytes.first(edge));
  hasher.update(bytes.last(edge));
}

}  // namespace redline::data
