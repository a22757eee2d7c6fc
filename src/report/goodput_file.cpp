// Any event is a sign of life. A row behind each checkpoint says what a resume from there keeps.
#include <algorithm>
#include <cmath>

#include "io/json.h"
#include "report/rows_file.h"

namespace redline::report {
namespace {

// Between two rows: a second while a session is young, then 2% of its age, at most a minute. A kill hides no more than
// that, and the file of a run of days is small.
double until_next(double wall) { return std::clamp(0.02 * wall, 1.0, 60.0); }

double in_milliseconds(double seconds) { return std::round(seconds * 1e3) / 1e3; }

class Rows {
 public:
  std::string row_of(const train::Event& event) {
    bool due = false, last = false;
    hear(
        event,
        [&](const train::Started& run) {
          if (run.first_step >= run.steps) return;  // nothing is left to do
          session_ = run.goodput;
          first_step_ = step_ = run.first_step;
          due = true;
        },
        [&](const train::Stepped& m) { step_ = m.step; }, [&](const train::BeforeCheckpoint&) { due = true; },
        [&](const train::Saved&) { due = true; }, [&](const train::Finished&) { due = last = true; },
        [&](const train::Failed&) { due = last = true; });
    if (!session_) return "";
    const train::Account account = session_->account();
    std::string row;
    if (due || account.wall() >= next_) row = write(account);
    if (last) session_.reset();
    return row;
  }

 private:
  std::string write(const train::Account& account) {
    next_ = account.wall() + until_next(account.wall());
    io::Json seconds = io::Json::object();
    for (std::size_t p = 0; p < train::kParts.size(); ++p)
      seconds[std::string(train::kParts[p].key)] = in_milliseconds(account.seconds[p]);
    io::Json row = {{"time", in_milliseconds(unix_seconds())},
                    {"step", step_},
                    {"began", in_milliseconds(session_->began())},
                    {"first_step", first_step_},
                    {"seconds", std::move(seconds)},
                    {"tokens", account.tokens}};
    if (account.joules) row["joules"] = in_milliseconds(*account.joules);
    return row.dump() + "\n";
  }

  std::shared_ptr<const train::Goodput> session_;
  std::int64_t first_step_ = 0, step_ = 0;
  double next_ = 0;  // when a row is due, in seconds of the session
};

}  // namespace

RowsFile goodput_file(FileSystem& files, Path path) {
  return {files, std::move(path), RowsFile::history,
          [rows = Rows()](const train::Event& event) mutable { return rows.row_of(event); }};
}

}  // namespace redline::report
