// The tuning cache on disk: the fastest algorithm of cuBLASLt for each product on a card, with its time. Losing it
// costs a second of tuning at the next start, so its problems are never errors.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/files.h"

namespace redline::ops::cuda {

// An algorithm as cuBLASLt lays it out; it may be stored and used again by the same version of the library.
using AlgorithmBytes = std::array<std::uint64_t, 8>;

struct TunedProduct {
  AlgorithmBytes algorithm{};
  double seconds = 0;  // of one run, on a loaded card
  bool operator==(const TunedProduct&) const = default;
};

class TuningFile {
 public:
  // An empty path: nothing is found and nothing is kept.
  TuningFile(FileSystem& files, Path path);

  std::optional<TunedProduct> find(const std::string& key) const;
  void put(const std::string& key, const TunedProduct& product);
  void save();  // adds the new entries to the file as it is now

 private:
  using Entries = std::map<std::string, TunedProduct>;
  Entries load(bool tell) const;  // a file that cannot be read counts as empty, with a warning if `tell`

  FileSystem& files_;
  Path path_;
  Entries entries_, unsaved_;
};

// $XDG_CACHE_HOME/redline/tuning.json or ~/.cache/redline/tuning.json; empty without a home.
Path default_tuning_path();

}  // namespace redline::ops::cuda
