// redline plan --cards: which card do I need? The same configuration on each card of the table.
#include <algorithm>

#include "base/words.h"
#include "cli/output.h"
#include "cli/plan.h"
#include "config/ramps.h"
#include "io/json.h"
#include "perf/batch_size.h"
#include "perf/fit.h"
#include "perf/fp8_choice.h"
#include "report/figures.h"
#include "train/ends.h"

namespace redline::cli {
namespace {

struct CardPlan {
  const perf::Card* card;
  perf::Plan plan;
  config::Config config;  // as it fits there: the step cut as asked or otherwise, with what moves
};

// The first that fits: as asked; the fastest way with bytes moved; the step cut otherwise.
CardPlan plan_on(const perf::Card& card, const config::Config& asked, const perf::Filling& filling) {
  const perf::Machine machine = perf::machine_of(card);
  const config::Config config = perf::expect_fp8(asked, machine).config;
  CardPlan p{&card, perf::make_plan(config, machine, {}, filling), config};
  if (p.plan.fits || !perf::chooses(config)) return p;
  const perf::Fit fit = perf::find_fit(config, machine, perf::room_on(config, machine), {}, filling);
  if (!fit.ways.empty()) {
    p.config.memory.placement = fit.ways[0].placement;
  } else if (const auto cut = perf::cut_that_moves(config, machine, fit.room, {}, filling)) {
    p.config = perf::with_setting(config, cut->setting);
    if (!cut->fit.ways.empty()) p.config.memory.placement = cut->fit.ways[0].placement;
  }
  p.plan = perf::make_plan(p.config, machine, {}, filling);
  return p;
}

// How the step is cut there, and in `moved` what lies elsewhere or is computed again; empty: nothing.
struct HowItFits {
  std::string cut, moved;
  std::string in_words() const { return moved.empty() ? cut : fmt::format("{}; {}", cut, moved); }
};
HowItFits how_it_fits(const CardPlan& p, const config::Config& asked) {
  if (!p.plan.fits) return {"does not fit", ""};
  const perf::Setting& s = p.plan.setting;
  return {s == perf::setting_of(asked) ? "as asked" : fmt::format("{} x {}", s.batch_size, s.accumulate),
          perf::in_words(p.config.memory.placement, p.config)};
}

}  // namespace

void plan_cards(const std::string& name, const config::Config& config, const std::optional<perf::Filled>& filled,
                bool json, StopAtOnce& stopping) {
  const perf::Filling filling = perf::filling_of(filled);
  const perf::SearchOptions progress = plan_progress();
  std::vector<CardPlan> rows;
  for (const perf::Card& card : perf::cards()) {
    progress.progress(std::string(card.id), rows.size() + 1, perf::cards().size());
    rows.push_back(plan_on(card, config, filling));
  }
  const std::int64_t steps = train::total_steps(config.train);
  const double run = static_cast<double>(config::micro_batches_before(config.train, steps)) /
                     static_cast<double>(config.train.accumulate) * static_cast<double>(rows[0].plan.tokens_per_step) *
                     filling.utilisation;
  const double budget = run > 0 ? run : 1e9;
  const double most_hours = config.train.max_hours;  // 0: any
  const auto hours = [&](const CardPlan& r) {
    const double all = budget / r.plan.expected.tokens_per_s / 3600;
    return most_hours > 0 ? std::min(all, most_hours) : all;
  };
  stopping.hold();
  if (json) {
    io::Json cards = io::Json::array();
    for (const CardPlan& r : rows)
      cards.push_back({{"card", r.card->id},
                       {"measured", r.card->id == perf::kMeasuredCard},
                       {"memory_bytes", perf::machine_of(*r.card).memory},
                       {"fits", r.plan.fits},
                       {"how", how_it_fits(r, config).in_words()},
                       {"batch_size", r.plan.setting.batch_size},
                       {"accumulate", r.plan.setting.accumulate},
                       {"total_bytes", r.plan.memory.total()},
                       {"host_arena_bytes", r.plan.memory.host_arena},
                       {"tokens_per_s", r.plan.fits ? io::Json(r.plan.expected.tokens_per_s) : io::Json(nullptr)},
                       {"mfu", r.plan.fits ? io::Json(r.plan.expected.mfu) : io::Json(nullptr)},
                       {"hours", r.plan.fits ? io::Json(hours(r)) : io::Json(nullptr)}});
    return print_json({{"config", name},
                       {"tokens", budget},
                       {"max_hours", most_hours > 0 ? io::Json(most_hours) : io::Json(nullptr)},
                       {"filling", filling_json(config, filled)},
                       {"cards", std::move(cards)}});
  }
  print(fmt::format("plan      {}: {}, {} a step; hours for {}{}\n\n", name, parameters_of(rows[0].plan),
                    report::grouped(rows[0].plan.tokens_per_step, "token"), report::count(budget, token_name(filled)),
                    most_hours > 0 ? fmt::format(", or until train.max_hours = {:.6g} ends the run", most_hours)
                    : run > 0      ? ""
                                   : ", since nothing says when the run ends"));
  print(fmt::format("{:<12} {:>8} {:>8} {:>8} {:>11} {:>5} {:>7}  {}\n", "--card", "has", "takes", "host", "tokens",
                    "mfu", "hours", "how"));
  std::vector<std::string> notes;  // what moves, in words too long for a line: cards that do the same share a number
  for (const CardPlan& r : rows) {
    const perf::Plan& p = r.plan;
    HowItFits how = how_it_fits(r, config);
    if (!how.moved.empty()) {
      const auto note = std::ranges::find(notes, how.moved);
      how.cut += fmt::format(" ({})", note - notes.begin() + 1);
      if (note == notes.end()) notes.push_back(how.moved);
    }
    print(fmt::format(
        "{:<12} {:>8} {:>8} {:>8} {:>11} {:>5} {:>7}  {}\n", r.card->id, size(perf::machine_of(*r.card).memory),
        size(p.memory.total()), p.memory.host_arena > 0 ? size(p.memory.host_arena) : "-",
        p.fits ? report::token_rate(p.expected.tokens_per_s) : "-", p.fits ? report::percent(p.expected.mfu) : "-",
        p.fits ? hours_in_words(hours(r)) : "-", how.cut));
  }
  if (!notes.empty()) print("\n");
  for (std::size_t i = 0; i < notes.size(); ++i) print(report::paragraph(fmt::format("({}) ", i + 1), notes[i]));
  if (filled) {
    std::string padding = padding_in_words(config, *filled);
    if (filled->known())
      padding += fmt::format("; tokens, mfu and hours are of real ones, and {} fills {}", filled->set(),
                             report::percent(filled->packed.utilisation));
    print("\n" + report::paragraph("padding   ", padding));
  }
  print("\n" +
        report::paragraph(
            "", fmt::format(
                    "Rates are of datasheets, at the shares of them that were measured on the {}; no other card was "
                    "measured. Rows x micro-batches stand where the step is cut otherwise than asked.",
                    perf::card_called(perf::kMeasuredCard).name)));
}

}  // namespace redline::cli
