// The folder of a run: its lock, its config.toml, its checkpoints and the observers that write the rest. A new run
// begins in an empty one, and the same run goes on in its own. Rank 0 has the folder; the other ranks write their parts
// of checkpoints into it.
#pragma once

#include <future>
#include <optional>
#include <string>

#include "data/tokenizer/tokenizer.h"
#include "io/new_folder.h"
#include "model/state_files.h"
#include "train/checkpoint.h"
#include "train/resume_settings.h"
#include "train/step_loop.h"
#include "train/trainer.h"

namespace redline::train {

inline constexpr const char* kRunConfig = "config.toml";
inline constexpr const char* kCheckpoints = "checkpoints";

// Whether a folder holds a run (or the beginnings of one).
bool holds_run(FileSystem& files, const Path& folder);

// The configuration of the run in `folder`, as it was resolved when it started.
config::Config read_run_config(FileSystem& files, const Path& folder);

// A UserError where the folder holds a run and `resume` is off, or where a setting differs that may not change
// (train/resume_settings.h). The run's settings are those of its newest checkpoint, or of its config.toml where it has
// none.
void check_folder(const TrainOptions& options, FileSystem& files);

// Writes the tokenizer's files to RUN/tokenizer, and removes those of another one.
void keep_tokenizer(FileSystem& files, const Path& run, const data::TokenizerFiles& tokenizer);

// Writes checkpoints from a snapshot of the state, one at a time, on a thread.
class CheckpointWriter {
 public:
  // `ranks`: those that write each checkpoint together; null: alone.
  CheckpointWriter(FileSystem& files, Path checkpoints, io::Communicator* ranks)
      : files_(files), checkpoints_(std::move(checkpoints)), ranks_(ranks) {}

  struct Written {
    Saved saved;
    std::string problem;  // of what came after it
  };

  // Makes the snapshot where there is none, and copies the state into it. True: it was made now.
  bool take(model::Engine& engine);
  // The first copy into new memory of the host takes ten times as long as the next ones, since the system clears pages
  // when they are touched: it is made before the first save. A card's spare memory is known after its first evaluation,
  // and needs no touch. Where a run has gone back there is a snapshot already, and it may be being written.
  bool get_ready(model::Engine& engine);
  bool beside() const { return snapshot_->where() != model::Snapshot::Where::nowhere; }  // training goes on meanwhile
  std::int64_t bytes() const { return snapshot_->bytes(); }
  void hold_update() {
    if (snapshot_) snapshot_->hold_update();
  }

  // Begins to write what take() took, and then calls `afterwards` on the thread, whose answer is Written::problem.
  void write(CheckpointContent content, double began, std::function<std::string()> afterwards = {});
  bool busy() const { return saving_.valid(); }  // its end was not collected
  bool over() const;
  void wait() const { saving_.wait(); }
  Written collect() { return saving_.get(); }  // waits; an error of the thread is thrown here

 private:
  FileSystem& files_;
  Path checkpoints_;
  io::Communicator* ranks_;
  std::optional<model::Snapshot> snapshot_;
  std::future<Written> saving_;  // reads the snapshot: declared after it, so that it ends first
};

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
  // Checks each second that the folder is there and still locked by this run, and whether the clock has jumped.
  // Deleted files are made anew with a warning, and then the state must be saved. A folder that another process has
  // taken is a UserError.
  bool lost() override;
  void get_ready(model::Engine& engine) override;
  // Takes a snapshot of the state, and a thread writes it. No other save may be under way. Where there is no room for a
  // snapshot, training waits for the save, with a note.
  void save(model::Engine& engine, const RunState& state, double began) override;
  void before_update() override;
  // A save that failed is a warning, and an error where checkpoint.on_error says stop or it is the last.
  std::optional<SaveOutcome> collect_save(Wait wait) override;
  std::optional<RunState> go_back(StepLoop& loop, std::int64_t step) override;

 private:
  std::string take_up(const Path& checkpoint, StepLoop& loop);
  struct Restored {
    bool new_order = false, other_batches = false;
  };
  // `before`: the checkpoint's configuration; those of other programs have none.
  Restored restore(const Path& checkpoint, const config::Config* before, StepLoop& loop);
  std::string load(const Path& checkpoint, const config::Config* before, StepLoop& loop);
  // The ranks that follow this one; null: alone.
  io::Communicator* others() const { return options_.team.communicator; }
  void leave_after(std::int64_t step);  // leaves newer checkpoints out of the run
  void lock();
  void make();  // the first files
  void warn_of_jumps(double now);
  bool made_anew();  // makes deleted files anew; false: none was deleted
  bool make_anew(bool gone);
  void warn_without_snapshot();
  void wait_for_the_disk();
  SaveOutcome collect(bool must_succeed);

  const TrainOptions& options_;
  FileSystem& files_;
  Path checkpoints_;
  RunTokens tokens_;
  std::optional<io::FileLock> lock_;
  bool begun_ = false, loss_is_known_ = false, wait_is_known_ = false;
  CheckpointWriter writer_;
  std::int64_t saving_step_ = 0;  // whose state is being written
  double looked_at_ = 0;          // steady seconds
  double clock_offset_ = 0;       // of the wall clock from the steady one
};

// Rank 0's message to the others when the run loads a checkpoint.
struct TakenUp {
  std::string checkpoint;      // empty: none
  bool new_order = false;      // the order of the data begins anew
  bool other_batches = false;  // batches are counted otherwise than in the checkpoint
  std::string words() const;
  static TakenUp read(const std::string& words);
};

// The keeper of a run on ranks other than 0: it writes this rank's part of every checkpoint. Rank 0 says which
// checkpoint to load.
class RankFolder final : public Keeper {
 public:
  RankFolder(const TrainOptions& options, FileSystem& files);
  ~RankFolder() override;

  // Follows rank 0 until it has found a checkpoint that every rank can load, or none.
  std::optional<Path> resume(StepLoop& loop);
  void tell(const Event& event) override;
  void get_ready(model::Engine& engine) override;
  void save(model::Engine& engine, const RunState& state, double began) override;
  void before_update() override;
  std::optional<SaveOutcome> collect_save(Wait wait) override;
  std::optional<RunState> go_back(StepLoop& loop, std::int64_t step) override;

 private:
  RunState state_of(const TakenUp& taken) const;
  void load(const Path& checkpoint, StepLoop& loop);
  SaveOutcome collect(bool must_succeed);

  const TrainOptions& options_;
  FileSystem& files_;
  CheckpointWriter writer_;
};

// Called by all ranks once rank 0 has made the folder. A UserError names the first rank that does not see it.
void require_shared_folder(io::Communicator& ranks, const Path& folder, FileSystem& files);

}  // namespace redline::train
