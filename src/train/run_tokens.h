// The meaning of a run's tokens, kept with the run: the files of its tokenizer, as every checkpoint has them.
#pragma once

#include <optional>

#include "config/config.h"
#include "data/open_corpus.h"
#include "data/tokenizer/tokenizer_files.h"

namespace redline::train {

struct RunTokens {
  std::optional<std::int32_t> end;  // what closes a document
  data::TokenizerFiles files;       // none where the tokens stand for no known text
};

// Of the run's documents. Read once, when it begins: whatever becomes of the data later, the checkpoints have them.
RunTokens run_tokens(FileSystem& files, const config::Config& config, const data::Corpus& documents);

// RUN/tokenizer: as the files say now.
void keep_tokenizer(FileSystem& files, const Path& run, const data::TokenizerFiles& tokenizer);

}  // namespace redline::train
