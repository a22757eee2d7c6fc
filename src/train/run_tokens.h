// The tokenizer files that a run keeps in its folder and in every checkpoint.
#pragma once

#include <optional>

#include "config/config.h"
#include "data/open_corpus.h"
#include "data/tokenizer/tokenizer_files.h"

namespace redline::train {

struct RunTokens {
  std::optional<std::int32_t> end;  // closes a document
  data::TokenizerFiles files;       // empty where the tokens stand for no known text
};

// Reads the files for the run's documents, once at its beginning, so that checkpoints have them whatever becomes of the
// data.
RunTokens run_tokens(FileSystem& files, const config::Config& config, const data::Corpus& documents);

// Writes the files to RUN/tokenizer.
void keep_tokenizer(FileSystem& files, const Path& run, const data::TokenizerFiles& tokenizer);

}  // namespace redline::train
