// A run small enough for a test: seconds for a hundred steps, but with everything in it.
#pragma once

#include <string>
#include <vector>

#include "config/load.h"
#include "model/family.h"
#include "train/trainer.h"

namespace redline::testing {

inline const std::vector<std::string> kTinyRun = {
    "model.layers=2",      "model.hidden=32",      "model.heads=2",    "model.head_dim=16",    "model.ffn=48",
    "model.dropout=0.1",   "train.batch_size=2",   "train.seq_len=64", "train.accumulate=2",   "train.max_steps=40",
    "train.eval_every=10", "train.eval_batches=2", "optim.lr=1e-2",    "optim.warmup_steps=4", "checkpoint.every=5",
    "checkpoint.keep=2",   "data.max_segments=8"};

inline config::Config tiny_run(std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), kTinyRun.begin(), kTinyRun.end());
  return config::load({.file = "", .preset = "quick", .overrides = overrides}, model::settle_family);
}

// Remembers all it was told. Whether a disk keeps up is the machine's: under a storm of processes any run may say that
// it did not, so that is no warning here.
struct Recorder final : train::Observer {
  std::vector<train::StepMetrics> steps;
  std::vector<std::int64_t> saves;
  std::vector<std::string> notes, warnings, endings, slow_disks;
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
          (slow ? slow_disks : warnings).push_back(e.text);
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

}  // namespace redline::testing
