// The folder of a run: its lock, its config.toml, its checkpoints and the observers that write the rest. A new run
// begins in an empty one, and the same run goes on in its own.
#pragma once

#include <future>
#include <optional>
#include <string>

#include "io/file_lock.h"
#include "model/snapshot.h"
#include "train/resume_settings.h"
#include "train/run_tokens.h"
#include "train/step_loop.h"

namespace redline::train {

inline constexpr const char* kRunConfig = "config.toml";
inline constexpr const char* kCheckpoints = "checkpoints";

// Whether a folder holds a run (or the beginnings of one).
bool holds_run(FileSystem& files, const Path& folder);

// The configuration of the run in `folder`, as it was resolved when it started.
config::Config read_run_config(FileSystem& files, const Path& folder);

// The configuration that a checkpoint was made with; those of other programs have none.
std::optional<config::Config> config_of_checkpoint(FileSystem& files, const Path& checkpoint);

// The guard's state where batches are counted otherwise than before: a run goes back to none of them.
GuardState counted_anew(const RunState& state);

// A UserError when the folder holds a run and `resume` is off, or when the configuration differs from the run's in what
// may not change (train/resume_settings.h). The run's settings are the ones of its newest checkpoint, and of its
// config.toml where there is none.
void check_folder(const TrainOptions& options, FileSystem& files);

class RunFolder final : public Keeper {
 public:
  RunFolder(const TrainOptions& options, FileSystem& files);  // checks the folder
  ~RunFolder() override;                                      // a save that is under way comes to its end

  // Goes on from the newest whole checkpoint, or from that of options.from_step and no other: the loop is given one
  // after the other, newest first, until nothing is wrong with the tensors. Damaged ones are told as warnings. Nothing
  // without `resume` or when the run has saved none. A UserError when it has saved some and none can be read: starting
  // over would destroy them.
  std::optional<Path> resume(StepLoop& loop);

  // The first that is written: config.toml as it is resolved now, so that the next resume knows what this one was told,
  // the tokenizer of its documents, and the place of the checkpoints.
  void begin(const data::Corpus& documents);

  void leave_tidy();  // for a run without a step to make: what a kill left goes, or is told where it cannot

  void tell(const Event& event) override;
  // Looks once a second whether the folder is still there and still this run's alone, and whether the clock has jumped:
  // what was deleted is told and made anew, and then the state is to be saved. A folder that another process has taken
  // meanwhile is a UserError.
  bool lost() override;
  void get_ready(model::Engine& engine) override;
  // Takes a snapshot of the state, which a thread writes; none may be under way. Where there is no room for a snapshot
  // it is waited for, and that is told.
  void save(model::Engine& engine, const RunState& state, double began) override;
  void before_update() override;
  // A save that failed is a warning, and an error where checkpoint.on_error says stop or it is the last.
  std::optional<SaveOutcome> settle(Settle which) override;
  std::optional<RunState> go_back(StepLoop& loop, std::int64_t step) override;

 private:
  struct Written {
    Saved saved;
    std::string problem;  // with the name of the best one
  };
  std::string take_up(const Path& checkpoint, StepLoop& loop);
  struct Restored {
    bool new_order = false, other_batches = false;
  };
  Restored restore(const Path& checkpoint, StepLoop& loop);
  std::string load(const Path& checkpoint, StepLoop& loop);
  io::Communicator* others() const { return options_.team.communicator; }  // ranks that follow; null: alone
  void leave_after(std::int64_t step);                                     // newer checkpoints are no longer the run's
  void lock();
  void make();  // what is written first
  void tell_of_jumps(double now);
  bool made_anew();  // what was deleted, if anything was
  bool make_anew(bool gone);
  void make_snapshot(model::Engine& engine);  // where there is none yet
  void wait_for_the_disk();
  SaveOutcome collect(bool must_succeed);

  const TrainOptions& options_;
  FileSystem& files_;
  Path checkpoints_;
  RunTokens tokens_;
  std::optional<io::FileLock> lock_;
  bool begun_ = false, told_of_loss_ = false, told_of_waiting_ = false;
  std::optional<model::Snapshot> snapshot_;
  std::future<Written> saving_;   // reads the snapshot: behind it, so that it ends first
  std::int64_t saving_step_ = 0;  // whose state that is
  double looked_at_ = 0;          // steady seconds
  double clock_offset_ = 0;       // of the wall clock from the steady one
};

}  // namespace redline::train
