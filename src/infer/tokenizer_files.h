// The files of a checkpoint's tokenizer, on their way into another folder.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "data/tokenizer/tokenizer.h"
#include "infer/load.h"
#include "io/new_folder.h"

namespace redline::infer {

struct TokenizerFiles {
  std::map<std::string, Path> files;                 // the name to give -> where it is
  std::shared_ptr<const data::Tokenizer> tokenizer;  // none where there is none, or where redline cannot read it
  std::string note;                                  // why there are no files, or why they are only copied; else empty
};

// What lies beside the weights; else what the run's data were tokenized with. A tokenizer that has more ids than the model
// is a UserError.
TokenizerFiles find_tokenizer_files(FileSystem& files, const Checkpoint& checkpoint);

// Copies them; where no tokenizer_config.json says which class of transformers reads the tokenizer.json, writes one.
// Returns name -> XXH3-64 of each file.
std::map<std::string, std::uint64_t> copy_tokenizer(const TokenizerFiles& tokenizer, io::NewFolder& folder);

}  // namespace redline::infer
