// How far a run is, read from its folder while another process trains there: what has come since the last look, not the
// whole. A run that has ended is read by run_record.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>

#include "base/files.h"
#include "io/json.h"

namespace redline::report {

// The objects that a file of one a line has got since the last look. A file that was cut back meanwhile is read from
// its beginning: the rows that count come again.
class NewRows {
 public:
  explicit NewRows(Path path) : path_(std::move(path)) {}
  // Nothing where there is no file, or none that can be read now: the next look may find it.
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
  // Held-out losses by their step, without that before the first one; infinite where it is not finite.
  const std::map<std::int64_t, double>& evaluations() const { return evaluations_; }
  // Of this session, evaluations and saves included; NaN: not known yet.
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
