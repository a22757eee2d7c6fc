// Ends decides when a run ends before its steps are done: at a target loss, at a held-out loss that gets no better, or
// after its hours. It also counts the steps that fit into those hours (train.fit_hours). It knows nothing of engines or
// folders: it hears of steps and losses, and has its own clock.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "config/config.h"
#include "io/communicator.h"

namespace redline::train {

// The part of Ends that a checkpoint keeps, so that a resumed run goes on counting.
struct EndsState {
  std::optional<double> best_loss;     // held out, of the evaluations that were counted
  std::int64_t best_step = 0;          // the step of best_loss
  std::int64_t evaluations_since = 0;  // none of them better
  double seconds = 0;                  // trained, all sessions together
  double hours_over = 0;               // the train.max_hours that ended the run; 0: none did
  std::int64_t fitted_steps = 0;       // that fitted_hours have room for; 0: not known yet
  double fitted_hours = 0;             // the train.max_hours that they were counted for
  bool operator==(const EndsState&) const = default;
};

// The number of steps a configuration asks for, by max_steps, max_tokens or epochs, whichever comes first. Epochs count
// where the batches of one are known. 0: only epochs are set, and their batches are not known.
std::int64_t total_steps(const config::Train& train, std::optional<double> batches_of_epoch = {},
                         std::int64_t ranks = 1);

class Ends {
 public:
  static constexpr std::int64_t kNoEnd = std::int64_t{1} << 50;  // steps; far away, but safe to calculate with

  using Clock = double (*)();  // seconds, of which differences mean something
  // Called each time the steps that fit into the hours are counted, with a sentence and the run's last step.
  using TellSteps = std::function<void(const std::string&, std::int64_t)>;

  // `steps` comes from train.max_steps, max_tokens or epochs; 0: none of them is set. The clock starts here. Of `ranks`
  // the first counts the hours, and the others hear after every step what it has found.
  Ends(const config::Config& config, std::int64_t steps, TellSteps tell, Clock clock = steady_seconds,
       io::Communicator* ranks = nullptr);

  // Called before restore() where the held-out data have changed: the checkpoint's losses cannot be compared with new
  // ones.
  void losses_are_others() { forget_losses_ = true; }
  bool forgets_losses() const { return forget_losses_; }  // until restore()
  // Goes on from a checkpoint of `step`. A limit that still holds ends the run at once. The time of this session's
  // steps counts, even where the run goes back to before them.
  void restore(const EndsState& state, std::int64_t step);
  EndsState state() const;

  void stepped(std::int64_t step);                 // this many updates are done now, or on their way
  bool evaluated(std::int64_t step, double loss);  // true: the best so far, and its checkpoint is to be kept
  bool over() const { return end_ != End::none; }  // the run ends after the last step that it heard of
  // The last step of the run without an early end, to which the schedule counts. kNoEnd: not known; the rate rises, or
  // stays at its peak.
  std::int64_t steps() const;
  std::optional<double> seconds_left() const;  // of train.max_hours

  std::string ending() const;        // the end of a run's last sentence, "" or "; ..."
  std::string nothing_left() const;  // for a run that cannot go on: why, and what to change

  // Times an evaluation, save or sample while the returned object lives. This time belongs to no step, and the last
  // evaluation and save must fit into the hours.
  enum class Aside { evaluation, save, sample };
  class Timed {
   public:
    Timed(Ends& ends, Aside aside) : ends_(ends), aside_(aside), began_(ends.clock_()) {}
    ~Timed() { ends_.took(aside_, ends_.clock_() - began_); }
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;

   private:
    Ends& ends_;
    Aside aside_;
    double began_;
  };
  [[nodiscard]] Timed timed(Aside aside) { return Timed(*this, aside); }
  // A save runs beside the steps. The run waits for the last one, which will take as long in all as this one did.
  void saved_in(double seconds) { whole_save_ = seconds; }

 private:
  enum class End { none, target, patience, hours };
  bool keeps_best() const { return config_.train.patience > 0 || config_.train.target_loss > 0; }
  bool fits() const { return config_.train.fit_hours && config_.train.max_hours > 0; }
  double limit() const { return 3600 * config_.train.max_hours; }
  double trained() const { return state_.seconds + clock_() - began_; }
  double cost(Aside aside) const { return costs_[static_cast<std::size_t>(aside)]; }
  double reserve() const;
  double due_after(std::int64_t step) const;
  double seconds_a_step() const;  // of all its micro-batches: a ramp's steps count as parts of one
  void took(Aside aside, double seconds);
  void measure_from_here();
  void look_at_losses(std::int64_t step);
  void look_at_hours(std::int64_t step);
  void take_up_hours(std::int64_t step);
  bool counts_hours() const { return !ranks_ || ranks_->rank() == 0; }
  void hear_of_hours(std::int64_t step);
  void fit(std::int64_t step, double seconds_a_step);
  std::string why() const;

  const config::Config& config_;
  const std::int64_t limit_steps_;  // of the configuration; kNoEnd: it says none
  TellSteps tell_;
  Clock clock_;
  io::Communicator* ranks_;
  double began_;
  EndsState state_;  // its seconds are those before this session
  bool forget_losses_ = false;
  End end_ = End::none;
  std::int64_t end_step_ = 0;
  std::int64_t made_ = 0;          // steps of this session
  std::array<double, 3> costs_{};  // of the last evaluation, save and sample, seconds
  double whole_save_ = 0;          // of the last save until it was on the disk
  double last_at_ = 0, last_ = 0;  // when the last step ended, and how long it took
  double last_asides_ = 0;         // seconds since then outside of steps
  double from_ = 0, asides_ = 0;   // since when steps are measured, and the seconds of it outside of steps
  std::int64_t made_batches_ = 0;  // micro-batches of the session's steps,
  std::int64_t from_batches_ = 0;  // and those made by then
  double next_look_ = 0;           // seconds trained at which the steps are counted again
};

}  // namespace redline::train
