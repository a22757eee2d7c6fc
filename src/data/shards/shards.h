// Prepared folders as a source of documents. Files are mapped, and offsets and ids are read in place. Every block is
// checked against its hash when it is first touched.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "data/shards/manifest.h"
#include "data/shards/token_documents.h"

namespace redline::data {

// Whether `redline data prepare` made this folder, or began to make it.
bool is_prepared_folder(const Path& folder);

// A whole prepared folder, with its manifest parsed for everyone who asks it.
struct PreparedFolder {
  Path path;
  Manifest manifest;

  std::string tokenizer() const;  // as open_tokenizer() takes it
};

// A folder that is not whole, or not ours, is a UserError that starts with `key`.
PreparedFolder read_prepared_folder(const Path& folder, const std::string& key);

// The documents of one or more folders of the same tokenizer. Training takes their train splits and evaluation their
// val splits. Where no folder has a val split, the last 64th of the documents is held out.
std::unique_ptr<DocumentSource> open_shards(const std::vector<PreparedFolder>& folders, TokenSettings settings);

}  // namespace redline::data
