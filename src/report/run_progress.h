// Follows a run that another process trains, by the rows that its files got since the last look. run_record reads a
// whole run.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>

#include "base/files.h"
#include "io/json_fwd.h"

namespace redline::report {

// The rows that a file got since the last look. A file that was cut back meanwhile is read again from its beginning.
class NewRows {
 public:
  explicit NewRows(Path path) : path_(std::move(path)) {}
  // Does nothing where the file is missing or cannot be read now: the next look may find it.
  void read(const std::function<void(const io::Json& row)>& take);

 private:
  std::string new_bytes();

  Path path_;
  std::uint64_t offset_ = 0;  // of the first byte that belongs to no whole line yet
};

class RunProgress {
 public:
  explicit RunProgress(const Path& folder) : metrics_(folder / "metrics.jsonl"), events_(folder / "events.jsonl") {}

  void look();

  std::int64_t step() const { return step_; }    // updates that are done
  std::int64_t steps() const { return steps_; }  // of the whole run; 0: not known
  double loss() const { return loss_; }          // of the last step; NaN: none, or not finite
  // Held-out losses by step, without the one before the first step. A loss that is not finite is infinity.
  const std::map<std::int64_t, double>& evaluations() const { return evaluations_; }
  // The mean of this session, evaluations and saves included. NaN: not known yet.
  double seconds_a_step() const;

 private:
  void take_metrics(const io::Json& row);
  void take_event(const io::Json& row);

  NewRows metrics_, events_;
  std::int64_t step_ = 0, steps_ = 0;
  double loss_ = std::numeric_limits<double>::quiet_NaN(), time_ = 0;
  std::int64_t first_step_ = 0;  // where this session began, and when
  double first_time_ = 0;
  std::map<std::int64_t, double> evaluations_;
};

}  // namespace redline::report
