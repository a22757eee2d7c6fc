// The check of one block.
#include "data/shards/checked_file.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"

namespace redline::data {
namespace {

MappedFile map_existing(const Path& path) {
  if (!real_files().exists(path)) fail_user("{}: the file is missing; prepare the data again", path.string());
  try {
    return MappedFile(path);
  } catch (const MachineError& e) {
    throw UserError(e.what());
  }
}

}  // namespace

CheckedFile::CheckedFile(const Path& folder, BlockedFile described)
    : path_(folder / described.name),
      described_(std::move(described)),
      mapped_(map_existing(path_)),
      checked_(std::make_unique<std::atomic<bool>[]>(described_.blocks.size())) {
  if (const auto size = static_cast<std::int64_t>(mapped_.bytes().size()); size != described_.bytes)
    fail_user("{}: {} bytes, but the manifest says {}; the file is damaged or cut short, prepare the data again",
              path_.string(), size, described_.bytes);
}

void CheckedFile::check(std::int64_t block) const {
  const std::int64_t begin = block * kBlockBytes, end = std::min(begin + kBlockBytes, described_.bytes);
  const auto i = static_cast<std::size_t>(block);
  const auto bytes = mapped_.bytes().subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  if (hash64(bytes) != described_.blocks[i])
    fail_user("{}: block {} (bytes {} to {}) is damaged: it does not match the manifest; prepare the data again",
              path_.string(), block, begin, end);
  checked_[i].store(true, std::memory_order_relaxed);
}

}  // namespace redline::data
