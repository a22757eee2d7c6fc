// Prepared folders as a source of documents: mapped, offsets and ids read in place, every block checked when it is
// first touched.
#pragma once

#include <memory>
#include <vector>

#include "base/files.h"
#include "data/shards/manifest.h"
#include "data/shards/token_documents.h"

namespace redline::data {

// Whether a folder is one that `redline data prepare` made, or began to make: open_shards() says which.
bool is_prepared_folder(const Path& folder);

// The manifest of a whole folder; a UserError when it is not whole or not ours.
Manifest read_manifest(const Path& folder);

// The documents of one or more folders of the same tokenizer. Training takes their train splits and evaluation their
// val splits; where no folder has a val split, the last 64th of the documents is held out.
std::unique_ptr<DocumentSource> open_shards(const std::vector<Path>& folders, TokenSettings settings);

}  // namespace redline::data
