// A program: a flat list of nodes over values, lowered once and replayed for every step. It includes every op;
// program/program_set.h is enough for code that looks into no node.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "program/op.h"
#include "program/program_set.h"

namespace redline::program {

// When a node's work happens. A pair of nodes over the same operands lets work run beside the nodes between them: the
// first starts it on another stream, the other waits for it. Both list all operands, so that lifetimes cover the work.
// A device without a second stream does the work at the start.
enum class When : std::uint8_t { now, start, wait };

// The stream of a pair's work. Copies between memories have one a direction, since a link carries both at once; all
// else shares one.
enum class Lane : std::uint8_t { side, to_host, to_device };
inline constexpr int kLanes = 3;

// Whether an op copies from one memory to another, and where to. An op that computes must find all its operands in the
// device's memory.
std::optional<Memory> copies_to(const Op& op, const std::vector<Value>& values);
Lane lane_of(const Op& op, const std::vector<Value>& values);

struct Node {
  Op op;
  Phase phase = Phase::forward;
  Cost cost = {};
  std::string name;  // "attention/backward"
  Place place = {};
  When when = When::now;
  std::int32_t pair = -1;  // the same number at both ends, no other pair's of the program
  std::int32_t every = 1;  // it runs at steps whose number is a multiple of this
  Lane lane = Lane::side;  // of a pair

  std::string full_name() const { return place.full(name); }  // "layer 3/attention/backward"
  Node wait() const;                                          // the other end of a pair that this one starts
};

// A program may have variants under one name: for kinds of batches, and for steps at which more of its nodes run.
struct Program {
  std::string name;
  std::vector<Node> nodes;
  ops::Documents documents = ops::Documents::packed;
  std::int32_t every = 1;  // for steps whose number is a multiple of this
  bool across = false;     // pairs that begin here end in another program, or the other way round
};

// The least work of an op, from the shapes of its operands: the sum over nodes is the step's FLOPs and bytes. Bytes
// count every operand once for each direction it moves in, and scratch not at all, unless the op's header has its own
// cost.
Cost cost_of(const Op& op, const std::vector<Value>& values);

}  // namespace redline::program
