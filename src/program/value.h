// Values: everything a program reads or writes, named and shaped, before any memory exists.
#pragma once

#include <fmt/format.h>

#include <compare>
#include <cstdint>
#include <string>

#include "base/tensor.h"

namespace redline::program {

struct ValueId {
  std::int32_t index = -1;
  bool present() const { return index >= 0; }
  auto operator<=>(const ValueId&) const = default;
};
inline constexpr ValueId kAbsent{};  // an optional operand that is not there

enum class Role : std::uint8_t {
  parameter,   // persistent: lives as long as the run
  working,     // persistent: parameters in the type that products take, where that is another
  gradient,    // persistent: accumulates over micro-batches
  moment,      // persistent: the optimizer's
  average,     // persistent: of parameters
  constant,    // persistent: filled once (RoPE tables)
  cache,       // persistent: keys and values of the texts that are being continued
  input,       // persistent: written by the host before a run of a program (batch, step state)
  output,      // persistent: read by the host after it (loss, norm)
  activation,  // lives within one run of a program
  scratch,     // lives within one node, or one pair of them
};
inline constexpr int kRoles = 11;

constexpr bool persistent(Role r) { return r < Role::activation; }

constexpr std::string_view name_of(Role r) {
  constexpr std::string_view kNames[kRoles] = {"parameters", "working copies", "gradients", "moments",
                                               "averages",   "constants",      "caches",    "inputs",
                                               "outputs",    "activations",    "scratch"};
  return kNames[static_cast<int>(r)];
}

// The part of the model that a value or node belongs to. Decisions use it; names are for people.
enum class Part : std::uint8_t { embedding, attention, mlp, head, update, communication };

constexpr std::string_view name_of(Part p) {
  constexpr std::string_view kNames[] = {"embedding", "attention", "mlp", "head", "update", "communication"};
  return kNames[static_cast<int>(p)];
}

inline constexpr std::int32_t kNoLayer = -1;
struct Place {
  Part part = Part::embedding;
  std::int32_t layer = kNoLayer;
  // "layer 3/qkv" of "qkv".
  std::string full(std::string_view name) const {
    return layer == kNoLayer ? std::string(name) : fmt::format("layer {}/{}", layer, name);
  }
};

struct Value {
  std::string name;  // "qkv"
  Shape shape;
  DType dtype = DType::f32;
  Role role = Role::activation;
  ValueId alias_of;               // a view of (a part of) another value; absent: owns its bytes
  std::int64_t alias_offset = 0;  // bytes into it
  Place place = {};               // of the node that makes it; persistent values have none

  std::string full_name() const { return place.full(name); }
  std::int64_t bytes() const { return shape.elements() * static_cast<std::int64_t>(size_of(dtype)); }
};

}  // namespace redline::program
