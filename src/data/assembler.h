// Makes batches one after another in one thread: it draws pieces, places them and keeps the state behind each batch. On
// several ranks the batches go round: a round is one batch for each.
#pragma once

#include <cstdint>
#include <vector>

#include "data/batch.h"
#include "data/chunk_reader.h"
#include "data/loader_state.h"
#include "data/mixed_shuffler.h"
#include "data/packer.h"

namespace redline::data {

// The rank whose batch of each round is made.
struct Replica {
  std::int64_t rank = 0, ranks = 1;
};

class BatchMaker {
 public:
  virtual ~BatchMaker() = default;
  // This rank's batch of the next round; empty where the documents ended before it. False when every rank's is.
  virtual bool fill(Batch& batch) = 0;
  virtual LoaderState state() const = 0;  // behind the whole round: the same on every rank
  // False when the corpus cannot be the one that the state is from; errors of the feed are thrown. Either way only
  // another restore() may follow.
  virtual bool restore(const LoaderState& state) = 0;
};

// For documents whose lengths are known only after reading: those of other ranks' batches are read and dropped.
class Assembler final : public BatchMaker {
 public:
  // A reader for each source of the mixture.
  Assembler(const ChunkReaders& readers, MixtureSchedule schedule, const PackerSettings& settings, bool repeat,
            Replica replica, StageCounters& counters);

  bool fill(Batch& batch) override;
  LoaderState state() const override;
  bool restore(const LoaderState& state) override;

 private:
  // A piece that waits or is being placed.
  struct Slot {
    PieceId id;
    std::vector<std::int32_t> tokens;
    std::int32_t after = kNoTarget;
  };
  std::vector<Chunk> fetch(const std::vector<PieceId>& ids);
  std::int64_t store(const Shuffler::Drawn& drawn);
  std::int64_t pack(Batch* mine);
  void add(const PlacedPiece& placed, Batch& batch) const;

  Replica replica_;
  Packer packer_;
  MixedShuffler shuffler_;
  const ChunkReaders& readers_;
  StageCounters& counters_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> free_;  // of slots_
};

}  // namespace redline::data
