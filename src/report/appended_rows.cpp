// Cuts a torn end, then appends.
#include "report/appended_rows.h"

namespace redline::report {

std::unique_ptr<FileWriter> append_rows(FileSystem& files, const Path& path) {
  if (files.exists(path)) {
    const std::string text = files.read(path);
    const std::size_t newline = text.rfind('\n'), kept = newline == text.npos ? 0 : newline + 1;
    if (kept < text.size()) files.truncate(path, kept);
  }
  return files.append(path);
}

}  // namespace redline::report
