// The parts that could not be built into this program, as CMake found them (cmake/LeftOut.cmake). A part that somebody
// switched off is not among them.
#pragma once

#include <string>
#include <vector>

namespace redline {

struct LeftOut {
  std::string what;  // "Parquet"
  std::string why;   // "Arrow's C++ library was not found"
  std::string cost;  // "files of Parquet cannot be read"
  bool on_cards;     // it matters only to a machine with a card
};

const std::vector<LeftOut>& left_out();

}  // namespace redline
