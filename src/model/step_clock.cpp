// Spans are used again once no step needs their ends.
#include "model/step_clock.h"

#include <utility>

#include "base/error.h"

namespace redline::model {

StepClock::StepClock(device::Device& device) : spans_(device.make_spans()) { restart(); }

StepClock::Span StepClock::unused() {
  if (unused_.empty()) return made_++;
  const Span span = unused_.back();
  unused_.pop_back();
  return span;
}

void StepClock::restart() {
  REDLINE_CHECK(finished_.empty(), "{} steps were not taken", finished_.size());
  unused_.insert(unused_.end(), programs_.begin(), programs_.end());
  programs_.clear();
  spans_->begin(last_);
  spans_->end(last_);
}

void StepClock::begin() {
  programs_.push_back(unused());
  spans_->begin(programs_.back());
}

void StepClock::end() { spans_->end(programs_.back()); }

void StepClock::finish() {
  REDLINE_CHECK(!programs_.empty(), "a step without a program");
  const Span before = std::exchange(last_, programs_.back());
  finished_.push_back({before, std::exchange(programs_, {})});
}

StepTime StepClock::take() {
  REDLINE_CHECK(!finished_.empty(), "no step is under way");
  const Step step = std::move(finished_.front());
  finished_.pop_front();
  spans_->wait(step.programs.back());
  StepTime time;
  time.seconds = spans_->between_ends(step.before, step.programs.back());
  for (const Span span : step.programs) time.working += spans_->length(span);
  unused_.push_back(step.before);
  unused_.insert(unused_.end(), step.programs.begin(), step.programs.end() - 1);
  return time;
}

void StepClock::wait_for_all_but(std::size_t programs) {
  if (programs_.size() > programs) spans_->wait(programs_[programs_.size() - programs - 1]);
}

}  // namespace redline::model
