// Tokens that other programs prepared, and from paths to a source of ready-made tokens. The format of a path is
// recognised here and nowhere else. docs/formats.md says what is read of each.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/thread_pool.h"
#include "data/shards/shards.h"
#include "data/shards/token_documents.h"

namespace redline::data {

// By its first bytes. A file with another of llm.c's magic numbers (an evaluation set) is a UserError.
bool is_llmc(const Path& file);

// Files of one kind, in the order given. Inconsistent contents (a size, a count, an id outside the vocabulary) are a
// UserError that names the file.
std::unique_ptr<DocumentSource> open_llmc(const std::vector<Path>& files, TokenSettings settings);
std::unique_ptr<DocumentSource> open_nanogpt(const std::vector<Path>& files, TokenSettings settings);

// Pairs by their .bin, in the order given. Inconsistent contents (a size, a count, an id outside the vocabulary) are a
// UserError that names the file.
std::unique_ptr<DocumentSource> open_megatron(const std::vector<Path>& bin_files, TokenSettings settings);

// One or two ids that close a document.
using EndTokens = std::array<std::int64_t, 2>;

struct FoundDocuments {
  std::vector<std::uint64_t> starts;  // of each document; it reaches to the next one's start, or the end
  std::int64_t largest_id = -1;       // of all ids; for a signed type, negative ones count as huge
};

// Finds documents in tokens without an index: a document reaches up to and including an end token. A run of end tokens
// closes one document, and one at the very beginning closes none: no document is empty. All cores take part. A search
// of more than two seconds says how far it is.
FoundDocuments find_documents(const TokenArray& ids, EndTokens ends, const std::string& name, ThreadPool& pool);

// A path as it was named. A prepared folder comes with its manifest.
struct DataPath {
  std::string path;
  std::optional<PreparedFolder> prepared = {};
};
// "ping" is the generated corpus, and no folder. `key` leads the UserError of a folder that is not whole.
std::vector<DataPath> data_paths(const std::vector<std::string>& paths, const std::string& key);

// Opens prepared folders, Megatron pairs (NAME.bin with NAME.idx beside it, or the bare NAME), llm.c's and headerless
// .bin files. Null when the paths are none of these, text for instance; several kinds at once are a UserError.
std::unique_ptr<DocumentSource> open_token_files(std::vector<DataPath> paths, TokenSettings settings);

// The vocabulary that the headers of token files say: llm.c's. Nothing for other files.
std::optional<std::int64_t> vocabulary_of_headers(const std::string& path, const std::string& key);

// Whether the paths are any of these. One that is not there is a UserError.
bool are_token_files(const std::vector<std::string>& paths, const std::string& key);

}  // namespace redline::data
