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

// A checkpoint straight from the engine's state, without a snapshot.
inline void save_checkpoint(FileSystem& files, const Path& parent, model::Engine& engine, const config::Config& config,
                            const train::RunState& state) {
  const std::vector<Tensor> arrays = engine.state();
  train::write_checkpoint(files, parent, train::checkpoint_content(engine, config, state),
                          [&](std::span<const model::StateTensor> tensors, const model::TakeBytes& take) {
                            model::read_state(tensors, arrays, engine.device(), take);
                          });
}

}  // namespace redline::testing
