// A profile as Chrome's trace format: one bar a run of a node. Open it in chrome://tracing or ui.perfetto.dev.
#pragma once

#include <string>

#include "perf/profile.h"

namespace redline::perf {

std::string chrome_trace(const Profile& profile);

}  // namespace redline::perf
