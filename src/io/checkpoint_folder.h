// A checkpoint on the disk: a folder step_00001000 with files and a manifest of their sizes and hashes. It is written
// under another name (step_00001000.partial), synced, read back and renamed. Only then may older ones go. train/ knows
// the meaning of the files.
//
// Names in a run's checkpoints/ folder:
//   step_N            a checkpoint
//   step_N.partial    a checkpoint that was being written or removed; it may be deleted
//   step_N.replaced   the old one of the same step while a new one takes its place. If a crash leaves it without a
//                     step_N beside it, it counts as the checkpoint of that step until the next write renames it.
//   best              a link to one of them; it is no checkpoint of its own
//   step_N.left       a whole checkpoint that is no longer the run's, since the run went back before it. It is removed
//                     once a checkpoint of that step or a later one is written.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "io/communicator.h"
#include "io/manifest.h"

namespace redline::io {

std::string checkpoint_name(std::int64_t step);                      // "step_00001000"
std::optional<std::int64_t> checkpoint_step(std::string_view name);  // the inverse; nothing for other names

// Called before a run's first step: problems with writing checkpoints (permissions, leftovers of others) are errors
// now, not after hours.
void prepare_checkpoints(FileSystem& files, const Path& parent);

// Tidies up after a kill: partial folders go, and a replaced one gets its name back unless the new one has taken it.
void clean_leftovers(FileSystem& files, const Path& parent);

// `fill` writes the files into the folder it is given and returns name -> XXH3-64 of each. The manifest, syncs, a
// read-back of every byte and the rename follow. Whatever fails, every checkpoint that was whole before still is.
void write_checkpoint(FileSystem& files, const Path& parent, std::int64_t step,
                      const std::function<std::map<std::string, std::uint64_t>(const Path& folder)>& fill);

// The same by several ranks on a shared file system; all of them call it. A failure of one rank is thrown on all: there
// as it is, elsewhere as a MachineError that names the rank.
struct SharedFill {
  // On rank 0, before any rank writes: makes the files.
  std::function<void(const Path& folder)> prepare;
  // On every rank: writes its own part of the files, synced and read back, and returns the stretches.
  std::function<std::map<std::string, FileHashes>(const Path& folder)> write;
};
void write_checkpoint(FileSystem& files, const Path& parent, std::int64_t step, Communicator& ranks,
                      const SharedFill& fill);

// Checks every file of the manifest against its size and hash. Returns one sentence that names the file and its problem
// (missing, truncated, changed), or the problem of the manifest itself; empty: there is none. Every byte is read:
// `progress` hears how many so far, and an exception from it ends the reading.
using ReadingProgress = std::function<void(std::uint64_t done, std::uint64_t of)>;
std::string checkpoint_problem(FileSystem& files, const Path& folder, const ReadingProgress& progress = {});

struct FoundCheckpoint {
  std::int64_t step = 0;
  Path folder;
};
// Newest first, whole or not; one for each step. Neither this nor newest_whole_checkpoint() changes anything on the
// disk: another process may be writing.
std::vector<FoundCheckpoint> list_checkpoints(FileSystem& files, const Path& parent);
// A checkpoint that is not whole, its problem, and the next older one, which is tried instead; nothing where it was the
// last.
struct SkippedCheckpoint {
  FoundCheckpoint checkpoint;
  std::string problem;
  std::optional<FoundCheckpoint> instead;
};
std::string in_words(const SkippedCheckpoint& passed);
// The newest whole checkpoint. Every newer one goes to `damaged`. Without `use` all tensors are hashed here. Given, it
// reads the tensors itself, so that they are read once, and returns the damage that it finds; empty: there is none. All
// other files were checked before.
using Damaged = std::function<void(const SkippedCheckpoint&)>;
using UseCheckpoint = std::function<std::string(const FoundCheckpoint&)>;
// `only`: considers that step alone.
std::optional<FoundCheckpoint> newest_whole_checkpoint(FileSystem& files, const Path& parent, const Damaged& damaged,
                                                       const UseCheckpoint& use = {},
                                                       std::optional<std::int64_t> only = {});

// Renames every checkpoint after that step to step_N.left, in place of an older one of such a name. Returns their
// steps.
std::vector<std::int64_t> leave_checkpoints_after(FileSystem& files, const Path& parent, std::int64_t step);

// The name `best` among a run's checkpoints: a relative link to the folder of one step, which pruning leaves.
inline constexpr const char* kBest = "best";

// Links the name to the checkpoint of `step`, which has been written. A reader finds the old or the new one under it at
// any time. Returns the problem as a sentence; empty: there is none.
std::string link_best(FileSystem& files, const Path& parent, std::int64_t step);

// The step that it links to; nothing where there is no such link, or one that is not ours.
std::optional<std::int64_t> best_checkpoint(const Path& parent);

// The folder of the step where `folder` is such a link, else `folder`. A reader stays with that step though the run
// links the name anew.
Path resolve_best(const Path& folder);

// Removes .partial leftovers and all checkpoints but the last `keep` (at least one) and every `keep_every`-th step (0:
// none). Visibly damaged ones do not count among the last. A folder whose manifest has another step stays, and so do
// the one that `best` links to and the steps in `stay`. To be called after a write, with the step that was `written`:
// it is never removed, and every step_N.left up to it is. Without it (-1) the newest checkpoint is read through first,
// so that a whole one surely stays.
void prune_checkpoints(FileSystem& files, const Path& parent, std::int64_t keep, std::int64_t keep_every,
                       std::int64_t written = -1, std::set<std::int64_t> stay = {});

// Finds the folder of weights that a --checkpoint argument names: a run folder (its newest whole checkpoint), a step
// folder or `best`, or a Hugging Face folder (config.json with model.safetensors or its index). Anything else is a
// UserError. Sizes are checked against the manifest, and hashes of all files but tensors: tensors are hashed while they
// are read (io/tensor_stream.h), so that gigabytes are read once. `use` reads them. Where it throws DamagedWeights
// (io/safetensors.h), a step folder that was named is refused; of a run folder the checkpoint before is tried, with a
// warning. Without `use` there is no warning: the later reader finds the damage.
using UseWeights = std::function<void(const Path& folder)>;
Path find_weights_folder(FileSystem& files, const Path& argument, const UseWeights& use = {});

}  // namespace redline::io
