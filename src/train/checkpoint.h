// The contents of a checkpoint: parameters and moments by Hugging Face name, and the little that is needed to go on
// exactly. The folder is also a Hugging Face folder (config.json, model.safetensors, the tokenizer's files).
// docs/formats.md writes it down.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/identity.h"
#include "data/loader.h"
#include "io/together.h"
#include "model/engine.h"
#include "model/state_files.h"
#include "train/ends.h"
#include "train/guard.h"
#include "train/run_tokens.h"

namespace redline::train {

// Where a run stands between two steps. Everything else (schedule, random numbers) follows from the step.
struct RunState {
  std::int64_t step = 0;    // updates done
  std::int64_t tokens = 0;  // real targets seen
  data::LoaderState loader;
  data::DataIdentity data;                 // of data.train
  std::optional<data::DataIdentity> eval;  // of data.eval, where it is set
  EndsState ends;                          // none of it in the checkpoints of earlier versions
  GuardState guard;
};

// How many checkpoints stand there when a run of so many steps has ended, by checkpoint.keep and checkpoint.keep_every.
// While one is written it stands beside them.
std::int64_t checkpoints_kept(const config::Checkpoint& settings, std::int64_t steps);
std::string in_bytes(std::int64_t bytes);  // "1.50 GiB"
// "a checkpoint takes 1.90 GiB, the 3 that are kept 5.70 GiB"
std::string checkpoints_in_words(std::int64_t bytes_of_one, std::int64_t kept);

// All of a checkpoint but the bytes of its tensors: it stays true while training goes on.
struct CheckpointContent {
  std::int64_t step = 0;
  std::map<std::string, std::string> texts;                        // by file
  std::map<std::string, std::vector<model::StateTensor>> tensors;  // by file, with what this rank writes of each
  std::int64_t bytes = 0;                                          // of all tensors, of all ranks
};
CheckpointContent checkpoint_content(const model::Engine& engine, const config::Config& config, const RunState& state,
                                     const RunTokens& tokens = {}, int rank = 0, int ranks = 1);

// Writes one into a run's folder of checkpoints. `read` gives the tensors' bytes. A full disk is a MachineError that
// says what takes the room.
void write_checkpoint(FileSystem& files, const Path& parent, const CheckpointContent& content,
                      const model::ReadTensors& read);
// The same by several ranks, each of which calls it with its own content; texts are those of rank 0. A failure on one
// is one on all.
void write_checkpoint(FileSystem& files, const Path& parent, const CheckpointContent& content,
                      const model::ReadTensors& read, io::Together& ranks, const OpenStretches& open = open_stretches);

// The files that a run needs to go on and the folder's manifest does not name, as a sentence; nothing where all is
// there. Scales of operands in eight bits are not needed, nor is an average of the weights: they can be begun anew.
std::string missing_from_checkpoint(FileSystem& files, const Path& folder, const optim::StateTable& table);

// From a folder that was found whole (io/checkpoint_folder.h): where the run stood, but for the loader's state. That
// one is asked for by who goes on in the old order of the data; one that cannot be read is a UserError.
RunState read_run_state(FileSystem& files, const Path& folder);
data::LoaderState read_loader_state(FileSystem& files, const Path& folder);

// Whether its manifest names a file.
bool has_file(FileSystem& files, const Path& folder, const std::string& name);

// Its tensors but for the files `without`, held against the manifest's hashes on the way: after an error some of them
// are the checkpoint's and some are not. A rank loads what its rows hold, however many ranks wrote the checkpoint, and
// looks at some of the hashes: all is well when no rank found an error.
void load_tensors(const Path& folder, model::Engine& engine, const model::LoadProgress& progress = {},
                  const std::vector<std::string>& without = {});

}  // namespace redline::train
