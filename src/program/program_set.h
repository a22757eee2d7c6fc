// Values, and sets of programs over one table of values: all that can be said of programs without their ops, which
// program/program.h has. Values are named and shaped before any memory exists.
#pragma once

#include <fmt/format.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor.h"
#include "ops/how.h"

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
  scale,       // persistent: of operands in eight bits
  record,      // persistent: what steps have seen: largest magnitudes, the usual norm
  average,     // persistent: of parameters
  constant,    // persistent: filled once (RoPE tables)
  cache,       // persistent: keys and values of the texts that are being continued
  input,       // persistent: written by the host before a run of a program (batch, step state)
  output,      // persistent: read by the host after it (loss, norm)
  snapshot,    // persistent: a copy of saved state, behind everything else of its memory
  activation,  // lives within one run of a program
  scratch,     // lives within one node, or one pair of them
};
inline constexpr int kRoles = 14;

constexpr bool persistent(Role r) { return r < Role::activation; }

constexpr std::string_view name_of(Role r) {
  constexpr std::string_view kNames[kRoles] = {"parameters", "working copies", "gradients",   "moments", "scales",
                                               "records",    "averages",       "constants",   "caches",  "inputs",
                                               "outputs",    "snapshots",      "activations", "scratch"};
  return kNames[static_cast<int>(r)];
}

// The part of the model that a value or node belongs to. Decisions use it; names are for people.
enum class Part : std::uint8_t { embedding, attention, mlp, head, update, communication };

constexpr std::string_view name_of(Part p) {
  constexpr std::string_view kNames[] = {"embedding", "attention", "mlp", "head", "update", "communication"};
  return kNames[static_cast<int>(p)];
}

// The memory that a value's bytes lie in: the device's, or the host's. The host's is pinned on a card's machine, and a
// second arena on the CPU, so that a program with both runs anywhere.
enum class Memory : std::uint8_t { device, host };

constexpr std::string_view name_of(Memory m) { return m == Memory::device ? "device" : "host"; }

inline constexpr std::int32_t kNoLayer = -1, kNoParameter = -1;
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
  Memory memory = Memory::device;
  // The row of the model's table whose weights it holds, a copy of them, or their gradient.
  std::int32_t parameter = kNoParameter;

  std::string full_name() const { return place.full(name); }
  std::int64_t bytes() const { return shape.elements() * static_cast<std::int64_t>(size_of(dtype)); }
};

enum class Phase : std::uint8_t { forward, recompute, backward, update };

constexpr std::string_view name_of(Phase p) {
  constexpr std::string_view kNames[] = {"forward", "recompute", "backward", "update"};
  return kNames[static_cast<int>(p)];
}

// What is in a value from the start. It is made where memory is given to it: a plan, which lowers many times, has none.
struct Constant {
  ValueId value;
  std::function<std::vector<float>()> make;
};

// A node of a set: by the indices of its program and of itself there.
struct NodeAt {
  std::size_t program = 0, node = 0;
};

// One arena: all values of a memory. Sizes are in bytes. By role and in the total, snapshots do not count.
struct ArenaPlan {
  std::int64_t by_role[kRoles] = {};               // persistent roles: their sum; transient ones: at the peak node
  std::int64_t persistent = 0;                     // where the transient region begins
  std::vector<std::int64_t> transient_by_program;  // size of its overlay
  std::int64_t total = 0;                          // persistent and the largest overlay: what a run cannot do without
  std::int64_t snapshot = 0;                       // copies of saved state behind that
  std::optional<NodeAt> peak;                      // where most bytes are alive; empty: no value is transient
  std::int64_t allocated() const { return total + snapshot; }
  // The total, of an arena that holds more than results of steps.
  std::int64_t beyond_results() const { return total > by_role[static_cast<int>(Role::output)] ? total : 0; }
};

// The place of every value, and an arena for each memory. Offsets are in bytes.
struct MemoryPlan {
  std::vector<std::int64_t> offsets;  // by value, in the arena of its memory; -1: used by no program
  ArenaPlan device, host;

  ArenaPlan& of(Memory m) { return m == Memory::device ? device : host; }
  const ArenaPlan& of(Memory m) const { return m == Memory::device ? device : host; }
};

// The programs of a run over one table of values and one memory plan. In each arena persistent values come first, and
// the transient values of each program overlay those of the others after them.
struct Node;
struct Program;
inline constexpr std::uint64_t kAnyStep = 1;  // a multiple of nothing: no variant is for it
struct ProgramSet {
  std::vector<Value> values;
  std::vector<Constant> constants;
  std::vector<Program> programs;
  MemoryPlan memory;

  ProgramSet();
  ProgramSet(const ProgramSet&);
  ProgramSet(ProgramSet&&) noexcept;
  ProgramSet& operator=(const ProgramSet&);
  ProgramSet& operator=(ProgramSet&&) noexcept;
  ~ProgramSet();

  ValueId add(Value value);
  Value& at(ValueId id) { return values[static_cast<std::size_t>(id.index)]; }
  const Value& at(ValueId id) const { return values[static_cast<std::size_t>(id.index)]; }
  ValueId owner(ValueId id) const;  // the value that owns the bytes of `id`
  // Makes the last program, where some of its nodes run every k-th step, two variants: one without these nodes, and all
  // of it for steps that are multiples of k.
  void split_by_step();
  // The variant for a kind of batch and for a step; without one of its own, the one for any batch, and for any step.
  const Program& find(std::string_view name, ops::Documents documents = ops::Documents::packed,
                      std::uint64_t step = kAnyStep) const;
  const Node& node(const NodeAt& at) const;
};

// The cache of one layer: keys and values of the texts that are being continued, a slot each.
struct LayerCache {
  ValueId keys, values;  // [slots, kv_heads, positions, head_dim]
};

// The batch as programs see it. With caches, documents are texts whose keys and values are stored for the slots that
// continue them. With caches and without doc_offsets, every token is the next one of its slot.
struct BatchValues {
  ValueId tokens, targets, positions, doc_offsets;
  std::int64_t longest = 0;             // no document has more tokens
  std::vector<LayerCache> caches = {};  // by layer
  ValueId slot_documents = {};          // [slots]
  ValueId router_load = {};             // [layers with experts, columns of ops/experts.h] f64
};

}  // namespace redline::program
