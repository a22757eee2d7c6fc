// Evaluates a checkpoint on held-out data: finds the documents, their tokens and batches, and returns the loss of each
// set.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "infer/load.h"
#include "io/communicator.h"
#include "model/evaluate.h"

namespace redline::infer {

// The request of a command. An empty text stands for the setting of the run, or of the model.
struct HeldOutRequest {
  std::vector<std::string> data;  // as data.eval, or {"ping"} for the generated corpus; empty: the run's own
  std::string tokenizer, precision, device = "auto";
  std::string chat;  // as data.chat has it: how conversations of `data` become tokens
  // How much of each set; 0: all. Without either: all of `data`, and the run's own setting (train.eval_tokens) without
  // `data` or where that never ends.
  std::optional<std::int64_t> tokens, batches;
  std::int64_t seq_len = 0;   // tokens of a row; 0: the run's, or the model's positions up to 2048
  bool per_document = false;  // one document a batch

  bool generated() const { return data == std::vector<std::string>{"ping"}; }
};

struct HeldOutProgress {
  std::int64_t done = 0, of = 0;  // batches of the set; of = 0: not known
  std::int64_t tokens = 0;        // of this rank
  double seconds = 0;             // since the set's first batch was asked for
  std::optional<double> share;    // of the set, where that is known
};

struct HeldOutResult {
  std::string name, data;    // the set's own name, and that of its documents
  std::int64_t seq_len = 0;  // tokens of a row: longer documents were cut into pieces of it
  model::Evaluation evaluation;
};

// Returns the sets in their order. Ranks share the batches, and all get the sums. UserErrors: no data, data beyond the
// model's vocabulary, and data prepared with another tokenizer than the model's.
std::vector<HeldOutResult> evaluate_held_out(const Checkpoint& checkpoint, const HeldOutRequest& request,
                                             io::Communicator* ranks, const model::LoadProgress& loading,
                                             const std::function<void(const HeldOutProgress&)>& progress);

}  // namespace redline::infer
