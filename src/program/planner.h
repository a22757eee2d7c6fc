// Turns lifetimes into offsets: places every value in one arena, so that values which do not live at the same time
// share memory.
#pragma once

#include "program/program.h"

namespace redline::program {

inline constexpr std::int64_t kAlignment = 256;  // bytes, of every value that owns its memory

// Fills set.memory.
void plan_memory(ProgramSet& set);

// The transient values that are alive at the peak node of a planned set.
std::vector<ValueId> alive_at_peak(const ProgramSet& set);

}  // namespace redline::program
