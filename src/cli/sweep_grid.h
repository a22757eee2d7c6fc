// The words of a grid, "--grid optim.lr=1e-3,2e-3", and the combinations of their values. The configuration checks the
// values.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace redline::cli {

struct GridKey {
  std::string name;                 // "optim.lr"
  std::vector<std::string> values;  // as they were given
};

// Reads one key from each word, in their order. A word without values, an empty value, and a key that comes twice or is
// in `overrides` ("key=value") as well are UserErrors. Commas within brackets or quotes are part of a value.
std::vector<GridKey> read_grid(const std::vector<std::string>& words, const std::vector<std::string>& overrides);

// All combinations, as overrides: "optim.lr=1e-3". The values of the last key change fastest.
std::vector<std::vector<std::string>> combinations(const std::vector<GridKey>& grid);

// "lr" of "optim.lr"; the whole name where another key has the same last part.
std::vector<std::string> short_names(const std::vector<std::string>& keys);

// A key's value without the quotes of texts and the brackets around them: "0.001", "muon", "a.txt,b.txt".
std::string shown_value(const config::Config& config, const std::string& key);

// A name for a run's folder, "lr=0.001,seed=1", that is not in `taken`.
std::string run_folder_name(const std::vector<std::string>& titles, const std::vector<std::string>& values,
                            const std::vector<std::string>& taken);

}  // namespace redline::cli
