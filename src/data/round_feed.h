// Rounds of batches, one a rank, of documents whose lengths are known: every rank decides from lengths alone which
// pieces make them, and reads only those of its own batch. A chunk is this rank's batch of a round.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "data/assembler.h"
#include "data/feed.h"
#include "data/packer.h"
#include "data/source.h"

namespace redline::data {

class RoundFeed final : public Feed {
 public:
  RoundFeed(const DocumentSource& source, const FeedOptions& options, const PackerSettings& settings, Turn turn);

  // Packs a round. Its end is a chunk too, of count 0, so that the state behind all documents is told.
  bool take(Chunk& chunk) override;
  std::unique_ptr<ChunkMaker> maker() override;
  bool restore(const LoaderState& state);  // as BatchMaker::restore(); nobody may take meanwhile

  std::int64_t seek(const FeedPlace& place) override;  // with nothing that waits
  void fetch(const std::vector<PieceId>& ids, Chunk& chunk) override;
  std::string_view maker_stage() const override { return "read"; }
  std::optional<EpochSize> size() const override { return order_.size(); }
  std::vector<PieceLength> first_lengths(std::int64_t most) const override { return order_.first_lengths(most); }
  std::optional<double> share_before(const FeedPlace& place) const override { return order_.share_before(place); }

 private:
  std::optional<PieceNumbers::Place> draw(bool may_begin_epoch);
  void offer(const PieceNumbers::Place& place);
  std::int64_t pack(Chunk* mine);

  const DocumentSource& source_;
  FeedOptions options_;
  Turn turn_;
  PieceOrder order_;
  Packer packer_;
  std::vector<PieceNumbers::Place> slots_;  // of pieces that wait or are being placed
  std::vector<std::size_t> free_;           // of slots_
  LoaderState state_;                       // but for what waits
  bool any_in_epoch_ = false, ended_ = false;
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
