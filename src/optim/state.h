// The state that a run keeps from step to step, as a table: a row for each flat array. Lowering declares the rows,
// checkpoints hold those that name a file, and nothing else lists them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/shards.h"
#include "base/tensor.h"

namespace redline::optim {

// What an array is to those that treat it apart.
enum class StateKind : std::uint8_t {
  usual,
  first_moments,  // codes of eight bits have scales; a checkpoint may hold another type
  second_moments,
  moment_scales,
  fp8_scales,   // a checkpoint of another precision has none
  fp8_records,  // the magnitudes that a step meets: 0 between steps
};

struct StateArray {
  std::string name;  // "first moments"; rows of one name are about different parameters
  DType dtype = DType::f32;
  Range range = {};  // of all parameters laid out back to back: those it belongs to; empty: none
  // Elements of parameters for each of its own: 256 for scales of 8-bit moments. Blocks begin at multiples of it in the
  // flat layout, counted from `origin`; the range may begin and end within a block.
  std::int64_t block = 1, origin = 0;
  // Or one tensor of this shape about all parameters of its range together, [rows, rows] of a matrix or one number: a
  // rank has all of the range, and all of it, or nothing (Optimizer::whole).
  Shape shape = {};
  std::int64_t independent = 0;  // elements of an array that belongs to no parameter
  std::string file = {};         // of a checkpoint; empty: it is not saved
  // In that file: the prefix of the parameters' names. An array whose elements are not theirs one by one is one tensor
  // of this name, in the order of the flat layout.
  std::string stored_as = {};
  bool may_be_absent = false;  // from a checkpoint: it then begins at zero
  Range shared = {};           // where ranks share it: the range of all together; `range` is this rank's part
  StateKind kind = StateKind::usual;

  Range all() const { return shared.elements() > 0 ? shared : range; }
  bool by_parameter() const { return all().elements() > 0 && block == 1 && shape.rank() == 0; }
  std::int64_t elements() const { return elements_of(range); }
  std::int64_t all_elements() const { return elements_of(all()); }  // of all ranks
  std::int64_t elements_of(Range part) const {
    if (all().elements() == 0) return independent;
    if (shape.rank() > 0) return part.elements() > 0 ? shape.elements() : 0;
    return part.elements() > 0 ? (part.end - origin + block - 1) / block - block_of(part.begin) : 0;
  }
  // The index of the first element for `part`, counted from the first element for `from`. A part begins within a block
  // only where the range of all ranks does.
  std::int64_t first_of(Range part, Range from) const {
    return shape.rank() > 0 ? 0 : block_of(part.begin) - block_of(from.begin);
  }
  bool cuts_no_block(Range part) const {
    const Range whole = all();
    if (shape.rank() > 0) return part.elements() <= 0 || part == whole;
    return part.elements() <= 0 || ((begins_block(part.begin) || part.begin == whole.begin) &&
                                    (begins_block(part.end) || part.end == whole.end));
  }
  std::int64_t block_of(std::int64_t element) const { return (element - origin) / block; }
  bool begins_block(std::int64_t element) const { return (element - origin) % block == 0; }
};

using StateTable = std::vector<StateArray>;

// The rows of every run that trains, by name. An optimizer's own stand beside it.
inline constexpr std::string_view kParameters = "parameters";
inline constexpr std::string_view kWorking = "working copies";  // where products take another type
inline constexpr std::string_view kGradients = "gradients";

inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kAverageFile = "average.safetensors";  // a run without train.average has none
inline constexpr const char* kFp8File = "fp8.safetensors";  // scales; a checkpoint of another precision has none

}  // namespace redline::optim
