// One rule an illness. A rule that cannot tell, because too little was recorded, says nothing.
#include "perf/learning.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "base/words.h"
#include "optim/schedule.h"
#include "train/ends.h"
#include "train/recipe.h"

namespace redline::perf {
namespace {

using train::Illness;

constexpr std::size_t kEnoughSteps = 100;         // for a plateau
constexpr std::int64_t kFirstSteps = 10;          // whose norms are large in any run
constexpr std::size_t kEvaluationsAfterBest = 2;  // that an overfitted run has at least
constexpr double kUsualTokens = 20, kUsualWarmUp = 0.05;
constexpr std::int64_t kEnoughLooks = 3, kSettled = 100;  // at routers; steps before them
constexpr double kUsualAux = 0.01;
constexpr const char* kAllOfIt = "all that the run learns";

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return values.empty() ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(values.size());
}
// Of the mean, as if the values did not depend on each other.
double standard_error(std::span<const double> values) {
  const double mean = mean_of(values);
  double sum = 0;
  for (const double v : values) sum += (v - mean) * (v - mean);
  const auto n = static_cast<double>(values.size());
  return std::sqrt(sum / (n - 1) / n);
}
double median_of(std::vector<double> values) {
  std::erase_if(values, [](double v) { return !std::isfinite(v); });
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}
double highest(const std::vector<double>& values) {
  double most = -1;
  for (const double v : values)
    if (std::isfinite(v)) most = std::max(most, v);
  return most;
}

std::string in_words(double parameters) {
  return parameters < 1e9 ? fmt::format("{:.3g} million", 1e-6 * parameters)
                          : fmt::format("{:.3g} billion", 1e-9 * parameters);
}

class LearningRules {
 public:
  LearningRules(const config::Config& config, const Learned& learned, std::int64_t parameters)
      : c_(config), l_(learned), parameters_(parameters), steps_(train::total_steps(config.train, {}, learned.ranks)) {
    if (l_.steps_of_run > 0) steps_ = l_.steps_of_run;
  }

  std::vector<LearningIllness> all() {
    settings();
    recorded_rate();
    spikes();
    plateau();
    overfitting();
    few_tokens();
    routers();
    return std::move(found_);
  }

 private:
  bool has(Illness illness) const {
    return std::ranges::find(found_, illness, &LearningIllness::illness) != found_.end();
  }

  // As a run warns of them at its start.
  void settings() {
    for (const train::Doubt& doubt : train::doubtful_settings(c_, steps_, l_.ranks)) {
      const bool warm_up = doubt.key.starts_with("optim.warmup_");
      if (!warm_up && doubt.key != "optim.lr") continue;
      if (has(warm_up ? Illness::all_warm_up : Illness::rate)) continue;
      LearningIllness& f = found_.emplace_back();
      f.illness = warm_up ? Illness::all_warm_up : Illness::rate;
      f.found = doubt.sentence.substr(0, doubt.sentence.rfind("; "));
      f.costs = kAllOfIt;
      f.share = 1;
      if (warm_up && c_.optim.warmup_steps > 0) {
        const double usual = kUsualWarmUp * static_cast<double>(steps_ - c_.optim.schedule_start);
        f.changes = {fmt::format("optim.warmup_steps={}", std::max<std::int64_t>(1, std::llround(usual)))};
      }
    }
  }

  // A schedule may come to nothing though its rate is none of that.
  void recorded_rate() {
    if (has(Illness::rate) || l_.rate.empty() || highest(l_.rate) != 0) return;
    found_.push_back({Illness::rate, fmt::format("the rate was 0 in all {}", counted(l_.rate.size(), "recorded step")),
                      kAllOfIt, 1});
  }

  void spikes() {
    const double median = median_of(l_.grad_norm), most = train::row_of(Illness::gradient_spike).warn_at * median;
    if (!(median > 0)) return;
    std::int64_t spikes = 0;
    std::size_t largest = 0;
    double norm = 0;
    for (std::size_t i = 0; i < l_.grad_norm.size(); ++i) {
      if (l_.steps[i] <= kFirstSteps || !(l_.grad_norm[i] > most)) continue;
      ++spikes;
      if (l_.grad_norm[i] <= norm) continue;
      norm = l_.grad_norm[i];
      largest = i;
    }
    if (spikes == 0) return;
    LearningIllness& f = found_.emplace_back();
    f.illness = Illness::gradient_spike;
    f.found = fmt::format("the gradient norm of step {} is {:.3g}, {:.0f} times the median of {:.3g}",
                          l_.steps[largest], norm, norm / median, median);
    f.costs = fmt::format("{}, and what the model unlearns there", counted(spikes, "step"));
    f.share = static_cast<double>(spikes) / static_cast<double>(l_.steps.size());
    if (c_.guard.spike == 0) f.changes = {"guard.spike=10"};
  }

  // Only steps count whose rate is at least half of the highest: at the end of a schedule every loss stands still.
  void plateau() {
    if (has(Illness::rate) || has(Illness::all_warm_up)) return;
    const double rate = highest(l_.rate);
    const std::int64_t warm_up = optim::warmup_steps(c_, steps_, l_.ranks);
    std::vector<double> losses;
    std::int64_t last = 0;
    for (std::size_t i = 0; i < l_.loss.size(); ++i) {
      if (l_.steps[i] <= warm_up || !std::isfinite(l_.loss[i]) || !(l_.rate[i] >= rate / 2)) continue;
      losses.push_back(l_.loss[i]);
      last = l_.steps[i];
    }
    if (losses.size() < kEnoughSteps) return;
    const std::size_t quarter = losses.size() / 4;
    const std::span<const double> later(losses.end() - static_cast<std::ptrdiff_t>(quarter), quarter);
    const std::span<const double> earlier(later.data() - quarter, quarter);
    const double before = mean_of(earlier), now = mean_of(later), least = kStandsStill * before;
    const double doubt = 2 * std::hypot(standard_error(earlier), standard_error(later));
    if (!(before - now + doubt < least) || held_out_falls(last)) return;
    LearningIllness& f = found_.emplace_back();
    f.illness = Illness::plateau;
    f.found = fmt::format("the mean loss of {} up to step {} is {:.4f}, and {:.4f} before them",
                          counted(quarter, "step"), last, now, before);
    f.costs = fmt::format("{} of {}", 2 * quarter, counted(l_.steps.size(), "step"));
    f.share = static_cast<double>(2 * quarter) / static_cast<double>(l_.steps.size());
    if (std::abs(now - std::log(static_cast<double>(c_.model.vocab))) < 0.01 * now)
      f.found += ", which is the loss of a guess (the logarithm of model.vocab)";
  }

  bool held_out_falls(std::int64_t last) const {
    double best_before = std::numeric_limits<double>::infinity(), best_after = best_before;
    for (const auto& [step, loss] : l_.held_out)
      (step <= last / 2 ? best_before : best_after) = std::min(step <= last / 2 ? best_before : best_after, loss);
    return std::isfinite(best_before) && best_after < (1 - kStandsStill) * best_before;
  }

  void overfitting() {
    if (l_.held_out.size() <= kEvaluationsAfterBest) return;
    const auto best = std::ranges::min_element(l_.held_out, {}, [](const auto& e) { return e.second; });
    const auto& [last_step, last] = l_.held_out.back();
    if (l_.held_out.end() - best <= static_cast<std::ptrdiff_t>(kEvaluationsAfterBest)) return;
    if (!(last > (1 + kOverfitted) * best->second)) return;
    const double then = training_loss_until(best->first), now = training_loss_until(last_step);
    if (!(now < then)) return;  // a loss that rises everywhere has another reason
    LearningIllness& f = found_.emplace_back();
    f.illness = Illness::overfitting;
    f.found = fmt::format(
        "the held-out loss was {:.4f} at step {} and is {:.4f} at step {}, while the training loss went from {:.4f} to "
        "{:.4f}",
        best->second, best->first, last, last_step, then, now);
    f.costs = fmt::format("{} of {}", last_step - best->first, counted(last_step, "step"));
    f.share = static_cast<double>(last_step - best->first) / static_cast<double>(last_step);
    if (c_.train.patience == 0 && c_.train.eval_every > 0) f.changes = {"train.patience=3"};
  }

  // The mean of a twentieth of the steps before it.
  double training_loss_until(std::int64_t step) const {
    const auto wide = static_cast<std::int64_t>(l_.steps.size() / 20 + 1);
    std::vector<double> losses;
    for (std::size_t i = 0; i < l_.steps.size(); ++i)
      if (l_.steps[i] <= step && l_.steps[i] > step - wide && std::isfinite(l_.loss[i])) losses.push_back(l_.loss[i]);
    return mean_of(losses);
  }

  void few_tokens() {
    const std::int64_t asked = train::total_steps(c_.train, {}, l_.ranks), steps = asked > 0 ? asked : steps_;
    if (steps == 0 || parameters_ == 0 || !c_.model.init_from.empty()) return;
    const double a_step = static_cast<double>(c_.train.batch_size * c_.train.accumulate * c_.train.seq_len) *
                          static_cast<double>(l_.ranks);
    const double tokens = a_step * static_cast<double>(steps), each = tokens / static_cast<double>(parameters_);
    if (each >= kFewTokens) return;
    LearningIllness& f = found_.emplace_back();
    f.illness = Illness::few_tokens;
    f.found = fmt::format("{} of {} are {:.2g} tokens for each of {} parameters{}; about {:.0f} are usual",
                          counted(steps, "step"), counted(static_cast<std::int64_t>(a_step), "token"), each,
                          in_words(static_cast<double>(parameters_)), c_.model.experts > 0 ? " that a token takes" : "",
                          kUsualTokens);
    f.costs = "most of what the model could learn";
  }

  // The first looks say nothing: a router that was just made is even by chance, and many swing before they settle.
  void routers() {
    if (l_.router_looks < kEnoughLooks || l_.first_look < kSettled) return;
    if (c_.model.experts_per_token >= c_.model.experts) return;  // every token takes all: nothing is chosen
    std::int64_t experts = 0, starving = 0, collapsed = 0;
    const Learned::Router *hungriest = nullptr, *fewest = nullptr;
    std::size_t expert = 0;
    for (const Learned::Router& router : l_.routers) {
      experts += std::ssize(router.loads);
      const double in_use = experts_in_use(router.loads);
      if (in_use < fewest_in_use(std::ssize(router.loads), c_.model.experts_per_token)) {
        ++collapsed;  // most of its experts starve, too, for that reason
        if (!fewest || in_use < experts_in_use(fewest->loads)) fewest = &router;
        continue;
      }
      starving += std::ranges::count_if(router.loads, [](double load) { return load < kStarves; });
      const auto least = std::ranges::min_element(router.loads);
      if (hungriest && *least >= hungriest->loads[expert]) continue;
      hungriest = &router;
      expert = static_cast<std::size_t>(least - router.loads.begin());
    }
    const std::string when = fmt::format("in the mean of {} from step {} to {}", counted(l_.router_looks, "look"),
                                         l_.first_look, l_.last_look);
    std::vector<std::string> changes;
    const bool of_model = c_.model.router_balance == "model";
    if (!of_model || c_.model.router_aux == 0)  // without a coefficient no balance does anything
      changes.push_back(fmt::format("model.router_aux={:g}", std::max(kUsualAux, 2 * c_.model.router_aux)));
    if (of_model) changes.emplace_back("model.router_balance=layer");
    if (collapsed > 0)
      found_.push_back({Illness::collapsed_router,
                        fmt::format("the tokens of layer {} go to experts as if it had {:.1f} of its {}, {}",
                                    fewest->layer, experts_in_use(fewest->loads), fewest->loads.size(), when),
                        fmt::format("{} of {} with experts, which are little more than dense ones", collapsed,
                                    counted(l_.routers.size(), "layer")),
                        static_cast<double>(collapsed) / static_cast<double>(l_.routers.size()), changes});
    if (starving > 0)
      found_.push_back(
          {Illness::starving_expert,
           fmt::format("expert {} of layer {} has {:.2g} of an even share of the tokens, {}", expert, hungriest->layer,
                       hungriest->loads[expert], when),
           fmt::format("{} of {}, whose weights learn next to nothing", starving, counted(experts, "expert")),
           static_cast<double>(starving) / static_cast<double>(experts), changes});
  }

  const config::Config& c_;
  const Learned& l_;
  std::int64_t parameters_, steps_;
  std::vector<LearningIllness> found_;
};

}  // namespace

double experts_in_use(const std::vector<double>& loads) {
  double sum = 0, squares = 0;
  for (const double load : loads) sum += load, squares += load * load;
  return squares > 0 ? sum * sum / squares : 0;
}

double fewest_in_use(std::int64_t experts, std::int64_t per_token) {
  return std::min(2.0 * static_cast<double>(per_token), 0.5 * static_cast<double>(experts + per_token));
}

std::vector<LearningIllness> illnesses_of_learning(const config::Config& config, const Learned& learned,
                                                   std::int64_t parameters) {
  return LearningRules(config, learned, parameters).all();
}

}  // namespace redline::perf
