// Rounds of batches, one a rank, of documents whose lengths are known: every rank decides from lengths alone which
// pieces make them, and reads only those of its own batch. A chunk is this rank's batch of a round.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "data/assembler.h"
#include "data/corpus.h"
#include "data/feed.h"
#include "data/mixture_schedule.h"
#include "data/packer.h"

namespace redline::data {

class RoundFeed final : public Feed {
 public:
  // A source of the mixture: its documents and their order. Cut and end are the same for all sources.
  struct Source {
    const DocumentSource* documents;
    FeedOptions options;
  };
  RoundFeed(const std::vector<Source>& sources, MixtureSchedule schedule, const PackerSettings& settings,
            Replica replica);

  // Packs a round. The end is a chunk too, of count 0, which carries the state behind all documents.
  bool take(Chunk& chunk) override;
  std::unique_ptr<ChunkMaker> maker() override;
  bool restore(const LoaderState& state);  // as BatchMaker::restore(); nobody may take meanwhile

  std::int64_t seek(const FeedPlace& place) override;  // with no waiting pieces
  void fetch(const std::vector<PieceId>& ids, Chunk& chunk) override;
  std::string_view maker_stage() const override { return "read"; }
  // Of one source; a mixture has none of these.
  std::optional<EpochSize> size() const override;
  std::vector<PieceLength> first_lengths(std::int64_t most) const override;
  std::optional<double> share_before(const FeedPlace& place) const override;
  double share_before(std::size_t source, const FeedPlace& place) const;
  const MixtureSchedule& schedule() const { return schedule_; }  // any thread may ask it for numbers

 private:
  // Documents in their order, and the place in it.
  struct Ordered {
    const DocumentSource* documents;
    PieceOrder order;
    FeedPlace next;
    bool any_in_epoch = false;
  };
  struct Drawn : PieceNumbers::Place {
    std::size_t source = 0;
  };
  std::optional<Drawn> draw(bool may_begin_epoch);
  std::optional<PieceNumbers::Place> draw_from(Ordered& source, bool may_begin_epoch);
  void offer(const Drawn& drawn);
  std::int64_t pack(Chunk* mine);
  LoaderState state() const;

  FeedOptions options_;
  Replica replica_;
  MixtureSchedule schedule_;
  std::vector<Ordered> sources_;
  Packer packer_;
  std::vector<Drawn> slots_;       // of pieces that wait or are being placed
  std::vector<std::size_t> free_;  // of slots_
  Shuffler::Passed passed_;
  bool ended_ = false;
};

// Batches from the chunks of a RoundFeed.
class RoundAssembler final : public BatchMaker {
 public:
  RoundAssembler(ChunkReader& reader, RoundFeed& feed, StageCounters& counters);

  bool fill(Batch& batch) override;
  LoaderState state() const override { return state_; }
  bool restore(const LoaderState& state) override;

 private:
  ChunkReader& reader_;
  RoundFeed& feed_;
  StageCounters& counters_;
  LoaderState state_;
};

}  // namespace redline::data
