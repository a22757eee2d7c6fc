// Exports models to Hugging Face folders and imports them, without holding a model in memory.
#pragma once

#include <string>
#include <vector>

#include "infer/load.h"
#include "infer/write_weights.h"

namespace redline::infer {

struct Transferred {
  WrittenWeights weights;
  std::vector<std::string> tokenizer_files;  // names of those that were copied or made
  std::string note;                          // about the tokenizer; empty when there is nothing to say
};

// Writes a folder that transformers loads: config.json, generation_config.json, weights, the tokenizer's files. `out`
// must be new or empty, and appears whole or not at all: where options.stop is set, Stopped is thrown and nothing is
// left. `tokenizer` is the value of --tokenizer (infer/model_tokenizer.h).
Transferred export_model(FileSystem& files, const Checkpoint& checkpoint, const Path& out, const WriteWeights& options,
                         const std::string& tokenizer = {});

// Writes a checkpoint of step 0 with the folder's weights in fp32 and a manifest of hashes. model.init_from, eval,
// sample and export take it. `out` is as above.
Transferred import_model(FileSystem& files, const Checkpoint& source, const Path& out, const WriteWeights& options);

}  // namespace redline::infer
