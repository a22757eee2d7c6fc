// Whole lines only: the last one may be on its way.
#include "report/run_progress.h"

#include <vector>

#include "base/error.h"
#include "io/json.h"
#include "report/json_rows.h"

namespace redline::report {

std::string NewRows::new_bytes() {
  std::error_code error;
  const std::uint64_t size = std::filesystem::file_size(path_, error);
  if (error) return {};
  if (size < offset_) offset_ = 0;
  std::string text(size - offset_, '\0');
  if (text.empty()) return {};
  try {
    InputFile(path_).read(offset_, std::as_writable_bytes(std::span(text.data(), text.size())));
  } catch (const UserError&) {  // it was cut back between the two calls, or may not be read
    return {};
  } catch (const MachineError&) {
    return {};
  }
  text.resize(text.rfind('\n') + 1);  // npos + 1 is 0
  return text;
}

void NewRows::read(const std::function<void(const io::Json&)>& take) {
  std::string text = new_bytes();
  const auto object_at = [&](std::size_t begin, std::size_t end) {
    return io::Json::parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                           text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
  };
  // Cut back and grown beyond its old end since: then what is new begins within a line.
  if (offset_ > 0 && !text.empty() && !object_at(0, text.find('\n')).is_object()) {
    offset_ = 0;
    text = new_bytes();
  }
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    if (const io::Json row = object_at(begin, end); row.is_object()) take(row);  // the report tells of others
    begin = end + 1;
  }
  offset_ += text.size();
}

void RunProgress::look() {
  events_.read([&](const io::Json& row) { take_event(row); });
  metrics_.read([&](const io::Json& row) { take_metrics(row); });
}

void RunProgress::take_event(const io::Json& row) {
  const std::string kind = text_or(row, "kind");
  if (kind == "started" || kind == "note") steps_ = integer_or(row, "steps", steps_);
  if (kind != "started") return;
  first_step_ = integer_or(row, "first_step", 0);
  first_time_ = number_or(row, "time", 0);
}

void RunProgress::take_metrics(const io::Json& row) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const std::int64_t step = integer_or(row, "step", 0);
  if (step <= 0) return;
  evaluations_.erase(evaluations_.lower_bound(step), evaluations_.end());  // the run went back, and made them anew
  step_ = step;
  loss_ = number_or(row, "loss", kNone);
  time_ = number_or(row, "time", time_);
  if (row.contains("eval_loss"))
    evaluations_[step] = number_or(row, "eval_loss", std::numeric_limits<double>::infinity());
}

double RunProgress::seconds_a_step() const {
  if (step_ <= first_step_ || time_ <= first_time_) return std::numeric_limits<double>::quiet_NaN();
  return (time_ - first_time_) / static_cast<double>(step_ - first_step_);
}

}  // namespace redline::report
