// The tuning cache on disk: which algorithm of cuBLASLt was fastest for a product on a card, and how long
// it took. Losing it costs a second of
// tuning at the next start, so nothing about it is ever an error.
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
  void save();  // what was put since the last save, added to what the file holds by now

 private:
  using Entries = std::map<std::string, TunedProduct>;
  Entries load(bool tell) const;  // a file that cannot be read holds nothing, which may be told

  FileSystem& files_;
  Path path_;
  Entries entries_, unsaved_;
};

// $XDG_CACHE_HOME/redline/tuning.json or ~/.cache/redline/tuning.json; empty without a home.
Path default_tuning_path();

}  // namespace redline::ops::cuda
