// Finds the fastest algorithm of a product, by time on random operands, and keeps it on disk for later runs.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "ops/cuda/cublaslt.h"

namespace redline::ops::cuda {

// How far the search goes: candidates whose variants are looked at (one where a run is long), and finalists.
struct SearchWidth {
  int parents, parents_of_long;
  std::size_t finalists, last_finalists;
};
inline constexpr SearchWidth kBestOfThem{2, 1, 5, 3}, kAllOfThem{8, 3, 12, 5};

// Whether the time for it is over: what was seen so far is compared then, and nothing else is looked at.
using IsOver = std::function<bool()>;

struct TimedAlgorithm {
  cublasLtMatmulAlgo_t algorithm;
  double seconds = 0;  // of one run
};

// A product with operands to time it on; keeps the plan by reference. Everything waits for the stream.
class GemmTrial {
 public:
  // The operands overwrite `bench`, memory of the card, where they fit into it; else they have memory of their own.
  // Nothing without memory.
  static std::optional<GemmTrial> open(const GemmPlan& plan, const Launch& launch, std::span<std::byte> bench = {});

  // The candidates, and variants of the best, that run at all: fastest first by a first look, at most so many, then the
  // first candidate that runs once more. Empty where none runs.
  std::vector<TimedAlgorithm> finalists(std::span<const cublasLtMatmulAlgo_t> candidates, const SearchWidth& width,
                                        const IsOver& is_over) const;
  // Seconds of one run, of as many as take about `for_seconds`, at least one; infinite where one cannot be started.
  double time(const TimedAlgorithm& timed, double for_seconds) const;
  bool enqueue(const cublasLtMatmulAlgo_t& algorithm) const;  // one run, and no waiting; whether it was started
  void load_card(const TimedAlgorithm& timed, double seconds) const;

 private:
  GemmTrial(const GemmPlan& plan, const Launch& launch) : plan_(&plan), launch_(launch) {}
  std::optional<TimedAlgorithm> first_look(const cublasLtMatmulAlgo_t& algorithm) const;

  const GemmPlan* plan_;
  Launch launch_;
  device::cuda::DeviceBytes own_;  // where the operands lie in no other memory
  std::byte *a_ = nullptr, *b_ = nullptr, *c_ = nullptr, *workspace_ = nullptr, *scale_ = nullptr, *bias_ = nullptr;
};

// Lets finalists take turns for so many rounds, and returns the mean time of each, in their order. An algorithm runs
// for `long_for(it)` seconds in a round.
template <class LongFor>
std::vector<double> time_in_turns(const GemmTrial& trial, std::span<const TimedAlgorithm> finalists, int rounds,
                                  const LongFor& long_for) {
  std::vector<double> seconds(finalists.size());
  for (int round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < finalists.size(); ++i)
      seconds[i] += trial.time(finalists[i], long_for(finalists[i])) / rounds;
  return seconds;
}
// The first turns: three of 2 ms.
std::vector<double> time_in_bursts(const GemmTrial& trial, std::span<const TimedAlgorithm> finalists);

// Empty where there is no memory for operands, or no candidate runs. A cold card is warmed up first.
struct Fastest {
  cublasLtMatmulAlgo_t algorithm;
  double seconds, first_seconds;  // of it, and of the first candidate that runs
};
std::optional<Fastest> fastest_algorithm(const GemmPlan& plan, std::span<const cublasLtMatmulAlgo_t> candidates,
                                         const Launch& launch, std::span<std::byte> bench, bool card_is_cold,
                                         const SearchWidth& width, const IsOver& is_over);

// The tuning cache on disk: the fastest algorithm of cuBLASLt for each product on a card, with its time. Losing it
// costs a second of tuning at the next start, so its problems are never errors.

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
  Entries load(bool warn) const;  // a file that cannot be read counts as empty, with a warning if `warn`

  FileSystem& files_;
  Path path_;
  Entries entries_, unsaved_;
};

// $XDG_CACHE_HOME/redline/tuning.json or ~/.cache/redline/tuning.json; empty without a home.
Path default_tuning_path();

}  // namespace redline::ops::cuda
