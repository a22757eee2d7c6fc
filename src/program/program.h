// A program: a flat list of nodes over values, lowered once and replayed for every step. A set of programs shares one
// table of values and one memory plan: persistent values stand first, the transient ones of each program overlay each
// other behind them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "program/op.h"
#include "program/value.h"

namespace redline::program {

enum class Phase : std::uint8_t { forward, recompute, backward, update };

constexpr std::string_view name_of(Phase p) {
  constexpr std::string_view kNames[] = {"forward", "recompute", "backward", "update"};
  return kNames[static_cast<int>(p)];
}

// When a node's work happens. A pair of nodes over the same operands lets work run beside the nodes between them: the
// first starts it on a second stream, the other waits for it. Both list all operands, so that lifetimes cover the work.
// A device without a second stream does the work at the start.
enum class When : std::uint8_t { now, start, wait };

struct Node {
  Op op;
  Phase phase = Phase::forward;
  Cost cost = {};
  std::string name;  // "attention/backward"
  Place place = {};
  When when = When::now;
  std::int32_t pair = -1;  // the same number at both ends, no other pair's of the program

  std::string full_name() const { return place.full(name); }  // "layer 3/attention/backward"
};

// A program may have variants for kinds of batches, under one name.
struct Program {
  std::string name;
  std::vector<Node> nodes;
  ops::Documents documents = ops::Documents::packed;
};

struct Constant {
  ValueId value;
  std::vector<float> data;
};

// A node of a set: by the indices of its program and of itself there.
struct NodeAt {
  std::size_t program = 0, node = 0;
};

// The place of every value in the one arena, and the memory in all. Offsets and sizes are in bytes.
struct MemoryPlan {
  std::vector<std::int64_t> offsets;               // by value; -1: used by no program
  std::int64_t by_role[kRoles] = {};               // persistent roles: their sum; transient ones: at the peak node
  std::int64_t persistent = 0;                     // where the transient region begins
  std::vector<std::int64_t> transient_by_program;  // size of its overlay
  std::int64_t total = 0;                          // the arena: persistent and the largest overlay
  std::optional<NodeAt> peak;                      // where most bytes are alive; empty: no value is transient
};

struct ProgramSet {
  std::vector<Value> values;
  std::vector<Constant> constants;
  std::vector<Program> programs;
  MemoryPlan memory;

  const Value& at(ValueId id) const { return values[static_cast<std::size_t>(id.index)]; }
  ValueId owner(ValueId id) const;  // the value that owns the bytes of `id`
  // The variant for a kind of batch; without one of its own, the one for any batch.
  const Program& find(std::string_view name, ops::Documents documents = ops::Documents::packed) const;
  const Node& node(const NodeAt& at) const { return programs[at.program].nodes[at.node]; }
};

}  // namespace redline::program
