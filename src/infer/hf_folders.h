// Models out to Hugging Face folders and in from them, without ever holding one in memory.
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

// A folder that transformers loads: config.json, generation_config.json, weights, the tokenizer's files. `out` must be
// new or empty, and is there whole or not at all: when options.stop says so, Stopped is thrown and nothing is left.
// `tokenizer` is what --tokenizer gave (infer/model_tokenizer.h).
Transferred export_model(FileSystem& files, const Checkpoint& checkpoint, const Path& out, const WriteWeights& options,
                         const std::string& tokenizer = {});

// A checkpoint of step 0 that holds the folder's weights in fp32, with a manifest of hashes: what model.init_from,
// eval, sample and export take. `out` as above.
Transferred import_model(FileSystem& files, const Checkpoint& source, const Path& out, const WriteWeights& options);

}  // namespace redline::infer
