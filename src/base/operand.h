// How an op declares its operands. Every op is a struct template over its operand type T: ValueId while a program
// is being built, Tensor when it is bound. Its one member map(f) calls f(name, operand, access) for each operand
// in order and returns the same op over f's results, attributes kept. Lifetimes, binding, checks and byte counts
// all come from it.
#pragma once

#include <cstdint>
#include <string_view>

namespace redline {

enum class Access : std::uint8_t {
  read,
  write,   // =   every element is written, nothing is read
  update,  // +=  or in place: read and written
};

// The least work of a node: floating point operations of matrix products (element-wise arithmetic is not
// counted) and bytes moved once. Attention depends on the documents of a batch: flops_per_pair counts per
// (query, key) pair kept.
struct Cost {
  double flops = 0;
  double flops_per_pair = 0;
  double bytes = 0;
};

// The access of an output that is written by the first contribution and added to by later ones.
constexpr Access written_or_added(bool accumulate) { return accumulate ? Access::update : Access::write; }

}  // namespace redline
