// How a node computes, where a backend leaves a choice. The lowering decides, the node holds it, the kernel obeys.
#pragma once

#include <compare>
#include <cstdint>
#include <string_view>

namespace redline::ops {

enum class Math : std::uint8_t { full, tf32 };    // tf32: products may round their fp32 operands to it
enum class Bits : std::uint8_t { free, repeat };  // repeat: no bits may depend on timing

struct ProductHow {
  Math math = Math::full;
  Bits bits = Bits::free;
  bool fast_sums = false;  // of fp8 operands: sums keep some 14 bits over a few products before they are added in fp32
  auto operator<=>(const ProductHow&) const = default;
};

// The documents of a batch. full_rows: every document is as long as the longest may be, and no token is left over;
// libraries are faster there. Any batch is packed.
enum class Documents : std::uint8_t { packed, full_rows };

enum class AttentionBy : std::uint8_t { automatic, cudnn, hopper, flash, reference };
inline constexpr std::string_view kAttentionBy[] = {"auto", "cudnn", "hopper", "flash", "reference"};
constexpr std::string_view name_of(AttentionBy by) { return kAttentionBy[static_cast<int>(by)]; }
constexpr AttentionBy attention_by(std::string_view name) {  // one of those names
  int by = 0;
  while (kAttentionBy[by] != name) ++by;
  return static_cast<AttentionBy>(by);
}

// Whether a node may run again for the backward pass (program/recompute.cpp). An op says so in kAgain; silence is
// `where_needed`.
enum class Again : std::uint8_t {
  where_needed,  // wherever a node of the backward pass reads what it made
  widest,        // the same; what it reads and writes are a layer's largest values, all that "mlp" makes again
  as_its_input,  // like the node whose result, x, it casts
  never,         // it adds to sums: what it made is kept
};
template <class Op>
constexpr Again again_of() {
  if constexpr (requires { Op::kAgain; })
    return Op::kAgain;
  else
    return Again::where_needed;
}

struct AttentionHow {
  AttentionBy by = AttentionBy::automatic;
  Math math = Math::full;
  Bits bits = Bits::free;
  Documents documents = Documents::packed;
  auto operator<=>(const AttentionHow&) const = default;
};

}  // namespace redline::ops
