// What a run does between steps, on all of its ranks: evaluations and samples; and how its ranks keep up with each
// other.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "model/evaluate.h"
#include "train/step_loop.h"

namespace redline::train {

// Nothing where a signal came before its end.
std::optional<double> StepLoop::held_out_loss() {
  const Goodput::Scope evaluating = goodput_->in(Part::evaluation);
  const Ends::Timed timed = ends_.timed(Ends::Aside::evaluation);
  held_out_.restore({});
  const StopFlag* const stop = alone() ? options_.stop : nullptr;  // ranks end an evaluation together
  engine_->drop_on(stop);
  model::Evaluation e;
  try {
    end_if_asked(stop);
    e = model::evaluate(
        *engine_, held_out_, config_.train.eval_batches,
        [&](std::int64_t done, std::int64_t of) {
          end_if_asked(stop);
          tell_alive();
          keeper_.tell(Evaluating{done, of});
        },
        {}, options_.team.together);
  } catch (const Interrupted&) {
    return std::nullopt;
  }
  if (!std::isfinite(e.loss))
    refuse(fmt::format("after step {} the held-out loss is {}: the parameters are broken and are not saved",
                       state_.step, e.loss));
  keeper_.tell(Evaluated{state_.step, e.loss});
  return e.loss;
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

// What went before belongs to no step: neither its time nor what ranks waited for in it.
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
