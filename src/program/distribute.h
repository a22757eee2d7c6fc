// Distributes a step over many ranks: a pass over finished programs that inserts collectives. The model and its builder
// know nothing of it.
//   ddp    gradients are added up in buckets, each as soon as the backward pass has written it
//   zero1  the same, to each part's owner only; weights come from their owners before they are first used
//   fsdp   weights of a unit are there from one unit before its use until its last use, and again on the way back;
//          gradients of a unit are added up into their owners' shards, and forgotten
// Every collective is a pair of nodes, so that it travels while other nodes compute. In every mode, the totals that
// decide an update are added up over the ranks.
#pragma once

#include <algorithm>
#include <vector>

#include "dist/sharing.h"
#include "program/program.h"

namespace redline::program {

struct Distribution {
  dist::Sharing sharing;
  Shards shards;  // of the flat arrays
  struct Unit : Range {
    bool kept = false;  // fsdp: small enough to stay from its first use to its last
  };
  std::vector<Unit> units;  // travel one at a time; in order, together all of the flat arrays
  // The flat arrays whose views nodes use. In fsdp they are names only: no node of a finished program uses them, and
  // they have no memory.
  ValueId weights, gradients;
  ValueId weight_shard, gradient_shard;  // fsdp: this rank's part of them
};

struct Travels {
  bool weights = false;  // zero1: the program begins with weights from their owners; fsdp does so wherever it uses any
  bool gradients = false;   // they are complete behind it and are added up
  bool accumulate = false;  // fsdp: onto what the shards hold
};

void distribute(ProgramSet& set, Program& program, const Distribution& d, const Travels& travels);

// A program that only gathers weights from their owners: for zero1, where weights are used between steps.
Program gather_weights(ProgramSet& set, std::string name, const Distribution& d);

// In ddp and zero1 gradients travel in ranges of whole units with at least so many elements. This is large enough for a
// network's full rate, and small enough that most ranges travel while others are computed. A collective takes a hop for
// every rank, so that many ranks need larger ranges.
constexpr std::int64_t bucket_elements(int ranks) { return 40'000'000 * std::max<std::int64_t>(1, ranks / 64); }

}  // namespace redline::program
