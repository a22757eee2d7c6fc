// Batches made one after another by one thread: what to draw, which pieces to place, where that leaves us.
#pragma once

#include <cstdint>
#include <vector>

#include "data/batch.h"
#include "data/chunk_reader.h"
#include "data/drawer.h"
#include "data/loader_state.h"
#include "data/packer.h"

namespace redline::data {

class Assembler {
 public:
  Assembler(ChunkReader& reader, const PackerSettings& settings, bool repeat, StageCounters& counters);

  bool fill(Batch& batch);  // false, and an empty batch, at the end of the documents
  LoaderState state() const;
  // False when the corpus cannot be the one that the state is from; what the feed finds is thrown. Either leaves
  // nothing to go on with but another restore().
  bool restore(const LoaderState& state);

 private:
  // A piece that waits or is being placed.
  struct Slot {
    PieceId id;
    std::vector<std::int32_t> tokens;
    std::int32_t after = kNoTarget;
  };
  std::int64_t store(const Drawer::Drawn& drawn);
  void add(const PlacedPiece& placed, Batch& batch);

  Packer packer_;
  Drawer drawer_;
  ChunkReader& reader_;
  StageCounters& counters_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> free_;  // of slots_
};

}  // namespace redline::data
