// The answers to an update that was not made: leave it out, go back to a checkpoint, or end with advice.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/words.h"
#include "config/ramps.h"
#include "train/step_loop.h"

namespace redline::train {
namespace {

std::string batches_in_words(const std::vector<PassedBatch>& passed) {
  std::vector<std::int64_t> documents;
  for (const PassedBatch& p : passed) documents.insert(documents.end(), p.documents.begin(), p.documents.end());
  if (passed.empty()) return "there are no batches to pass over";
  return fmt::format("the batches of {} are passed over{}", counted(passed.size(), "step"),
                     documents.empty() ? "" : fmt::format(" (documents {})", documents_in_words(documents)));
}

}  // namespace

void StepLoop::forget_oldest() {
  std::swap(steps_queued_[0], steps_queued_[1]);
  --queued_;
}

void StepLoop::leave_out(const QueuedStep& s, double loss, const UpdateResult& update) {
  const std::string trouble = s.trouble(loss, update);
  const bool spike = is_spike(loss, update);
  switch (guard_.left_out(s.draw, s.documents)) {
    case Guard::Verdict::skip: {
      Skipped skipped;
      skipped.text = fmt::format("{}; the update was left out ({} in a row, of at most {})", trouble, guard_.streak(),
                                 config_.guard.skips);
      skipped.step = s.step;
      skipped.reason = spike ? "spike" : "not finite";
      skipped.loss = loss;
      skipped.norm = static_cast<double>(update.grad_norm);
      skipped.limit = static_cast<double>(update.limit);
      skipped.documents = each_once(s.documents);
      keeper_.tell(skipped);
      return;
    }
    case Guard::Verdict::go_back: forget_oldest(); throw GoBack{trouble};
    case Guard::Verdict::end: break;
  }
  const std::int64_t before = guard_.streak() - 1;
  throw NotFinite(fmt::format(
      "{}; the update was not made{} and the last checkpoint stays: try a lower optim.lr (now {:g}), a longer "
      "optim.warmup_steps or optim.clip{}, then {}; see {}",
      trouble, before > 0 ? fmt::format(", nor the {} before it (guard.skips)", before) : "", s.lr,
      spike ? ", or a higher guard.spike" : "", advice(), troubleshooting::kNotFinite));
}

// A run whose newest checkpoint is finite and broken all the same ends at the same step for ever: the good one is
// named.
std::string StepLoop::advice() const {
  const std::optional<std::int64_t> good = guard_.good();
  return good ? fmt::format("--resume --from-step {}, the newest checkpoint that is held to be good", *good)
              : "--resume from the last checkpoint";
}

void StepLoop::refuse(std::string trouble) {
  if (guard_.may_go_back()) throw GoBack{std::move(trouble), true};
  throw NotFinite(
      fmt::format("{}; try a lower optim.lr and {}; see {}", trouble, advice(), troubleshooting::kNotFinite));
}

// Waits for steps that were queued before the trouble was known. The run notes only whether they were as bad.
void StepLoop::go_back(const GoBack& because) {
  for (; queued_ > 0; forget_oldest()) {
    const QueuedStep& s = steps_queued_[0];
    if (engine_->take_result().update.finite != 1.0f) guard_.left_out(s.draw, s.documents);
  }
  const bool broken = because.last_update || !engine_->parameters_finite();
  const std::int64_t from = state_.step, asked = *guard_.back_to();
  const bool good = guard_.good().has_value();
  std::optional<RunState> then;
  std::string problem = "it is not there";
  going_back_ = true;
  try {
    then = keeper_.go_back(*this, asked);
  } catch (const UserError& e) {
    problem = e.what();
  }
  going_back_ = false;
  if (!then)
    throw NotFinite(fmt::format("{}; the run cannot go back to its checkpoint of step {}: {}; see {}", because.why,
                                asked, problem, troubleshooting::kNotFinite));
  const std::int64_t to = then->step;  // or an older one, where that is not there

  const GuardState of_checkpoint = std::exchange(then->guard, state_.guard);
  restore(*then);
  goodput_->went_back(state_.step);
  RolledBack told;
  told.from = from;
  told.to = to;
  told.passed_over = guard_.go_back(of_checkpoint, to, broken);
  told.text = fmt::format("{}; the run goes back to step {}, {}, and {} (rollback {} of at most {})", because.why, to,
                          good ? "its newest checkpoint that is held to be good" : "its newest checkpoint",
                          batches_in_words(told.passed_over), state_.guard.rollbacks, config_.guard.rollbacks);
  first_step_ = std::min(first_step_, to);
  keeper_.tell(told);
  // Saved anew with what is to be passed over: a resume from here does the same.
  save(loader_.state());
}

// As many as the steps had that drew them: those from here on, one after another.
void StepLoop::pass_over_batches() {
  for (std::int64_t step = state_.step; guard_.passes_over(); guard_.passed_over(), ++step) {
    before_step_ = loader_.state();
    for (std::int64_t micro = config::micro_batches(config_.train, step); micro > 0; --micro)
      if (!next_batch()) fail_user("data.train has no documents to train on");
  }
}

}  // namespace redline::train
