// The files of a list of paths: the one expansion of folders and globs for everything that reads documents.
#pragma once

#include <string>
#include <vector>

#include "base/files.h"

namespace redline::data {

// The files of paths, folders (all files below) and globs, in the order given and sorted within each. A path that is
// missing, empty or no file is a UserError that starts with `key`, the flag or configuration key that named it; empty
// files inside a folder are passed over.
std::vector<Path> expand_paths(const std::vector<std::string>& paths, const std::string& key);

}  // namespace redline::data
