// Files of ids without an index, as other programs prepared them: llm.c's shards and nanoGPT's .bin. docs/formats.md
// says what is read of each.
#pragma once

#include <memory>
#include <vector>

#include "base/files.h"
#include "data/shards/token_documents.h"

namespace redline::data {

// By its first bytes. A file with another of llm.c's magic numbers (an evaluation set) is a UserError.
bool is_llmc(const Path& file);

// Files of one kind, in the order given. Inconsistent contents (a size, a count, an id outside the vocabulary) are a
// UserError that names the file.
std::unique_ptr<DocumentSource> open_llmc(const std::vector<Path>& files, TokenSettings settings);
std::unique_ptr<DocumentSource> open_nanogpt(const std::vector<Path>& files, TokenSettings settings);

}  // namespace redline::data
