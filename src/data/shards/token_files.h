// From the paths of a configuration to a source of ready-made tokens: which format they are is decided here and nowhere
// else.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/shards/token_documents.h"

namespace redline::data {

// Prepared folders (with manifest.json), Megatron pairs (NAME.bin with NAME.idx beside it, or the bare NAME), llm.c's
// and headerless .bin files. Null when the paths are none of these, text for instance; a mixture is a UserError.
std::unique_ptr<DocumentSource> open_token_files(const std::vector<std::string>& paths, TokenSettings settings);

// Whether the paths are any of these. One that is not there is a UserError.
bool are_token_files(const std::vector<std::string>& paths, const std::string& key);

}  // namespace redline::data
