// Mapping of files that others wrote.
#include "data/shards/map_tokens.h"

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

}  // namespace redline::data
