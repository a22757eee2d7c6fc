// The progress of reading or writing weights, as a live line: "loading weights: 34.0% of 3.17 GiB, 5.2 s left".
#pragma once

#include <cstdint>
#include <string>

#include "report/live_line.h"

namespace redline::report {

class BytesProgress {
 public:
  static constexpr double kQuiet = 2;  // seconds; shorter work needs no line

  explicit BytesProgress(std::string doing, double quiet = kQuiet) : doing_(std::move(doing)), quiet_(quiet) {}
  void show(LiveLine& line, std::uint64_t done, std::uint64_t of);  // time counts from the call with `done` 0

  static std::string text(const std::string& doing, std::uint64_t done, std::uint64_t of, double seconds);

 private:
  std::string doing_;
  double quiet_;
  double start_ = -1;
};

}  // namespace redline::report
