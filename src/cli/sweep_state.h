// The runs of a sweep and how far each is: the runs of the grid, and earlier ones from sweep.json. Nothing here starts
// a run.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "cli/sweep_grid.h"
#include "config/load.h"

namespace redline::cli {

inline constexpr const char* kSweepState = "sweep.json";

enum class SweptState { waiting, running, finished, hopeless, diverged, failed, interrupted };
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

// Loads and checks every combination, so that a bad one is told before anything runs. UserErrors: two combinations that
// give the same configuration, a folder whose sweep had another base configuration, and a folder that holds something
// else. Nothing is written.
Sweep read_sweep(FileSystem& files, const Path& folder, const config::Sources& base, const std::vector<GridKey>& grid);

}  // namespace redline::cli
