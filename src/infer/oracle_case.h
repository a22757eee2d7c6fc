// A case of `redline verify`: a Hugging Face folder with the expected results (oracle.safetensors) beside its weights.
// Reading checks everything that does not need the model to run.
//
// Keys: tokens i32[n], doc_offsets i32[docs + 1], logits f32[n, V], loss f32[1], train_losses and grad_norms
// f32[steps]; grad.NAME and final.NAME by Hugging Face parameter name, each kind for all parameters or for none.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/batch.h"
#include "infer/load.h"
#include "io/safetensors.h"

namespace redline::infer {

struct OracleCase {
  Checkpoint checkpoint;
  std::shared_ptr<const io::SafetensorsReader> oracle;
  data::Batch batch;  // all documents packed into one row

  std::vector<float> floats(const std::string& key) const { return oracle->at(key).to_f32(); }
  std::int64_t train_steps() const { return oracle->at("train_losses").elements(); }
};

// A missing file or key, a misshapen tensor, a token outside the vocabulary or offsets that do not cover
// the tokens: one UserError. The batch has a tail of padding up to a multiple of `tokens`.
OracleCase read_case(FileSystem& files, const Path& folder, std::int64_t tokens = 1);

}  // namespace redline::infer
