// The memory and the FLOPs of programs before they run. Lifetimes become offsets: every value has its place in the
// arena of its memory, and values that do not live at the same time share bytes.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string_view>

#include "program/program_set.h"

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

// The transient values that are alive at the peak node of a planned set, on the device.
std::vector<ValueId> alive_at_peak(const ProgramSet& set);

// The (query, key) pairs of a batch that a mask of some window keeps. Layers may have different ones.
using PairsWithin = std::function<double(std::int64_t window)>;
// Those of full rows, each one document.
PairsWithin pairs_of_rows(double rows, double seq_len);

// FLOPs of a set of nodes for a batch in which `fill` of the token slots are real. Padding does not count; neither do
// products that are made again, nor those of the update.
struct ModelFlops {
  double per_slot_products = 0;             // products of all token slots, padding or not: multiply by the fill
  std::map<std::int64_t, double> per_pair;  // attention, by window
  double operator()(double fill, const PairsWithin& pairs) const;
};
ModelFlops model_flops(const Program& program);

}  // namespace redline::program
