// The work between steps, on all ranks: evaluations, samples, looks at norms, the shares of a mixture, and the lags of
// ranks.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "optim/average.h"
#include "train/step_loop.h"

namespace redline::train {

StepLoop::HeldOutLosses StepLoop::held_out_losses() {
  const Goodput::Scope evaluating = goodput_->in(Part::evaluation);
  const Ends::Timed timed = ends_.timed(Ends::Aside::evaluation);
  HeldOutLosses losses{evaluate_held_out(false), {}};
  if (losses.weights.empty()) return {};
  for (const HeldOutLoss& of : losses.weights)
    if (!std::isfinite(of.loss))
      refuse(fmt::format("after step {} the held-out loss is {}: the parameters are broken and are not saved",
                         state_.step, of.loss));
  Evaluated told{state_.step, losses.weights[0].loss};
  told.bits_per_byte = losses.weights[0].bits_per_byte;
  if (held_out_.named()) told.sets = losses.weights;
  keeper_.tell(told);
  losses.average = held_out_loss_of_average();
  return losses;
}

// The average stands in the weights' place meanwhile, and they come back whatever happens: a signal ends an evaluation,
// and the state is saved then.
std::optional<double> StepLoop::held_out_loss_of_average() {
  if (!lowering_.average || state_.step == 0) return std::nullopt;
  if (optim::average_share(config_.train, state_.step - 1, ends_.steps()) == 1) return std::nullopt;
  engine_->show_average(true);
  std::vector<HeldOutLoss> losses;
  try {
    losses = evaluate_held_out(true);
  } catch (...) {
    engine_->show_average(false);
    throw;
  }
  engine_->show_average(false);
  return losses.empty() ? std::nullopt : std::optional(losses[0].loss);
}

std::vector<HeldOutLoss> StepLoop::evaluate_held_out(bool first_alone) {
  const StopFlag* const stop = alone() ? options_.stop : nullptr;  // ranks end an evaluation together
  engine_->drop_on(stop);
  std::vector<HeldOutLoss> losses;
  try {
    end_if_asked(stop);
    losses = held_out_.evaluate(
        *engine_, config_.train.eval_batches,
        [&](std::int64_t done, std::int64_t of) {
          end_if_asked(stop);
          tell_alive();
          keeper_.tell(Evaluating{done, of});
        },
        options_.team.communicator, first_alone);
  } catch (const Interrupted&) {
    return {};
  }
  return losses;
}

// Tells the share that each entry of data.train gave, and how often it was read.
void StepLoop::tell_mixture() {
  std::string words;
  for (const data::SourceShare& s : loader_.shares())
    words += fmt::format("{}{} {:.2f}%{}", words.empty() ? "" : "; ", s.name, 100 * s.share,
                         s.epochs ? fmt::format(", read {:.2f} times", *s.epochs) : "");
  if (!words.empty()) keeper_.tell(Note{fmt::format("shares of the training tokens: {}", words)});
}

// All of its tokens were context: its gradient is zero, and its loss a mean over nothing.
void StepLoop::tell_nothing_learned(std::int64_t step) {
  keeper_.tell(Warning{fmt::format(
      "step {} had no token of an answer to learn from, and its loss of 0 means nothing: questions longer than "
      "train.seq_len lose their answers; raise it, or train.batch_size",
      step)});
}

bool StepLoop::looks_at_norms(std::int64_t step) const {
  const std::int64_t every = config_.log.norms_every;
  return every > 0 && (step == 1 || step % every == 0);
}

// Ranks have about as many pairs each. In fsdp they add up the gradients of every micro-step, in the other modes those
// of the last.
NormsObservation StepLoop::norms_of(const QueuedStep& step, const UpdateResult& update) {
  NormsObservation seen(model::tensor_norms(lowered().table, *step.norms, std::max(update.counts.pairs, 1.0)));
  const auto squares = [](const UpdateResult& r) {
    const double norm = static_cast<double>(r.grad_norm) * r.counts.pairs;
    return norm * norm;
  };
  const UpdateResult& small = step.norms->small;
  const bool apart = !alone() && options_.team.sharing.mode != dist::Mode::fsdp;
  if (small.counts.pairs > 0 && update.finite == 1.0f) {
    const GradientSize first{squares(small), small.counts.pairs, apart ? static_cast<double>(ranks()) : 1};
    if (const auto look = estimate_noise(first, {squares(update), update.counts.pairs})) noise_.add(*look);
    seen.noise_scale = noise_.pairs();
  }
  return seen;
}

void StepLoop::write_samples(std::int64_t step) {
  const Goodput::Scope sampling = goodput_->in(Part::sampling);
  const Ends::Timed timed = ends_.timed(Ends::Aside::sample);
  engine_->gather_weights();
  const bool everybody = options_.team.sharing.mode == dist::Mode::fsdp;  // nobody has all weights
  if (!options_.team.leads() && !everybody) return;
  std::vector<SampledText> texts = samples_->write(*engine_, [&] {
    tell_alive();
    return !stopping();
  });
  if (!stopping()) keeper_.tell(Sampled{step, std::move(texts)});
}

// Time before this call belongs to no step, and neither do the waits of ranks in it.
void StepLoop::restart_clock() {
  engine_->clock().restart();
  waited_ = engine_->executor().waited_for_ranks().value_or(0);
}

// Every rank tells what it needs; rank 0 knows everybody's, at most a second old.
RankPaces StepLoop::paces(double step_seconds) {
  RankPaces p;
  if (const std::optional<double> waited = engine_->executor().waited_for_ranks())
    p.wait_ms = 1e3 * (*waited - std::exchange(waited_, *waited));
  const Team& team = options_.team;
  if (team.pace) team.pace(step_seconds - 1e-3 * p.wait_ms.value_or(0));
  if (!team.leads() || !team.paces) return p;
  std::vector<double> all = team.paces();
  const auto slowest = std::ranges::max_element(all);
  if (slowest == all.end() || *std::ranges::min_element(all) <= 0) return p;  // not everybody has told yet
  p.slowest = slowest - all.begin();
  p.slowest_ms = 1e3 * *slowest;
  std::ranges::nth_element(all, all.begin() + std::ssize(all) / 2);
  p.median_ms = 1e3 * all[all.size() / 2];
  return p;
}

// Ranks save together, at steps that all of them know.
bool StepLoop::folder_lost() {
  if (!keeper_.lost()) return false;
  if (!alone()) fail_machine("the run's folder was deleted or moved under it: a run on several ranks ends there");
  return true;
}

}  // namespace redline::train
