// Reads the rows of a run's files, one JSON object a line: all of a file, or what it got since the last look.
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
const io::Json* list_in(const io::Json& object, std::string_view key);  // null: none

// Calls `take` with every whole line of `text`, without its newline. Returns the bytes of these lines.
std::size_t for_each_line(std::string_view text, const std::function<void(std::string_view)>& take);

// All rows of a file. A row that `take` refuses, and half a line at the end, add a sentence to `problems`. A file that
// is not there has no rows.
class JsonRows {
 public:
  JsonRows(FileSystem& files, const Path& path, std::vector<std::string>& problems,
           std::function<void(double share)> progress = {})
      : files_(files), path_(path), problems_(problems), progress_(std::move(progress)) {}

  void read(const std::function<bool(std::string_view)>& take);
  void read_objects(const std::function<bool(const io::Json&)>& take);  // for short files
  // For rows of a step with a list of objects: {"step": 10, "tensors": [...]}.
  void read_lists(std::string_view key, const std::function<void(std::int64_t step, const io::Json& list)>& take);

 private:
  FileSystem& files_;
  const Path& path_;
  std::vector<std::string>& problems_;
  std::function<void(double)> progress_;
};

// The rows that a file got since the last look. A file that was cut back meanwhile is read again from its beginning.
class NewRows {
 public:
  explicit NewRows(Path path) : path_(std::move(path)) {}
  // Does nothing where the file is missing or cannot be read now: the next look may find it. Rows that are no objects
  // are passed over; the report names them.
  void read(const std::function<void(const io::Json& row)>& take);

 private:
  std::string new_lines();

  Path path_;
  std::uint64_t offset_ = 0;  // of the first byte that belongs to no whole line yet
};

}  // namespace redline::report
