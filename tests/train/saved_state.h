// What tests write a checkpoint with: the configuration of a model, and the state of a run behind a step.
#pragma once

#include "train/checkpoint.h"
#include "train/tiny_run.h"

namespace redline::testing {

inline config::Config config_of(const config::Model& model) {
  config::Config c = tiny_run();
  c.model = model;
  return c;
}

inline train::RunState at_step(std::int64_t step) {
  train::RunState state;
  state.step = step;
  return state;
}

}  // namespace redline::testing
