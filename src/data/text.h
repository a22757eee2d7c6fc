// Plain text as tokens: the bytes of each file, then <end>. Vocabulary 257. Files are mapped, not read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/corpus.h"

namespace redline::data {

// Held out is the last twentieth or so of the bytes; the cut stands at the start of a line. Each path is a file, a
// folder (all files below it, sorted) or a glob. A file that is missing, empty or unreadable is a UserError that starts
// with `key`, the configuration key that named it; so is one that holds no text, unless `any_bytes`.
std::unique_ptr<DocumentSource> open_text(const std::vector<std::string>& paths, const std::string& key, Part part,
                                          std::int64_t seed, bool any_bytes = false);

}  // namespace redline::data
