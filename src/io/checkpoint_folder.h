// A checkpoint on the disk: a folder step_00001000 with files and a manifest of their sizes and hashes. It is
// written beside (step_00001000.partial), synced, read back, renamed; only then may older ones go. The
// meaning of the files is train/'s.
//
// Names in a run's checkpoints/ folder:
//   step_N            a checkpoint
//   step_N.partial    one that was being written or removed: nothing is lost with it
//   step_N.replaced   the old one of the same step while a new one takes its place. If a crash leaves it without a
//                     step_N beside it, it counts as the checkpoint of that step until the next write renames it.
//   best              a link to one of them (io/best_checkpoint.h)
//   step_N.left       one that the run has gone back behind: whole, and no longer the run's. It goes once a checkpoint
//                     of that step or a later one is written.
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
#include "io/manifest.h"
#include "io/together.h"

namespace redline::io {

std::string checkpoint_name(std::int64_t step);                      // "step_00001000"
std::optional<std::int64_t> checkpoint_step(std::string_view name);  // the inverse; nothing for other names

// Before a run makes its first step: what stands in the way of writing checkpoints (rights, somebody else's leftovers)
// is told now, not after hours.
void prepare_checkpoints(FileSystem& files, const Path& parent);

// Tidies up after a kill: partial folders go, and a replaced one gets its name back unless the new one has taken it.
void clean_leftovers(FileSystem& files, const Path& parent);

// `fill` writes the files into the folder it is given and returns name -> XXH3-64 of each. Then manifest, syncs, a
// read-back of every byte, rename, sync of the parent. Whatever fails, every checkpoint that was whole before still is.
void write_checkpoint(FileSystem& files, const Path& parent, std::int64_t step,
                      const std::function<std::map<std::string, std::uint64_t>(const Path& folder)>& fill);

// The same by several ranks, all of which call it, on a file system that they share. A failure on one of them is told
// on all: as it is there, elsewhere as a MachineError that names the rank.
struct SharedFill {
  // On rank 0, before any rank writes: makes the files.
  std::function<void(const Path& folder)> prepare;
  // On every rank: writes what is its own of the files, synced and read back, and returns the stretches.
  std::function<std::map<std::string, FileHashes>(const Path& folder)> write;
};
void write_checkpoint(FileSystem& files, const Path& parent, std::int64_t step, Together& ranks,
                      const SharedFill& fill);

// Empty when every file of the manifest is there with its size and hash; else one sentence that names the file and what
// is wrong with it (missing, truncated, changed), or says that the manifest itself is missing, broken or empty. Every
// byte is read: `progress` hears how many of them so far, and what it throws ends the reading.
using ReadingProgress = std::function<void(std::uint64_t done, std::uint64_t of)>;
std::string checkpoint_problem(FileSystem& files, const Path& folder, const ReadingProgress& progress = {});

struct FoundCheckpoint {
  std::int64_t step = 0;
  Path folder;
};
// Newest first, whole or not; one for each step. Changes nothing on the disk, nor does newest_whole_checkpoint: another
// process may be writing.
std::vector<FoundCheckpoint> list_checkpoints(FileSystem& files, const Path& parent);
// One that is not whole, what is wrong with it, and the next older one, which gets its turn; none where it was the
// last.
struct PassedOver {
  FoundCheckpoint checkpoint;
  std::string problem;
  std::optional<FoundCheckpoint> instead;
};
std::string in_words(const PassedOver& passed);
// The newest whole one; every newer one that is not is told to `damaged`. Where `use` is given it does
// what the checkpoint is wanted for and finds damage of the tensors on the way, so that they are read once: it returns
// what is wrong, nothing where all is well. Everything else was found whole before.
using Damaged = std::function<void(const PassedOver&)>;
using UseCheckpoint = std::function<std::string(const FoundCheckpoint&)>;
// `only`: no other than that step's.
std::optional<FoundCheckpoint> newest_whole_checkpoint(FileSystem& files, const Path& parent, const Damaged& damaged,
                                                       const UseCheckpoint& use = {},
                                                       std::optional<std::int64_t> only = {});

// Gives every checkpoint after that step the name step_N.left; returns their steps. An older one of such a name gives
// way.
std::vector<std::int64_t> leave_checkpoints_after(FileSystem& files, const Path& parent, std::int64_t step);

// Removes .partial leftovers and all but the last `keep` (at least one) and every `keep_every`-th step (0: none). Those
// that are visibly damaged do not count among the last; one of another step's name stays, and so do the one that `best`
// names and the steps in `stay`. Call after a write succeeded, with the step that was written:
// it is never removed, and a step_N.left up to it goes. Without it (-1) the newest one is read through first, so that a
// whole one surely stays.
void prune_checkpoints(FileSystem& files, const Path& parent, std::int64_t keep, std::int64_t keep_every,
                       std::int64_t written = -1, std::set<std::int64_t> stay = {});

// A command's --checkpoint argument: a run folder (its newest whole checkpoint), a step folder or `best`, or a Hugging
// Face folder (config.json with model.safetensors or its index). Returns the folder that holds the weights; else a
// UserError. Sizes are held against the manifest, and the hashes of all but tensors: those are hashed by whoever reads
// them (io/tensor_stream.h), so that gigabytes are read once. Where that one is given as `use` and throws
// DamagedWeights (io/weight_files.h), a warning says so and a run's checkpoint before gets its turn; a folder that was
// named is refused. Without it nothing is told of what is passed over: whoever reads the weights will.
using UseWeights = std::function<void(const Path& folder)>;
Path find_weights_folder(FileSystem& files, const Path& argument, const UseWeights& use = {});

}  // namespace redline::io
