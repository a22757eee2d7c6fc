// Reads a run's files of one JSON object a line. A line that cannot be read is reported and skipped.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "io/json_fwd.h"

namespace redline::report {

// No figure of a run is larger. A larger one would overflow sums and axes, and counts as missing.
inline bool plausible(double value) { return std::fabs(value) < 1e100; }

// A member of an object, or the default where it is missing or of another kind.
double number_or(const io::Json& object, std::string_view key, double otherwise);
std::int64_t integer_or(const io::Json& object, std::string_view key, std::int64_t otherwise);
std::string text_or(const io::Json& object, std::string_view key, std::string otherwise = "");

// Gives every line to `take`, and reports the lines that it refuses. A file that is not there has no lines.
class JsonRows {
 public:
  JsonRows(FileSystem& files, const Path& path, std::vector<std::string>& problems,
           std::function<void(double share)> progress = {})
      : files_(files), path_(path), problems_(problems), progress_(std::move(progress)) {}

  void read(const std::function<bool(std::string_view)>& take);
  void read_objects(const std::function<bool(const io::Json&)>& take);  // for short files

 private:
  void line(std::string_view text, const std::function<bool(std::string_view)>& take);

  FileSystem& files_;
  const Path& path_;
  std::vector<std::string>& problems_;
  std::function<void(double)> progress_;
  std::int64_t number_ = 0, odd_ = 0, first_odd_ = 0;
};

}  // namespace redline::report
