// The contents of a checkpoint: parameters and moments by Hugging Face name, and the little that is needed to go on
// exactly. The folder is also a Hugging Face folder (config.json, model.safetensors, the tokenizer's files).
// docs/formats.md writes it down.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/identity.h"
#include "data/pieces.h"
#include "data/tokenizer/tokenizer.h"
#include "io/communicator.h"
#include "model/engine.h"
#include "model/state_files.h"
#include "train/ends.h"
#include "train/guard.h"

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

// The number of checkpoints that stay at the end of a run of so many steps, by checkpoint.keep and
// checkpoint.keep_every. One that is being written comes on top.
std::int64_t checkpoints_kept(const config::Checkpoint& settings, std::int64_t steps);
std::string in_bytes(std::int64_t bytes);  // "1.50 GiB"
// "a checkpoint takes 1.90 GiB, the 3 that are kept 5.70 GiB"
std::string checkpoints_in_words(std::int64_t bytes_of_one, std::int64_t kept);

// The tokenizer files that a run keeps in its folder and in every checkpoint.
struct RunTokens {
  std::optional<std::int32_t> end;      // closes a document
  std::vector<std::int32_t> beginning;  // of every document
  data::TokenizerFiles files;           // empty where the tokens stand for no known text
  data::TokenizerFiles kept = {};       // the same with the tokenizer as the data were read with: for a resume
};

// Reads the files for the run's documents, once at its beginning, so that checkpoints have them whatever becomes of the
// data.
RunTokens run_tokens(FileSystem& files, const config::Config& config, const data::Corpus& documents);

// A checkpoint without the bytes of its tensors. It stays true while training goes on.
struct CheckpointContent {
  std::int64_t step = 0;
  std::map<std::string, std::string> texts;                        // by file
  std::map<std::string, std::vector<model::StateTensor>> tensors;  // by file, with this rank's part of each
  std::int64_t bytes = 0;                                          // of all tensors, of all ranks
};
CheckpointContent checkpoint_content(const model::Engine& engine, const config::Config& config, const RunState& state,
                                     const RunTokens& tokens = {});

// Writes a checkpoint into a run's folder of checkpoints. `read` gives the tensors' bytes. A full disk is a
// MachineError that tells how much room the checkpoints need.
void write_checkpoint(FileSystem& files, const Path& parent, const CheckpointContent& content,
                      const model::ReadTensors& read);
// The same by several ranks, each with its own content; the texts are rank 0's. A failure on one rank is a failure on
// all.
void write_checkpoint(FileSystem& files, const Path& parent, const CheckpointContent& content,
                      const model::ReadTensors& read, io::Communicator& ranks,
                      const OpenStretches& open = open_stretches);

// A sentence about the files that a resume needs and the folder's manifest does not name; empty where all are there.
// Scales of operands in eight bits and an average of the weights are not needed: both can begin anew.
std::string missing_from_checkpoint(FileSystem& files, const Path& folder, const optim::StateTable& table);

// Reads the state of a run, without the loader's, from a folder that was found whole (io/checkpoint_folder.h). A run
// that goes on in the old order of the data also reads the loader's state. A state that cannot be read is a UserError.
RunState read_run_state(FileSystem& files, const Path& folder);
data::LoaderState read_loader_state(FileSystem& files, const Path& folder);

// Whether the checkpoint's manifest names a file.
bool has_file(FileSystem& files, const Path& folder, const std::string& name);

// Loads the checkpoint's tensors, except those of the files `without`, and checks the manifest's hashes on the way.
// After an error only some of the tensors are loaded. A rank loads its own rows, however many ranks wrote the
// checkpoint, and checks some of the hashes: the checkpoint is good where no rank found an error.
void load_tensors(const Path& folder, model::Engine& engine, const model::LoadProgress& progress = {},
                  const std::vector<std::string>& without = {});

}  // namespace redline::train
