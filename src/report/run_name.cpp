// A folder may be given with a slash at its end, or as the one we are in.
#include "report/run_name.h"

namespace redline::report {

std::string run_name(const Path& folder) {
  std::error_code error;
  Path whole = std::filesystem::absolute(folder, error).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  return whole.has_filename() ? whole.filename().string() : whole.string();
}

}  // namespace redline::report
