// Runs a training: its folder on rank 0, with its lock, its files and its checkpoints, and the other ranks, which write
// their parts of checkpoints into it; and train(), which puts a step loop and a folder together.
#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <future>
#include <thread>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/words.h"
#include "device/device.h"
#include "io/checkpoint_folder.h"
#include "io/communicator.h"
#include "io/json.h"
#include "io/new_folder.h"
#include "model/lowering.h"
#include "model/state_files.h"
#include "train/checkpoint.h"
#include "train/memory_advice.h"
#include "train/recipe.h"
#include "train/run_folder.h"
#include "train/step_loop.h"

namespace redline::train {
namespace {

constexpr double kJump = 10, kShortWait = 0.5;  // seconds

struct FolderTaken : UserError {
  using UserError::UserError;
};

const config::Config* pointer_to(const std::optional<config::Config>& config) { return config ? &*config : nullptr; }

// The guard's state where batches are counted in a new way: earlier draws are forgotten.
GuardState counted_anew(const RunState& state) {
  return {.drawn = state.step, .skipped = state.guard.skipped, .rollbacks = state.guard.rollbacks};
}

// Whether an evaluation covers other held-out tokens.
bool evaluates_others(const config::Config& before, const config::Config& now) {
  const auto extent = [](const config::Config& c) {
    const config::Train& t = c.train;
    const bool batches = t.eval_tokens == 0;
    return std::tuple(t.eval_tokens, t.seq_len, batches ? t.eval_batches : 0, batches ? t.batch_size : 0,
                      batches ? c.data.max_segments : 0);
  };
  return extent(before) != extent(now);
}

// Returns the problem of the first rank that has one, on every rank; empty where no rank has.
std::string agree_on(io::Communicator& ranks, const std::string& problem) {
  std::string first;
  const std::vector<std::string> all = ranks.gather(problem);
  for (std::size_t rank = 0; rank < all.size() && first.empty(); ++rank)
    if (!all[rank].empty()) first = rank == 0 ? all[rank] : fmt::format("rank {}: {}", rank, all[rank]);
  return ranks.broadcast(first);
}

// Called by all ranks once rank 0 has made the folder. A UserError names the first rank that does not see it.
void require_shared_folder(io::Communicator& ranks, const Path& folder, FileSystem& files) {
  const Path path = folder / kRunConfig;
  const auto read = [&] { return files.exists(path) ? files.read(path) : ""; };
  const std::string first = ranks.broadcast(ranks.rank() == 0 ? read() : "");
  const bool same = first == read();  // only now: rank 0 has made the folder before it spoke
  const std::string problem = agree_on(ranks, same ? "" : fmt::format("there is another {} here, or none", kRunConfig));
  if (!problem.empty())
    fail_user(
        "{} is not the same folder on every rank ({}): ranks write their checkpoints together; choose an --out on a "
        "file system that all of them share",
        folder.string(), problem);
}

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

  void take(model::Engine& engine);  // the state as it is, once nothing of the save before is being read

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
  std::optional<model::SavedState> state_;  // from the first save on
  bool beside_ = false;                     // training goes on while it is read
  std::future<Written> saving_;             // reads the state: declared after it, so that it ends first
};

// The keeper of a run on rank 0.
class RunFolder final : public Keeper {
 public:
  RunFolder(const TrainOptions& options, FileSystem& files);  // checks the folder

  // Loads the newest whole checkpoint, or that of options.from_step and no other. The loop tries one after the other,
  // newest first, until the tensors are good; damaged ones are warnings. Returns nothing without `resume`, or where the
  // run has saved none. A run whose checkpoints are all unreadable is a UserError: starting over would destroy them.
  std::optional<Path> resume(StepLoop& loop);

  // Writes the first files: config.toml as it is resolved now, so that the next resume knows the settings of this one,
  // the tokenizer of the documents, their count where one was made, and the folder of checkpoints.
  void begin(const StepLoop& loop);

  void leave_tidy();  // of a run without steps to make: removes what a kill left, or warns

  void tell(const Event& event) override;
  // Checks each second that the folder is there and still locked by this run, and whether the clock has jumped.
  // Deleted files are made anew with a warning, and then the state must be saved. A folder that another process has
  // taken is a UserError.
  bool lost() override;
  bool saves() const override { return true; }
  // Takes a snapshot of the state, and a thread writes it. No other save may be under way. Where there was no room for
  // a snapshot, training waits for the save, with a note.
  void save(model::Engine& engine, const RunState& state, double began) override;
  // A save that failed is a warning, and an error where checkpoint.on_error says stop or it is the last.
  std::optional<SaveOutcome> collect_save(Wait wait) override;
  void let_go() override;
  std::optional<RunState> go_back(StepLoop& loop, std::int64_t step) override;

 private:
  std::string take_up(const Path& checkpoint, StepLoop& loop);
  struct Restored {
    bool new_order = false, other_batches = false, other_losses = false;
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
  void wait_for_the_disk();
  SaveOutcome collect(bool must_succeed);

  const TrainOptions& options_;
  FileSystem& files_;
  Path checkpoints_;
  RunTokens tokens_;
  std::string epoch_;  // the text of kEpochFile; empty: nothing had to be counted
  std::optional<io::FileLock> lock_;
  bool begun_ = false, loss_is_known_ = false, wait_is_known_ = false, standstill_is_known_ = false;
  std::vector<Event>* held_ = nullptr;  // notes and warnings about a checkpoint that may yet be passed over
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
  bool other_losses = false;   // held-out losses cannot be compared with those before it
  std::string words() const;
  static TakenUp read(const std::string& words);
};

// The keeper of a run on ranks other than 0: it writes this rank's part of every checkpoint. Rank 0 says which
// checkpoint to load.
class RankFolder final : public Keeper {
 public:
  RankFolder(const TrainOptions& options, FileSystem& files);

  // Follows rank 0 until it has found a checkpoint that every rank can load, or none.
  std::optional<Path> resume(StepLoop& loop);
  void tell(const Event& event) override;
  bool saves() const override { return true; }
  void save(model::Engine& engine, const RunState& state, double began) override;
  std::optional<SaveOutcome> collect_save(Wait wait) override;
  void let_go() override;
  std::optional<RunState> go_back(StepLoop& loop, std::int64_t step) override;

 private:
  RunState state_of(const TakenUp& taken) const;
  void load(const Path& checkpoint, StepLoop& loop);
  SaveOutcome collect(bool must_succeed);

  const TrainOptions& options_;
  FileSystem& files_;
  CheckpointWriter writer_;
};

void CheckpointWriter::take(model::Engine& engine) {
  if (!state_) state_.emplace(engine);
  beside_ = engine.has_snapshot();
  state_->take();
}

void CheckpointWriter::write(CheckpointContent content, double began, std::function<std::string()> afterwards) {
  const double held = steady_seconds() - began;
  saving_ = std::async(std::launch::async, [this, began, held, content = std::move(content),
                                            afterwards = std::move(afterwards)] {
    const auto read = [this](std::span<const model::StateTensor> tensors, const model::TakeBytes& take) {
      state_->read(tensors, take);
    };
    if (ranks_)
      write_checkpoint(files_, checkpoints_, content, read, *ranks_);
    else
      write_checkpoint(files_, checkpoints_, content, read);
    const std::string problem = afterwards ? afterwards() : "";
    const double seconds = steady_seconds() - began;
    return Written{{content.step, checkpoints_ / io::checkpoint_name(content.step), seconds, beside_ ? held : seconds},
                   problem};
  });
  if (!beside_) saving_.wait();
}

bool CheckpointWriter::over() const { return saving_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

RunFolder::RunFolder(const TrainOptions& options, FileSystem& files)
    : options_(options),
      files_(files),
      checkpoints_(checkpoints_of(options.folder)),
      writer_(files, checkpoints_, options.team.saving) {
  check_folder(options, files);
}

void RunFolder::let_go() {
  if (!writer_.busy()) return;
  try {
    collect(true);
  } catch (const std::exception& e) {  // the run has ended by another error, which says more
    log::warn("{}", e.what());
  }
}

void RunFolder::tell(const Event& event) {
  if (held_ && (std::holds_alternative<Note>(event) || std::holds_alternative<Warning>(event)))
    return held_->push_back(event);
  for (Observer* o : options_.observers) o->on(event);
}

std::optional<Path> RunFolder::resume(StepLoop& loop) {
  if (!options_.resume) return std::nullopt;
  // Before the newest is chosen: the process that made the run may still be saving it.
  if (!options_.dry_run && holds_run(files_, options_.folder)) lock();
  std::string newest_problem;
  const auto damaged = [&](const io::SkippedCheckpoint& passed) {
    if (newest_problem.empty()) newest_problem = passed.problem;
    tell(Warning{io::in_words(passed)});
  };
  const auto use = [&](const io::FoundCheckpoint& c) { return take_up(c.folder, loop); };
  const std::optional<io::FoundCheckpoint> found =
      io::newest_whole_checkpoint(files_, checkpoints_, damaged, use, options_.from_step);
  if (found) return found->folder;
  if (others()) others()->broadcast(TakenUp{}.words());
  if (options_.from_step)
    fail_user("--from-step {}: that checkpoint cannot be used ({}); take another, or none for the newest whole one",
              *options_.from_step, newest_problem);
  if (!newest_problem.empty())
    fail_user("none of the checkpoints in {} can be used ({}); move that folder away to start from the beginning",
              checkpoints_.string(), newest_problem);
  return std::nullopt;
}

// The run stands where the checkpoint left it, unless what is returned says what is wrong with it. Then the next one
// takes the place of all that was loaded, and what was said of this one is not told.
std::string RunFolder::take_up(const Path& checkpoint, StepLoop& loop) {
  if (std::string problem = missing_from_checkpoint(files_, checkpoint, loop.lowered().state); !problem.empty())
    return problem;
  const std::optional<config::Config> config = config_of_checkpoint(files_, checkpoint);
  const config::Config* const before = pointer_to(config);
  std::vector<Event> held;
  const auto tell_held = [&] {
    held_ = nullptr;
    for (const Event& event : held) tell(event);
  };
  held_ = &held;
  std::string problem;
  try {
    const Restored as = restore(checkpoint, before, loop);
    if (others())
      others()->broadcast(TakenUp{checkpoint.string(), as.new_order, as.other_batches, as.other_losses}.words());
    problem = load(checkpoint, before, loop);
    if (others()) problem = agree_on(*others(), problem);
  } catch (...) {
    tell_held();
    throw;
  }
  if (!problem.empty()) held.clear();
  tell_held();
  return problem;
}

std::string RunFolder::load(const Path& checkpoint, const config::Config* before, StepLoop& loop) {
  if (!loop.trains()) return io::checkpoint_problem(files_, checkpoint, loop.tell_loading());
  lock();
  loop.make_engine();
  try {
    loop.load_checkpoint(checkpoint, before);
    return {};
  } catch (const std::exception&) {
    // Changed bytes can look wrong in many ways before the hash is known: what the manifest says is what to tell. Where
    // it has nothing to say the checkpoint is whole and does not fit this run, or the device failed.
    std::string problem = io::checkpoint_problem(files_, checkpoint, loop.tell_loading());
    if (problem.empty()) throw;
    return problem;
  }
}

// The configuration may have another batch or other data than the checkpoint, where that is allowed. A note says every
// change and its effect on the state.
RunFolder::Restored RunFolder::restore(const Path& checkpoint, const config::Config* before, StepLoop& loop) {
  const SettingChanges changes = before ? compare_with(*before, checkpoint, options_, files_) : SettingChanges{};
  RunState state = read_run_state(files_, checkpoint);
  if (state.guard.good && !files_.exists(checkpoints_ / io::checkpoint_name(*state.guard.good)))
    state.guard.good.reset();
  bool anew = loop.data_changed(state, checkpoint) || changes.new_order;
  for (const std::string& change : changes.sentences) tell(Note{change});
  if (before && evaluates_others(*before, options_.config)) {
    tell(Note{"held-out losses from here on cover other tokens than those before"});
    loop.losses_are_others();
  }
  const bool other_losses = loop.forgets_losses();
  if (changes.allowed) state.guard = counted_anew(state);
  if (!anew) try {
      state.loader = read_loader_state(files_, checkpoint);
      loop.restore(state);
    } catch (const UserError& e) {
      if (!options_.allow_change)
        fail_user("{}; --allow-change goes on with the order of the data begun anew", e.what());
      tell(Note{e.what()});
      anew = true;
    }
  if (anew) {
    state.loader = {};
    state.guard = counted_anew(state);
    loop.restore(state);
  }
  if (anew || changes.allowed)
    tell(Note{fmt::format("kept: parameters, moments, step {} and its {}{}", state.step, counted(state.tokens, "token"),
                          anew ? "; begun anew: the order of the data" : ", and the place in the data")});
  if (before) {
    const std::string change = schedule_change(*before, options_.config, state.step, loop.batches_of_epoch());
    if (!change.empty()) tell(Note{change});
  }
  return {anew, changes.allowed, other_losses};
}

void RunFolder::begin(const StepLoop& loop) {
  tokens_ = run_tokens(files_, options_.config, loop.documents());
  if (const auto& counted = loop.counted_epoch()) epoch_ = to_text(*counted);
  make();
  if (others()) require_shared_folder(*others(), options_.folder, files_);
  if (options_.from_step) leave_after(*options_.from_step);
}

void RunFolder::leave_tidy() {
  try {
    io::clean_leftovers(files_, checkpoints_);
  } catch (const std::exception& e) {
    tell(Warning{fmt::format("what a kill left in {} stays: {}", checkpoints_.string(), e.what())});
  }
}

void RunFolder::leave_after(std::int64_t step) {
  const std::vector<std::int64_t> left = io::leave_checkpoints_after(files_, checkpoints_, step);
  if (left.empty()) return;
  tell(
      Note{fmt::format("the run goes on from step {}: newer checkpoints ({} {}) are called step_N.left from here on, "
                       "and each goes once the run has saved that step or a later one again",
                       step, left.size() == 1 ? "step" : "steps", fmt::join(left, ", "))});
}

std::optional<RunState> RunFolder::go_back(StepLoop& loop, std::int64_t step) {
  if (writer_.busy()) collect(false);
  // A save that failed has had its warning; the one before it is as good.
  while (step > 0 && !files_.exists(checkpoints_ / io::checkpoint_name(step))) {
    const std::vector<io::FoundCheckpoint> found = io::list_checkpoints(files_, checkpoints_);
    const auto older = std::ranges::find_if(found, [&](const io::FoundCheckpoint& c) { return c.step < step; });
    step = older == found.end() ? 0 : older->step;
  }
  const Path checkpoint = checkpoints_ / io::checkpoint_name(step);
  if (others()) others()->broadcast(TakenUp{step == 0 ? "" : checkpoint.string()}.words());
  if (step == 0) return {};
  RunState state = read_run_state(files_, checkpoint);
  state.loader = read_loader_state(files_, checkpoint);
  const std::optional<config::Config> before = config_of_checkpoint(files_, checkpoint);
  loop.load_checkpoint(checkpoint, pointer_to(before));
  leave_after(step);
  return state;
}

// A second process that trained into the folder would mix its rows and checkpoints with this one's.
void RunFolder::lock() {
  if (lock_) return;
  const Path file = options_.folder / ".lock";
  // Whoever looks whether a run is running (report/run_record.h) has its lock for a moment.
  lock_.emplace(file, io::FileLock::IfBusy::leave);
  for (int tries = 20; lock_->busy() && tries > 0; --tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    lock_.emplace(file, io::FileLock::IfBusy::leave);
  }
  if (lock_->held()) return;
  if (lock_->busy()) {
    lock_.reset();
    throw FolderTaken(
        fmt::format("{}: another process is training into this folder; wait for it, stop it, or choose another --out",
                    options_.folder.string()));
  }
  log::warn("{} cannot be locked ({}): nothing keeps a second run out of this folder", file.string(),
            std::strerror(lock_->why_not()));
}

void RunFolder::make() {
  files_.create_folders(options_.folder);
  lock();
  if (!options_.resume && !begun_) check_folder(options_, files_);  // another may have begun while this one loaded
  if (!begun_ && options_.took_folder) options_.took_folder();
  const auto keep = [&](const Path& path, const std::string& text) {
    if (!files_.exists(path) || files_.read(path) != text) files_.replace(path, text);
  };
  keep(options_.folder / kRunConfig, sealed_text(as_kept(options_.config)));
  if (!epoch_.empty()) keep(options_.folder / kEpochFile, epoch_);
  keep_tokenizer(files_, options_.folder, tokens_.kept);
  io::prepare_checkpoints(files_, checkpoints_);
  if (std::exchange(begun_, true)) return;
  looked_at_ = steady_seconds();
  clock_offset_ = options_.wall_clock() - looked_at_;
}

bool RunFolder::lost() {
  const double now = steady_seconds();
  if (now - looked_at_ < options_.between_looks) return false;
  looked_at_ = now;
  warn_of_jumps(now);
  return made_anew();
}

bool RunFolder::made_anew() {
  const bool gone = !files_.exists(options_.folder / kRunConfig) || !files_.exists(checkpoints_);
  return (gone || !lock_ || !lock_->in_place()) && make_anew(gone);
}

void RunFolder::warn_of_jumps(double now) {
  const double offset = options_.wall_clock() - now, jump = offset - std::exchange(clock_offset_, offset);
  if (std::abs(jump) < kJump) return;
  tell(Warning{
      fmt::format("the machine's clock jumped by {:+.0f} s, or the machine slept: times of day in the run's files "
                  "jump with it, the times of steps do not",
                  jump)});
}

// Where nothing can be made the run goes on: perhaps it can be later.
bool RunFolder::make_anew(bool gone) {
  const std::string folder = options_.folder.string();
  const auto warn_once = [&](const std::exception& e) {
    if (!std::exchange(loss_is_known_, true))
      tell(Warning{
          fmt::format("{} is gone and cannot be made anew ({}): nothing can be saved until it can", folder, e.what())});
    return false;
  };
  if (writer_.busy()) writer_.wait();  // what is made anew is cleaned of leftovers first
  lock_.reset();
  try {
    make();
  } catch (const FolderTaken& e) {
    fail_user("the .lock of {} was deleted under the run, which cannot go on there: {}", folder, e.what());
  } catch (const std::exception& e) {
    return warn_once(e);
  }
  loss_is_known_ = false;
  tell(Warning{
      gone ? fmt::format("{} was deleted or moved under the run: it is made anew and the run is saved there now; "
                         "its metrics and events go on with the next --resume",
                         folder)
           : fmt::format("the .lock of {} was deleted under the run: it is locked again", folder)});
  return gone;
}

void RunFolder::save(model::Engine& engine, const RunState& state, double began) {
  if (begun_) made_anew();
  tell(BeforeCheckpoint{});
  if (!engine.has_snapshot() && !std::exchange(standstill_is_known_, true))
    tell(
        Warning{fmt::format("there is no room for a copy of the state ({}) on the device, nor in the host's memory: "
                            "training stands still while checkpoints are written",
                            in_bytes(model::snapshot_bytes(engine.lowered(), program::Memory::host).all()))});
  writer_.take(engine);
  const config::Config config = as_kept(options_.config);
  saving_step_ = state.step;
  writer_.write(
      checkpoint_content(engine, config, state, tokens_), began,
      [this, settings = config.checkpoint, step = state.step, best = state.ends.best_step, good = state.guard.good] {
        const std::string problem = best == step ? io::link_best(files_, checkpoints_, best) : "";
        io::prune_checkpoints(files_, checkpoints_, settings.keep, settings.keep_every, step,
                              {best, good.value_or(best)});
        return problem;
      });
}

// Checkpoints stand at the steps where they are due: training waits for a disk that does not keep up, and says so.
void RunFolder::wait_for_the_disk() {
  const double began = steady_seconds();
  writer_.wait();
  const double waited = steady_seconds() - began;
  if (waited < kShortWait || std::exchange(wait_is_known_, true)) return;
  tell(Warning{
      fmt::format("the checkpoint of step {} was still being written when the next one was due: training waited "
                  "{:.1f} s for it, and will again; a larger checkpoint.every or checkpoint.minutes, or a faster "
                  "disk, mends that",
                  saving_step_, waited)});
}

std::optional<Keeper::SaveOutcome> RunFolder::collect_save(Wait wait) {
  if (!writer_.busy() || (wait == Wait::no && !writer_.over())) return {};
  if (wait == Wait::before_next) wait_for_the_disk();
  return collect(wait == Wait::at_end);
}

Keeper::SaveOutcome RunFolder::collect(bool must_succeed) {
  const auto go_on = [&](const std::exception& e) {
    if (must_succeed || options_.config.checkpoint.on_error == "stop") throw;
    tell(
        Warning{fmt::format("the checkpoint of step {} was not written: {}. Training goes on, and the next one that is "
                            "due is tried (checkpoint.on_error)",
                            saving_step_, e.what())});
  };
  try {
    const CheckpointWriter::Written written = writer_.collect();
    if (!written.problem.empty()) tell(Warning{written.problem});
    tell(written.saved);
    return {true, written.saved.seconds};
  } catch (const MachineError& e) {
    go_on(e);
  } catch (const UserError& e) {
    go_on(e);
  }
  return {};
}

std::string TakenUp::words() const {
  return io::Json{{"checkpoint", checkpoint},
                  {"new_order", new_order},
                  {"other_batches", other_batches},
                  {"other_losses", other_losses}}
      .dump();
}

TakenUp TakenUp::read(const std::string& words) {
  const io::Json json = io::Json::parse(words);
  return {json.at("checkpoint"), json.at("new_order"), json.at("other_batches"), json.at("other_losses")};
}

RankFolder::RankFolder(const TrainOptions& options, FileSystem& files)
    : options_(options), files_(files), writer_(files, checkpoints_of(options.folder), options.team.saving) {}

void RankFolder::let_go() {
  if (!writer_.busy()) return;
  try {
    collect(true);
  } catch (const std::exception& e) {  // the run has ended by another error, which says more
    if (options_.team.warn) options_.team.warn(e.what());
  }
}

void RankFolder::tell(const Event& event) {
  hear(event, [&](const Warning& w) {
    if (options_.team.warn) options_.team.warn(w.text);
  });
}

// The state as rank 0 has changed it.
RunState RankFolder::state_of(const TakenUp& taken) const {
  const Path checkpoint = taken.checkpoint;
  RunState state = read_run_state(files_, checkpoint);
  if (taken.other_batches || taken.new_order) state.guard = counted_anew(state);
  if (!taken.new_order) state.loader = read_loader_state(files_, checkpoint);
  return state;
}

std::optional<Path> RankFolder::resume(StepLoop& loop) {
  if (!options_.resume) return std::nullopt;
  io::Communicator& ranks = *options_.team.communicator;
  for (;;) {
    const TakenUp taken = TakenUp::read(ranks.broadcast(""));
    if (taken.checkpoint.empty()) return std::nullopt;
    std::string problem;
    try {
      if (taken.other_losses) loop.losses_are_others();
      loop.restore(state_of(taken));
      if (loop.trains()) {
        loop.make_engine();
        load(taken.checkpoint, loop);
      }
    } catch (const std::exception& e) {
      problem = e.what();
    }
    if (agree_on(ranks, problem).empty()) return taken.checkpoint;
  }
}

void RankFolder::load(const Path& checkpoint, StepLoop& loop) {
  const std::optional<config::Config> before = config_of_checkpoint(files_, checkpoint);
  loop.load_checkpoint(checkpoint, pointer_to(before));
}

void RankFolder::save(model::Engine& engine, const RunState& state, double began) {
  writer_.take(engine);
  writer_.write(checkpoint_content(engine, as_kept(options_.config), state), began);
}

std::optional<Keeper::SaveOutcome> RankFolder::collect_save(Wait wait) {
  if (!writer_.busy() || (wait == Wait::no && !writer_.over())) return {};
  return collect(wait == Wait::at_end);
}

// A save that fails on one rank fails on all, and rank 0 warns of it.
Keeper::SaveOutcome RankFolder::collect(bool must_succeed) {
  try {
    return {true, writer_.collect().saved.seconds};
  } catch (const std::exception&) {
    if (must_succeed || options_.config.checkpoint.on_error == "stop") throw;
  }
  return {};
}

std::optional<RunState> RankFolder::go_back(StepLoop& loop, std::int64_t) {
  if (writer_.busy()) collect(false);
  const TakenUp taken = TakenUp::read(options_.team.communicator->broadcast(""));
  if (taken.checkpoint.empty()) return {};
  RunState state = state_of(taken);
  load(taken.checkpoint, loop);
  return state;
}

// The same steps on a rank that does not lead, without a folder or events of its own.
TrainResult follow_rank_0(const TrainOptions& options, device::Device& device, FileSystem& files) {
  RankFolder folder(options, files);
  StepLoop loop(options, device, files, folder);
  if (!folder.resume(loop)) loop.load_start();
  if (!loop.trains()) return {options.dry_run ? Outcome::dry_run : Outcome::already_finished, loop.step(), {}};
  loop.require_memory();
  require_shared_folder(*options.team.communicator, options.folder, files);
  return loop.run();
}

}  // namespace

// A run that cannot start leaves no file: weights of a checkpoint or of model.init_from are in memory before
// anything is written.
TrainResult train(const TrainOptions& options, device::Device& device, FileSystem& files) {
  REDLINE_CHECK(!options.config.train.automatic_batch_size, "train.batch_size is \"auto\" still");
  if (!options.team.leads()) return follow_rank_0(options, device, files);
  RunFolder folder(options, files);
  std::optional<StepLoop> made;
  std::optional<Path> checkpoint;
  try {
    made.emplace(options, device, files, folder);
    checkpoint = folder.resume(*made);
    if (!checkpoint) made->load_start();
  } catch (const Interrupted&) {
    folder.tell(Note{fmt::format("stopped by {} while {}; nothing was written", options.stopped_by(),
                                 made ? "weights were loaded" : "data.train was counted")});
    return {Outcome::stopped, made ? made->step() : 0, {}};
  }
  StepLoop& loop = *made;
  if (loop.trains()) {
    loop.require_memory();
    folder.begin(loop);
  }
  const RunHeader header = loop.header();
  const std::string name = options.folder.string();
  if (checkpoint)
    folder.tell(Note{fmt::format("resuming after step {} from {}", loop.step(), checkpoint->string())});
  else if (options.resume)
    folder.tell(Note{fmt::format("nothing to resume in {}: starting from the beginning", name)});
  folder.tell(Started{header});
  for (const std::string& sentence : loop.notes_on_data()) folder.tell(Note{sentence});
  for (const std::string& sentence : loop.warnings_on_data()) folder.tell(Warning{sentence});
  if (options.config.train.eval_batches > 0)
    folder.tell(Warning{fmt::format(
        "train.eval_batches = {}: held-out losses cover the tokens of so many batches, and cannot be compared with "
        "those of another batch or number of ranks; train.eval_tokens covers the same tokens for any of them",
        options.config.train.eval_batches)});
  const model::Fp8Products fp8 = model::fp8_products(options.config);
  if (!header.fp8.empty() && fp8.taken.empty() && !fp8.head)
    folder.tell(Warning{"precision.matmul is fp8, and no product takes it here: the run goes on in bf16"});
  for (const Doubt& doubt : doubtful_settings(options.config, header.steps, header.sharing.groups())) {
    if (doubt.hint)
      folder.tell(Note{doubt.sentence});
    else
      folder.tell(Warning{doubt.sentence});
  }
  if (options.dry_run) {
    folder.tell(Note{checkpoints_in_words(model::state_bytes(loop.lowered().state),
                                          checkpoints_kept(options.config.checkpoint, header.steps))});
    const dist::Sharing& sharing = options.team.sharing;
    const std::int64_t here = header.memory->device.total;  // another rank may have more
    const std::int64_t needed =
        sharing.alone() ? here : std::max(here, memory_needed(options.config, device.kind(), sharing));
    const std::string problem = memory_problem(options.config, needed, device, sharing, options.team.ranks_here);
    if (!problem.empty()) folder.tell(Warning{problem});
    return {Outcome::dry_run, loop.step(), {}};
  }
  if (loop.trains()) return loop.run();
  folder.leave_tidy();
  folder.tell(Finished{
      fmt::format("{}: nothing is left to do after {}{}", name, counted(header.steps, "step"), loop.nothing_left())});
  return {Outcome::already_finished, loop.step(), {}};
}

}  // namespace redline::train
