// One step on many ranks: a pass over finished programs that puts in what ranks do together. The model and its builder
// know nothing of it.
//   ddp    gradients are added up in buckets, each as soon as the backward pass has written it
//   zero1  the same, to each part's owner only; weights come from their owners before they are first used
//   fsdp   weights of a unit are there from one unit before its use until its last use, and again on the way back;
//          gradients of a unit are added up into their owners' shards, and forgotten
// Every collective is a pair of nodes, so that it travels beside what is computed. In any mode the totals that an
// update is decided by are added up over the ranks.
#pragma once

#include <algorithm>
#include <vector>

#include "dist/sharing.h"
#include "program/program.h"

namespace redline::program {

struct Distribution {
  dist::Sharing sharing;
  Shards shards;  // of the flat arrays
  struct Unit : Stretch {
    bool kept = false;  // fsdp: small enough to stay from its first use to its last, whatever stands between
  };
  std::vector<Unit> units;  // in order, together all of the flat arrays: what travels at once
  // The flat arrays of which nodes use views. In fsdp they are names only: no node of a finished program touches them,
  // and they have no memory.
  ValueId weights, gradients;
  ValueId weight_shard, gradient_shard;  // fsdp: what this rank keeps of them
};

struct Travels {
  bool weights = false;  // zero1: the program begins with weights from their owners; fsdp does so wherever it uses any
  bool gradients = false;   // they are complete behind it and are added up
  bool accumulate = false;  // fsdp: onto what the shards hold
};

void distribute(ProgramSet& set, Program& program, const Distribution& d, const Travels& travels);

// Weights from their owners and nothing else, as a program of its own: zero1, for whoever uses them between steps.
Program gather_weights(ProgramSet& set, std::string name, const Distribution& d);

// In ddp and zero1 gradients travel in ranges of whole units and of at least so many elements: large enough for a
// network's full rate, small enough that most of them travel while others are computed. A collective takes a hop for
// every rank, so that many ranks want fewer of them.
constexpr std::int64_t bucket_elements(int ranks) { return 40'000'000 * std::max<std::int64_t>(1, ranks / 64); }

}  // namespace redline::program
