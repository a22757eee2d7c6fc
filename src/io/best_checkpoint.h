// The name `best` among a run's checkpoints: a relative link to the folder of one step. It is no checkpoint of its own,
// and pruning leaves the folder that it names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/files.h"

namespace redline::io {

inline constexpr const char* kBest = "best";

// Lets the name stand for the checkpoint of `step`, which has been written. A reader finds the old one or the new one
// under it, at any time. Returns what is in the way as a sentence; nothing where all is well.
std::string name_best(FileSystem& files, const Path& parent, std::int64_t step);

// The step that it stands for; nothing where there is no such link, or one that somebody else made.
std::optional<std::int64_t> best_checkpoint(const Path& parent);

// The folder of the step where `folder` is such a link, so that a reader stays with it though the run goes on; else
// `folder`.
Path without_best(const Path& folder);

}  // namespace redline::io
