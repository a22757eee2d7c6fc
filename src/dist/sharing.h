// How the ranks of a run share its work and its memory.
#pragma once

#include <string_view>

#include "base/shards.h"
#include "config/config.h"

namespace redline::dist {

enum class Mode : std::uint8_t {
  ddp,    // every rank keeps everything
  zero1,  // moments and master weights are shared out
  fsdp,   // gradients and weights as well; a layer's weights are there while it is computed
};

constexpr std::string_view name_of(Mode m) {
  constexpr std::string_view kNames[] = {"ddp", "zero1", "fsdp"};
  return kNames[static_cast<int>(m)];
}

constexpr Mode mode_named(std::string_view name) {
  for (const Mode m : {Mode::zero1, Mode::fsdp})
    if (name == name_of(m)) return m;
  return Mode::ddp;
}

struct Sharing {
  int rank = 0, ranks = 1;
  Mode mode = Mode::ddp;
  bool bf16_wire = false;  // gradients travel as bf16
  int sequence = 1;        // ranks that have a part of every row each: a group, whose ranks follow each other
  int shards = 0;          // ranks that follow each other and share out one copy of the state (HSDP); 0: all

  bool alone() const { return ranks == 1; }
  int groups() const { return ranks / sequence; }  // each has batches of its own
  int group() const { return rank / sequence; }
  int part() const { return rank % sequence; }  // of the tokens of its group's batch

  // The state is there so many times, each time shared out among so many ranks: in ddp each has a copy for itself.
  int holders() const { return mode == Mode::ddp ? 1 : shards > 0 ? shards : ranks; }
  int copies() const { return ranks / holders(); }
  int copy() const { return rank / holders(); }
  int holder() const { return rank % holders(); }
  // Of the parts that ranks answer for, which are as many as ranks: those of one holder's part follow each other.
  int own_part() const { return holder() * copies() + copy(); }
  // Gradients of micro-steps before the last stay with so many ranks, or groups of them, each of which has others.
  int apart() const { return mode == Mode::fsdp ? copies() : ranks; }
  bool operator==(const Sharing&) const = default;
};

inline Sharing sharing_of(const config::Parallel& parallel, int rank, int ranks, Mode mode) {
  return {.rank = rank,
          .ranks = ranks,
          .mode = mode,
          .bf16_wire = parallel.wire == "bf16",
          .sequence = static_cast<int>(parallel.sequence),
          .shards = static_cast<int>(parallel.shards)};
}

}  // namespace redline::dist
