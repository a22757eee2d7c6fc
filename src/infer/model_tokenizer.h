// Which tokenizer a checkpoint's model was trained with. Nothing is taken in its place: ids of another mean nothing to
// the model, and nobody would notice.
#pragma once

#include <memory>
#include <string>

#include "data/tokenizer/tokenizer.h"
#include "infer/load.h"

namespace redline::infer {

struct ModelTokenizer {
  std::string name;                                  // as data::open_tokenizer() takes it
  std::shared_ptr<const data::Tokenizer> tokenizer;  // null: the model has none
  std::string why_none;
};

// The one in the checkpoint's folder, in its run's, or that of the run's data: the last two for checkpoints that were
// saved without it. `given` (--tokenizer) is for a model that has none, or whose own is lost; beside its own it must
// give ids of the same text. A UserError where the model has one that is not found, and where `given` is another.
ModelTokenizer tokenizer_of(FileSystem& files, const Checkpoint& checkpoint, const std::string& given);

// The same for whoever cannot do without: a UserError where there is none, too.
ModelTokenizer require_tokenizer(FileSystem& files, const Checkpoint& checkpoint, const std::string& given);

}  // namespace redline::infer
