// What a run does between steps, on all of its ranks: evaluations and samples; what a mixture gave; and how its ranks
// keep up with each other.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "train/step_loop.h"

namespace redline::train {

std::vector<HeldOutLoss> StepLoop::held_out_losses() {
  const Goodput::Scope evaluating = goodput_->in(Part::evaluation);
  const Ends::Timed timed = ends_.timed(Ends::Aside::evaluation);
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
        options_.team.together);
  } catch (const Interrupted&) {
    return {};
  }
  for (const HeldOutLoss& of : losses)
    if (!std::isfinite(of.loss))
      refuse(fmt::format("after step {} the held-out loss is {}: the parameters are broken and are not saved",
                         state_.step, of.loss));
  Evaluated told{state_.step, losses[0].loss};
  told.bits_per_byte = losses[0].bits_per_byte;
  if (held_out_.named()) told.sets = losses;
  keeper_.tell(told);
  return losses;
}

// What each entry of data.train gave, and how often it was read for it.
void StepLoop::tell_mixture() {
  std::string words;
  for (const data::SourceShare& s : loader_.shares())
    words += fmt::format("{}{} {:.2f}%{}", words.empty() ? "" : "; ", s.name, 100 * s.share,
                         s.epochs ? fmt::format(", read {:.2f} times", *s.epochs) : "");
  if (!words.empty()) keeper_.tell(Note{fmt::format("shares of the training tokens: {}", words)});
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
