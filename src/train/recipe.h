// How a run will learn, known before its first step: settings of which something is doubtful, and a recipe for a run
// that goes on from weights (model.init_from) and was given none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace redline::train {

// Rates outside of these are hardly meant. AdamW moves every weight by about its rate in each step, so that above 1e-2
// a weight of the usual 0.02 is lost within two; Muon's updates have a fixed norm, of which matrices bear more. Below
// 1e-7 steps round to nothing in bf16.
inline constexpr double kHighestAdamwRate = 1e-2, kHighestMuonRate = 5e-2, kLowestRate = 1e-7;

// A setting that will hardly do what somebody meant.
struct Doubt {
  std::string_view key;
  std::string sentence;  // names the key, its value and what to do
  bool hint = false;     // no fault, but a word on what else to set
};

// `steps`: of the whole run; 0: not known. Keys without effect are told where the user wrote them. Of a file with all
// keys, such as a run's own or one that `redline config` printed, only those that are no defaults were written by
// anybody.
std::vector<Doubt> doubtful_settings(const config::Config& config, std::int64_t steps, std::int64_t ranks = 1);

std::string short_rate(double rate);  // "2e-3", "1.41e-4"

// For config::load(), after the model is known: fills in what nobody wrote of the recipe of a run that starts from the
// weights of model.init_from without a preset, and says each part with its reason. Nothing where there is nothing to
// fill in. docs/training.md has the rules and where they come from.
std::vector<std::string> complete_recipe(config::Config& config);

}  // namespace redline::train
