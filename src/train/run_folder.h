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

// The guard's state where batches are counted in a new way: earlier draws are forgotten.
GuardState counted_anew(const RunState& state);

// A UserError where the folder holds a run and `resume` is off, or where a setting differs that may not change
// (train/resume_settings.h). The run's settings are those of its newest checkpoint, or of its config.toml where it has
// none.
void check_folder(const TrainOptions& options, FileSystem& files);

class RunFolder final : public Keeper {
 public:
  RunFolder(const TrainOptions& options, FileSystem& files);  // checks the folder
  ~RunFolder() override;                                      // waits for a save that is under way

  // Loads the newest whole checkpoint, or that of options.from_step and no other. The loop tries one after the other,
  // newest first, until the tensors are good; damaged ones are warnings. Returns nothing without `resume`, or where the
  // run has saved none. A run whose checkpoints are all unreadable is a UserError: starting over would destroy them.
  std::optional<Path> resume(StepLoop& loop);

  // Writes the first files: config.toml as it is resolved now, so that the next resume knows the settings of this one,
  // the tokenizer of the documents, and the folder of checkpoints.
  void begin(const data::Corpus& documents);

  void leave_tidy();  // of a run without steps to make: removes what a kill left, or warns

  void tell(const Event& event) override;
  // Checks once a second that the folder is there and still locked by this run, and whether the clock has jumped.
  // Deleted files are told and made anew, and then the state must be saved. A folder that another process has taken is
  // a UserError.
  bool lost() override;
  void get_ready(model::Engine& engine) override;
  // Takes a snapshot of the state, and a thread writes it. No other save may be under way. Where there is no room for a
  // snapshot, training waits for the save, with a note.
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
  // The ranks that follow this one; null: alone.
  io::Communicator* others() const { return options_.team.communicator; }
  void leave_after(std::int64_t step);  // leaves newer checkpoints out of the run
  void lock();
  void make();  // the first files
  void tell_of_jumps(double now);
  bool made_anew();  // makes deleted files anew; false: none was deleted
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
