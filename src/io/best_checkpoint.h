// The name `best` among a run's checkpoints: a relative link to the folder of one step. It is no checkpoint of its own,
// and pruning leaves the folder that it names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/files.h"

namespace redline::io {

inline constexpr const char* kBest = "best";

// Links the name to the checkpoint of `step`, which has been written. A reader finds the old or the new one under it at
// any time. Returns the problem as a sentence; empty: there is none.
std::string link_best(FileSystem& files, const Path& parent, std::int64_t step);

// The step that it links to; nothing where there is no such link, or one that is not ours.
std::optional<std::int64_t> best_checkpoint(const Path& parent);

// The folder of the step where `folder` is such a link, else `folder`. A reader stays with that step though the run
// links the name anew.
Path resolve_best(const Path& folder);

}  // namespace redline::io
