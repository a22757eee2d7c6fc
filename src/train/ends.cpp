// Counts evaluations and seconds, and says when they end a run.
#include "train/ends.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/words.h"
#include "config/ramps.h"

namespace redline::train {
namespace {

// The first steps of a session choose and capture what the later ones replay, and say nothing of their speed.
constexpr std::int64_t kFirstSteps = 5, kStepsToFit = 20;
constexpr std::int64_t kFewest = 2;         // steps measured, where so many would take too much of the hours
constexpr double kMuch = 0.1;               // of the hours
constexpr double kWorthTelling = 0.01;      // of the steps: by less they are not changed
constexpr double kSlack = 0.005;            // of the time left, so that the last steps are not the ones that are cut
constexpr double kTooLateToLook = 1. / 50;  // of the hours left

}  // namespace

std::int64_t total_steps(const config::Train& t, std::optional<double> batches_of_epoch, std::int64_t ranks) {
  constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  std::int64_t steps = t.max_steps > 0 ? t.max_steps : kNever;
  if (t.max_tokens > 0) {
    const std::int64_t tokens = t.batch_size * t.seq_len * ranks, batches = (t.max_tokens + tokens - 1) / tokens;
    const std::int64_t within = config::steps_within(t, static_cast<double>(batches));
    steps = std::min(steps, config::micro_batches_before(t, within) < batches ? within + 1 : within);
  }
  if (t.epochs > 0 && batches_of_epoch) {
    const double batches = t.epochs * *batches_of_epoch / static_cast<double>(ranks);
    steps = std::min(steps, std::max<std::int64_t>(1, config::nearest_steps(t, batches)));
  }
  return steps == kNever ? 0 : steps;
}

Ends::Ends(const config::Config& config, std::int64_t steps, TellSteps tell, Clock clock, io::Communicator* ranks)
    : config_(config),
      limit_steps_(steps > 0 ? steps : kNoEnd),
      tell_(std::move(tell)),
      clock_(clock),
      ranks_(ranks),
      began_(clock()),
      last_at_(began_),
      from_(began_) {}

void Ends::restore(const EndsState& before, std::int64_t step) {
  const EndsState now = std::exchange(state_, before);
  if (made_ > 0) {  // back to an earlier step of this session
    state_.seconds = now.seconds;
    state_.fitted_steps = now.fitted_steps;
    state_.fitted_hours = now.fitted_hours;
  }
  if (std::exchange(forget_losses_, false)) {
    state_.best_loss.reset();
    state_.best_step = state_.evaluations_since = 0;
  }
  end_ = End::none;
  look_at_losses(step);
  if (over() || config_.train.max_hours == 0) return;
  if (!ranks_) return take_up_hours(step);
  if (made_ > 0) return;  // they hear of their hours after the next step
  // At the start each rank finds the same by itself, to the bit, since time stands still.
  const Clock clock = std::exchange(clock_, [] { return 0.0; });
  const double began = std::exchange(began_, 0.0);
  take_up_hours(step);
  clock_ = clock;
  began_ = began;
}

void Ends::take_up_hours(std::int64_t step) {
  const double hours = config_.train.max_hours;
  if (state_.hours_over >= hours || trained() >= limit()) {
    end_ = End::hours;
    end_step_ = step;
    return;
  }
  state_.hours_over = 0;
  next_look_ = 0.5 * (trained() + limit());
  // Other hours than before, or the first time: at the speed of all steps so far, until this session's is known.
  if (fits() && state_.fitted_hours != hours && step >= kStepsToFit && state_.seconds > 0)
    fit(step, state_.seconds / (static_cast<double>(config::micro_batches_before(config_.train, step)) /
                                static_cast<double>(config_.train.accumulate)));
}

EndsState Ends::state() const {
  EndsState s = state_;
  s.seconds = trained();
  return s;
}

bool Ends::evaluated(std::int64_t step, double loss) {
  if (!keeps_best()) return false;
  const bool better = !state_.best_loss || loss < *state_.best_loss;
  if (better) {
    state_.best_loss = loss;
    state_.best_step = step;
  }
  state_.evaluations_since = better ? 0 : state_.evaluations_since + 1;
  look_at_losses(step);
  return better;
}

void Ends::look_at_losses(std::int64_t step) {
  const config::Train& t = config_.train;
  if (over() || !state_.best_loss) return;
  if (t.target_loss > 0 && *state_.best_loss <= t.target_loss)
    end_ = End::target;
  else if (t.patience > 0 && state_.evaluations_since >= t.patience)
    end_ = End::patience;
  end_step_ = step;
}

void Ends::stepped(std::int64_t step) {
  ++made_;
  made_batches_ += config::micro_batches(config_.train, step - 1);
  const double now = clock_();
  const double since = now - std::exchange(last_at_, now) - std::exchange(last_asides_, 0);
  last_ = made_ > 1 ? since : 0;  // before the first one the run started up
  if (made_ == kFirstSteps) measure_from_here();
  if (config_.train.max_hours == 0) return;
  if (counts_hours()) look_at_hours(step);
  hear_of_hours(step);
}

// Clocks of ranks differ, and a run's steps and rates must not.
void Ends::hear_of_hours(std::int64_t step) {
  if (!ranks_) return;
  struct Found {
    double over, hours_over, fitted_hours;
    std::int64_t fitted_steps;
  } found{end_ == End::hours ? 1.0 : 0.0, state_.hours_over, state_.fitted_hours, state_.fitted_steps};
  const std::string said = ranks_->broadcast(std::string(reinterpret_cast<const char*>(&found), sizeof found));
  REDLINE_CHECK(said.size() == sizeof found, "rank 0 sent {} bytes about its hours", said.size());
  if (counts_hours()) return;
  std::memcpy(&found, said.data(), sizeof found);
  state_.hours_over = found.hours_over;
  state_.fitted_hours = found.fitted_hours;
  state_.fitted_steps = found.fitted_steps;
  if (found.over == 0) return;
  end_ = End::hours;
  end_step_ = step;
}

void Ends::look_at_hours(std::int64_t step) {
  if (over() || step >= steps()) return;
  const std::int64_t measured = made_ - kFirstSteps;
  if (fits() && measured >= kFewest) {
    const bool first = state_.fitted_steps == 0;
    const bool due = first ? made_ >= kStepsToFit || trained() >= kMuch * limit() : trained() >= next_look_;
    if (due) fit(step, seconds_a_step());
  }
  // Another step of this length, after what is due now, would not leave the room.
  if (trained() + due_after(step) + last_ + reserve() < limit()) return;
  end_ = End::hours;
  end_step_ = step;
  state_.hours_over = config_.train.max_hours;
}

// A look that finds about the same changes nothing: the rate falls as it was going to.
void Ends::fit(std::int64_t step, double seconds) {
  const double left = std::max(0.0, limit() - trained() - reserve());
  const config::Train& t = config_.train;
  const double room = std::min((1 - kSlack) * left / seconds, static_cast<double>(kNoEnd));
  const double batches =
      static_cast<double>(config::micro_batches_before(t, step)) + room * static_cast<double>(t.accumulate);
  const std::int64_t found = std::max(step + 1, config::steps_within(t, batches));
  const std::int64_t before = state_.fitted_hours == config_.train.max_hours ? state_.fitted_steps : 0;
  state_.fitted_hours = config_.train.max_hours;
  next_look_ = limit() - trained() > kTooLateToLook * limit() ? 0.5 * (trained() + limit())
                                                              : std::numeric_limits<double>::infinity();
  if (made_ > 0) measure_from_here();
  const double change = std::abs(static_cast<double>(found - before));
  if (before > 0 && change <= std::max(1.0, kWorthTelling * static_cast<double>(before))) return;
  state_.fitted_steps = found;
  std::string sentence =
      fmt::format("train.max_hours = {:.4g}: at {:.3g} s a step, evaluations and saves included, there is room for {}",
                  config_.train.max_hours, seconds, counted(found, "step"));
  if (before > 0) sentence += fmt::format(", not {}", before);
  sentence += found > limit_steps_ ? fmt::format("; the run ends with its {} before", counted(limit_steps_, "step"))
                                   : "; the schedule of the learning rate ends with them";
  tell_(sentence, steps());
}

void Ends::measure_from_here() {
  from_ = clock_();
  asides_ = 0;
  from_batches_ = made_batches_;
}

void Ends::took(Aside aside, double seconds) {
  costs_[static_cast<std::size_t>(aside)] = seconds;
  asides_ += seconds;
  last_asides_ += seconds;
}

// Seconds for the evaluation, the sample and the save that a run ends with: as long as the last ones took.
double Ends::reserve() const {
  return std::reduce(costs_.begin(), costs_.end()) + std::max(0.0, whole_save_ - cost(Aside::save));
}

// Seconds of what a run does after this step where it is not the last.
double Ends::due_after(std::int64_t step) const {
  const auto due = [&](std::int64_t every) { return every > 0 && step % every == 0; };
  const config::Train& t = config_.train;
  const bool evaluation = due(t.eval_every), save = due(config_.checkpoint.every) || (evaluation && keeps_best());
  return (evaluation ? cost(Aside::evaluation) : 0) + (save ? cost(Aside::save) : 0) +
         (due(t.sample_every) ? cost(Aside::sample) : 0);
}

// Its share of evaluations, saves and samples included, as often as they are due and as long as the last ones took.
// Every evaluation may find a better loss, which is then saved.
double Ends::seconds_a_step() const {
  const double made =
      static_cast<double>(made_batches_ - from_batches_) / static_cast<double>(config_.train.accumulate);
  const double alone = (clock_() - from_ - asides_) / made;
  const auto often = [](std::int64_t every) { return every > 0 ? 1 / static_cast<double>(every) : 0.0; };
  const config::Train& t = config_.train;
  const double minutes = config_.checkpoint.minutes;
  const double saves = std::max({often(config_.checkpoint.every), keeps_best() ? often(t.eval_every) : 0.0,
                                 minutes > 0 ? alone / (60 * minutes) : 0.0});
  return std::max(alone, 1e-9) + cost(Aside::evaluation) * often(t.eval_every) + cost(Aside::save) * saves +
         cost(Aside::sample) * often(t.sample_every);
}

std::int64_t Ends::steps() const {
  const bool fitted = fits() && state_.fitted_steps > 0;
  return fitted ? std::min(limit_steps_, state_.fitted_steps) : limit_steps_;
}

std::optional<double> Ends::seconds_left() const {
  if (config_.train.max_hours == 0) return {};
  return std::max(0.0, limit() - trained());
}

std::string Ends::why() const {
  switch (end_) {
    case End::none: return "";
    case End::target:
      return fmt::format("held-out loss {:.4f} reached train.target_loss = {:g} after step {}", *state_.best_loss,
                         config_.train.target_loss, state_.best_step);
    case End::patience:
      return fmt::format("no better held-out loss in {} since step {} ({:.4f}): train.patience",
                         counted(state_.evaluations_since, "evaluation"), state_.best_step, *state_.best_loss);
    case End::hours:
      return fmt::format("train.max_hours = {:.4g} are over after step {}", config_.train.max_hours, end_step_);
  }
  return "";
}

std::string Ends::ending() const {
  std::string text = over() ? "; " + why() : "";
  if (keeps_best() && state_.best_loss)
    text += fmt::format("; the best checkpoint is that of step {} ({:.4f})", state_.best_step, *state_.best_loss);
  return text;
}

std::string Ends::nothing_left() const {
  const auto more = [&](std::string_view change) { return fmt::format(": {}; {} lets it go on", why(), change); };
  switch (end_) {
    case End::none: break;
    case End::target: return more("a lower train.target_loss, or 0,");
    case End::patience: return more("a larger train.patience, or 0,");
    case End::hours: return more("a larger train.max_hours");
  }
  if (fits() && state_.fitted_steps > 0 && state_.fitted_steps <= limit_steps_)
    return fmt::format(": train.max_hours = {:.4g} had room for them; a larger one lets it go on",
                       config_.train.max_hours);
  return "";
}

}  // namespace redline::train
