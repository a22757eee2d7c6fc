// From paths to a source of ready-made tokens. The format of a path is told here and nowhere else.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/shards/shards.h"
#include "data/shards/token_documents.h"

namespace redline::data {

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

// Whether the paths are any of these. One that is not there is a UserError.
bool are_token_files(const std::vector<std::string>& paths, const std::string& key);

}  // namespace redline::data
