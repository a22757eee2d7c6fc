// The runs of a sweep: the grid they come from, how far each is, and when one is hopeless. Nothing here starts a run.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "config/config.h"
#include "config/load.h"

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

inline constexpr const char* kSweepState = "sweep.json";

enum class SweptState { waiting, running, finished, hopeless, diverged, failed, interrupted, paused };
std::string_view name_of(SweptState state);

struct SweptRun {
  std::string name;                                         // of its folder
  std::vector<std::pair<std::string, std::string>> values;  // keys and values of its grid, as TOML writes them
  SweptState state = SweptState::waiting;
  std::string why;        // a sentence, where the state needs one
  bool asked = false;     // it belongs to the grid that was given now
  config::Config config;  // resolved; not in the file
  std::string group;      // the same for runs that differ only in train.seed; not in the file
};

struct Sweep {
  Path folder;
  std::vector<SweptRun> runs;     // of the grid in its order, then of earlier grids
  std::vector<std::string> keys;  // of this grid, then of earlier ones

  std::vector<std::string> values_of(const SweptRun& run) const;  // of `keys`, as people read them
  Path folder_of(const SweptRun& run) const { return folder / run.name; }
  void save(FileSystem& files) const;  // sweep.json, whole
};

// Loads and checks every combination, so that a bad one is refused before anything runs. UserErrors: two combinations
// that give the same configuration, a folder whose sweep had another base configuration, and a folder that holds
// something else. Nothing is written.
Sweep read_sweep(FileSystem& files, const Path& folder, const config::Sources& base, const std::vector<GridKey>& grid);

// Whether losses of the two runs at one step can be compared: same data, same batch, as many steps, same shape of the
// schedule.
bool comparable(const config::Config& a, const config::Config& b);

// A run to be judged.
struct JudgedRun {
  const config::Config* config = nullptr;
  std::string group;                                            // the same for runs that differ only in train.seed
  const std::map<std::int64_t, double>* evaluations = nullptr;  // held-out losses by step
};

// A run is judged against at least so many other settings, by its last evaluations, so many of them.
inline constexpr std::size_t kFewestOthers = 3, kJudgedEvaluations = 3;

// Returns why `run` is hopeless, or nothing where it is not. `steps` is the number of its steps in all (0: not known).
// A loss that is not finite is hopeless from a quarter of the steps on. Else all of this must hold:
//   - A quarter of the steps behind its warm-up is done, and not all of them.
//   - At least three other settings that can be compared have evaluations at the same three steps, behind the warm-up
//     of each. A setting counts with the lowest loss of its seeds, as does the run's own, so that no seed is stopped by
//     luck.
//   - At each of the three its loss is above the median of the others by more than `margin` (a share of it), and in the
//     mean by more than that and twice the scatter of the curves: how far a middle value lies off the line between its
//     neighbours, all curves taken as shares of the median. Of an even number the better of the two in the middle is
//     the median.
//   - It does not catch up: the line through its three shares is above the margin at the end of the run.
// The newest three of its evaluations at which enough others can be compared are looked at.
std::string hopeless(const JudgedRun& run, const std::vector<JudgedRun>& others, std::int64_t steps, double margin);

// The step at which a run waits until the others are there, so that all are judged at the same one, whatever their
// order: the first at which each of `all` that can be compared with it could be judged. 0: it does not wait, since too
// few can be compared, or too few evaluations come before its end.
std::int64_t pause_step(const JudgedRun& run, const std::vector<JudgedRun>& all, std::int64_t steps);

}  // namespace redline::cli
