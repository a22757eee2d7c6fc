// The keeper of a run on ranks other than 0: it writes this rank's part of every checkpoint. Rank 0 has the run's
// folder, and tells the others which checkpoint to load.
#pragma once

#include <future>
#include <optional>

#include "model/snapshot.h"
#include "train/step_loop.h"

namespace redline::train {

// Rank 0's message to the others when the run loads a checkpoint.
struct TakenUp {
  std::string checkpoint;      // empty: none
  bool new_order = false;      // the order of the data begins anew
  bool other_batches = false;  // batches are counted otherwise than in the checkpoint
  std::string words() const;
  static TakenUp read(const std::string& words);
};

// Returns the problem of the first rank that has one, on every rank; empty where no rank has.
std::string agree_on(io::Communicator& ranks, const std::string& problem);

class RankFolder final : public Keeper {
 public:
  RankFolder(const TrainOptions& options, FileSystem& files) : options_(options), files_(files) {}
  ~RankFolder() override;

  // Follows rank 0 until it has found a checkpoint that every rank can load, or none.
  std::optional<Path> resume(StepLoop& loop);
  void tell(const Event& event) override;
  void get_ready(model::Engine& engine) override;
  void save(model::Engine& engine, const RunState& state, double began) override;
  void before_update() override;
  std::optional<SaveOutcome> settle(Settle which) override;
  std::optional<RunState> go_back(StepLoop& loop, std::int64_t step) override;

 private:
  RunState state_of(const TakenUp& taken) const;
  SaveOutcome collect(bool must_succeed);

  const TrainOptions& options_;
  FileSystem& files_;
  std::optional<model::Snapshot> snapshot_;
  std::future<double> saving_;  // seconds; reads the snapshot: behind it, so that it ends first
};

// Called by all ranks once rank 0 has made the folder. A UserError names the first rank that does not see it.
void require_shared_folder(const TrainOptions& options, FileSystem& files);

}  // namespace redline::train
