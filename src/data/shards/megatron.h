// Tokens that Megatron prepared: a .bin with its .idx. docs/formats.md says what is read of them.
#pragma once

#include <memory>
#include <vector>

#include "base/files.h"
#include "data/shards/token_documents.h"

namespace redline::data {

// Pairs by their .bin, in the order given. Inconsistent contents (a size, a count, an id outside the vocabulary) are a
// UserError that names the file.
std::unique_ptr<DocumentSource> open_megatron(const std::vector<Path>& bin_files, TokenSettings settings);

}  // namespace redline::data
