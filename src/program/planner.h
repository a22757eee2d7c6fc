// Turns lifetimes into offsets: places every value in one arena, so that values which do not live at the same time
// share memory.
#pragma once

#include "program/program.h"

namespace redline::program {

// Fills set.memory.
void plan_memory(ProgramSet& set);

// The nodes of a transient value, from the first that touches it to the last.
struct Lifetime {
  ValueId value;
  std::size_t first = 0, last = 0;
  bool overlaps(const Lifetime& other) const { return first <= other.last && other.first <= last; }
};

std::vector<Lifetime> lifetimes(const ProgramSet& set, const Program& program);

// The transient values that are alive at the peak node of a planned set.
std::vector<ValueId> alive_at_peak(const ProgramSet& set);

}  // namespace redline::program
