// Runs small enough for a test: seconds for a hundred steps, but with everything in them. They run in the test's own
// process, and what they said and left on the disk is kept.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/overloaded.h"
#include "config/load.h"
#include "io/checkpoint_folder.h"
#include "model/engine.h"
#include "model/family.h"
#include "testing/says.h"
#include "testing/watched_device.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

namespace redline::testing {

inline const std::vector<std::string> kTinyRun = {
    "model.layers=2",      "model.hidden=32",       "model.heads=2",    "model.head_dim=16",    "model.ffn=48",
    "model.dropout=0.1",   "train.batch_size=2",    "train.seq_len=64", "train.accumulate=2",   "train.max_steps=40",
    "train.eval_every=10", "train.eval_tokens=256", "optim.lr=1e-2",    "optim.warmup_steps=4", "checkpoint.every=5",
    "checkpoint.keep=2",   "data.max_segments=8"};

inline config::Config tiny_run(std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), kTinyRun.begin(), kTinyRun.end());
  return config::load({.file = "", .preset = "quick", .overrides = overrides}, model::settle_family);
}

// Remembers all events. Whether a disk keeps up is the machine's: under a storm of processes any run may say that
// it did not, so that is no warning here. Nor is a run that ends within its warm-up: tests cut runs short on purpose.
struct Recorder final : train::Observer {
  std::vector<train::StepMetrics> steps;
  std::vector<std::int64_t> saves;
  std::vector<std::string> notes, warnings, endings, slow_disks, cut_short;
  std::vector<double> evaluations;
  std::vector<data::PipelineStats> pipelines;
  std::vector<train::Skipped> skipped;  // they are warnings too
  std::vector<train::RolledBack> rolled_back;
  void on(const train::Event& event) override {
    hear(
        event, [&](const train::Stepped& e) { steps.push_back(e); },
        [&](const train::Saved& e) { saves.push_back(e.step); }, [&](const train::Note& e) { notes.push_back(e.text); },
        [&](const train::Warning& e) {
          const bool slow = e.text.find("was still being written when the next one was due") != e.text.npos;
          const bool warms_up = e.text.find("never reaches optim.lr") != e.text.npos;
          (slow ? slow_disks : warms_up ? cut_short : warnings).push_back(e.text);
        },
        [&](const train::Evaluated& e) { evaluations.push_back(e.loss); },
        [&](const train::Skipped& e) {
          skipped.push_back(e);
          warnings.push_back(e.text);
        },
        [&](const train::RolledBack& e) {
          rolled_back.push_back(e);
          warnings.push_back(e.text);
        },
        [&](const train::Pipeline& e) { pipelines.push_back(e); },
        [&](const train::Finished& e) { endings.push_back(e.text); });
  }
};

// What tests write a checkpoint with: the configuration of a model, and the state of a run after a step.
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
  train::write_checkpoint(files, parent, train::checkpoint_content(engine, config, state),
                          [&](std::span<const model::StateTensor> tensors, const model::TakeBytes& take) {
                            model::read_state(tensors, engine, take);
                          });
}

}  // namespace redline::testing

namespace redline::train {

using testing::at_step;
using testing::config_of;
using testing::Recorder;
using testing::save_checkpoint;
using testing::says;
using testing::tiny_run;

// An observer of the events that its functions take: Hears stopper([&](const Stepped& e) { ... }, ...).
template <class... Heard>
class Hears final : public Observer {
 public:
  explicit Hears(Heard... heard) : heard_{std::move(heard)...} {}
  void on(const Event& event) override {
    std::visit(
        [&]<class E>(const E& e) {
          if constexpr (std::is_invocable_v<overloaded<Heard...>&, const E&>) heard_(e);
        },
        event);
  }

 private:
  overloaded<Heard...> heard_;
};

inline TrainOptions options_for(const config::Config& config, const Path& folder, std::vector<Observer*> observers = {},
                                const StopFlag* stop = nullptr) {
  TrainOptions options;
  options.config = config;
  options.folder = folder;
  options.peak_flops = 1e11;
  options.observers = std::move(observers);
  options.stop = stop;
  return options;
}

struct Ran {
  TrainResult result;
  Recorder seen;
};

// Also heard by the observers of `options`, whose configuration and folder are those given here.
inline Ran run_on(device::CpuDevice& device, TrainOptions options, const config::Config& config, const Path& folder,
                  bool resume = false, FileSystem& files = real_files()) {
  Ran ran;
  options.config = config;
  options.folder = folder;
  options.resume = resume;
  options.peak_flops = 1e11;
  options.observers.insert(options.observers.begin(), &ran.seen);
  ran.result = train(options, device, files);
  return ran;
}

inline Ran run(const config::Config& config, const Path& folder, bool resume = false, FileSystem& files = real_files(),
               bool stops_at_once = false) {
  testing::WatchedDevice device(2);
  StopFlag stop = 0;
  if (stops_at_once) device.given = [&](int) { stop = SIGTERM; };  // one step is made and saved
  TrainOptions options;
  options.stop = &stop;
  return run_on(device, options, config, folder, resume, files);
}

// Goes on with a run.
inline Ran go_on(const config::Config& config, const Path& folder, bool allow_change = false, bool own_config = false,
                 Observer* other = nullptr) {
  testing::WatchedDevice device(2);
  TrainOptions options;
  options.allow_change = allow_change;
  options.own_config = own_config;
  if (other) options.observers = {other};
  return run_on(device, options, config, folder, true);
}

// Whether one of the sentences has all of these parts.
inline bool any_has(const std::vector<std::string>& sentences, std::initializer_list<std::string_view> parts) {
  return std::ranges::any_of(sentences, [&](const std::string& s) { return static_cast<bool>(says(s, parts)); });
}
inline bool any_has(const std::vector<std::string>& sentences, std::string_view part) {
  return any_has(sentences, {part});
}

inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

inline Path checkpoint(const Path& run, std::int64_t step) { return run / "checkpoints" / io::checkpoint_name(step); }

// Every byte of parameters and moments in a checkpoint.
inline std::string tensors(const Path& run, std::int64_t step) {
  const Path folder = checkpoint(run, step);
  return real_files().read(folder / "model.safetensors") + real_files().read(folder / "optimizer.safetensors");
}

// What a run left, but for its checkpoint of a step.
inline void copy_without(std::int64_t step, const Path& from, const Path& to) {
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(checkpoint(to, step));
}

inline std::vector<double> losses(const Recorder& r) {
  std::vector<double> out;
  for (const StepMetrics& m : r.steps) out.push_back(m.loss);
  return out;
}

// Runs it whole, and again step by step, each in a run of its own: to the same bits. Returns the whole run.
inline Ran expect_the_same_in_parts(const config::Config& config, const Path& folder) {
  const Ran whole = run(config, folder / "whole");
  const auto steps = static_cast<std::int64_t>(whole.seen.steps.size());
  EXPECT_EQ(steps, config.train.max_steps);
  std::vector<double> seen;
  for (std::int64_t i = 1; i <= steps; ++i) {
    const Ran part = run(config, folder / "parts", true, real_files(), i < steps);
    EXPECT_EQ(part.seen.steps.size(), 1u);
    EXPECT_EQ(part.result.outcome, i < steps ? Outcome::stopped : Outcome::finished);
    for (const double loss : losses(part.seen)) seen.push_back(loss);
  }
  EXPECT_EQ(seen, losses(whole.seen));
  EXPECT_TRUE(tensors(folder / "whole", steps) == tensors(folder / "parts", steps));
  return whole;
}

}  // namespace redline::train
