// Gives the state to whoever keeps it, and counts a save once it is on the disk.
#include <utility>

#include "base/clock.h"
#include "train/step_loop.h"

namespace redline::train {

void StepLoop::settle(Keeper::Settle which) {
  const std::optional<Keeper::SaveOutcome> save = keeper_.settle(which);
  if (!save) return;
  if (!save->written) {
    saved_step_ = safe_step_;
    return;
  }
  safe_step_ = saved_step_;
  ends_.saved_in(save->seconds);
  guard_.saved(saved_step_);
}

// Before the first save and not in it: it belongs to the start of a run, however many steps there are until then.
void StepLoop::get_ready_to_save() {
  if (std::exchange(ready_to_save_, true)) return;
  const Goodput::Scope starting = goodput_->in(Part::start_up);
  const Ends::Timed timed = ends_.timed(Ends::Aside::save);
  keeper_.get_ready(*engine_);
  restart_clock();
}

void StepLoop::save(const data::LoaderState& loader) {
  const double began = steady_seconds();
  const Goodput::Scope saving = goodput_->saving(state_.step);
  const Ends::Timed timed = ends_.timed(Ends::Aside::save);
  settle(Keeper::Settle::before_next);
  if (!engine_->parameters_finite())  // broken ones are no checkpoint
    refuse(fmt::format("after step {} a parameter is not finite and is not saved", state_.step));
  tell_changed_files();
  state_.loader = loader;
  state_.ends = ends_.state();
  state_.data = watch_.identity(!stopping());
  state_.eval = eval_watch_ ? std::optional(eval_watch_->identity(!stopping())) : std::nullopt;
  saved_step_ = state_.step;
  guard_.before_save(state_.step);
  keeper_.save(*engine_, state_, began);
}

}  // namespace redline::train
