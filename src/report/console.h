// The console shows a run to a person: a header with its settings, then one progress line. metrics.jsonl has every
// figure; the console has the few that people watch.
#pragma once

#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "report/live_line.h"
#include "train/observer.h"

namespace redline::report {

inline constexpr std::size_t kConsoleColumns = 120;
inline constexpr std::size_t kHeaderColumns = 80;                 // where the terminal's width is not known
inline constexpr std::size_t kLineColumns = kConsoleColumns - 1;  // a live line must not touch a terminal's last column

// Lines of at most `columns`; only a single longer word may exceed them.
std::vector<std::string> header_lines(const train::RunHeader& header, std::size_t columns = kHeaderColumns);

// "94.1% in steps, 3.0% start-up, 2.1% saving; 0.42 kWh, 1.30 J a token". Parts below half a percent are left out.
std::string in_words(const train::Account& account);

// "200 steps done in 3m 12s, 26.2 M tokens, held-out loss 3.1416; 94.1% in steps, 3.0% start-up, 2.1% saving"
std::string in_words(const train::Finished& finished);

// "step 40/120 loss 2.3456 grad 1.23 lr 3.0e-4 152 ms 13.4k tok/s 51.2 TFLOP/s mfu 48.2/50.1% pad 3% eta 12 s": mfu and
// mfu_palm. Where `columns` are too few, the rate of FLOPs, mfu_palm, the padding, the epoch, the learning rate and the
// norm go, in this order. `steps` 0: not known, "step 40".
std::string progress_line(const train::StepMetrics& m, std::int64_t steps, double eta_seconds,
                          std::size_t columns = kLineColumns);

// On a terminal the line is rewritten at every step, and stays at each tenth of the run and at evaluations. Elsewhere a
// line is written every log.every steps, at least a second apart. The first and the last step always have a line.
class Console final : public train::Observer {
 public:
  explicit Console(std::FILE* stream) : out_(stream) {}
  Console(std::FILE* stream, bool terminal) : out_(stream, terminal) {}

  void on(const train::Event& event) override;
  void clear() { out_.clear(); }  // the live line, before another stream writes to the same terminal
  // Names the files that cannot be written now. Every progress line tells of them until there are none.
  void set_failing(const std::vector<std::string>& names);

 private:
  void start(const train::RunHeader& header);
  void step(const train::StepMetrics& m);
  bool keeps(const train::StepMetrics& m) const;
  void evaluating(const train::Evaluating& e);

  LiveLine out_;
  BytesProgress loading_{"loading weights"};
  config::Train train_;                  // of the run, whose steps may grow
  std::vector<std::string> trained_on_;  // sets whose loss is not held out
  std::int64_t steps_ = 0, first_step_ = 0, every_ = 1;
  double started_ = 0, last_kept_ = 0, evaluating_since_ = 0, header_at_ = 0;  // on steady_seconds()
  std::int64_t evaluated_ = std::numeric_limits<std::int64_t>::max();          // batches of the evaluation so far
  std::int64_t evaluated_first_ = 0;                                           // of them at the first report
  std::optional<double> seconds_left_;                                         // at header_at_, of train.max_hours
  std::string failing_;                                                        // at the end of a line of progress
};

}  // namespace redline::report
