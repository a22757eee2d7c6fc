// The size first: a sparse file of gigabytes costs nothing to make.
#include "base/whole_file.h"

#include "base/error.h"

namespace redline {

std::string read_at_most(FileSystem& files, const Path& path, std::uint64_t most) {
  if (const std::uint64_t size = files.size(path); size > most)
    fail_user("{}: it has {} bytes, and such a file at most {}; it is damaged, or not what its name says",
              path.string(), size, most);
  return files.read(path);
}

}  // namespace redline
