// How the ranks of a run share its work and its memory.
#pragma once

#include <string_view>

#include "base/shards.h"

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

  bool alone() const { return ranks == 1; }
  int groups() const { return ranks / sequence; }  // each has batches of its own
  int group() const { return rank / sequence; }
  int part() const { return rank % sequence; }  // of the tokens of its group's batch
  bool operator==(const Sharing&) const = default;
};

}  // namespace redline::dist
