// The road from documents to batches: pieces are drawn from each source in its order and in the turns of a mixture,
// packed by their lengths, and put into batches. On several ranks the batches go round: a round is one batch for each.
// Documents come by index or from a stream, and only that differs. By index lengths are known: a rank packs from
// lengths alone, and reads the pieces of its own batches. A stream's are known only after reading, so that a rank reads
// those of other ranks' batches, too, and drops them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "data/batch.h"
#include "data/corpus.h"
#include "data/feed.h"
#include "data/mixture.h"
#include "data/packer.h"
#include "data/pieces.h"
#include "data/pipeline_stats.h"

namespace redline::data {

// Pieces of one corpus, drawn one by one. Empty ones are passed over.
class PieceSource {
 public:
  struct Drawn {
    PieceId id = {};
    std::int64_t length = 0;                    // tokens
    bool ends = true;                           // its last token has no target
    std::span<const std::int32_t> tokens = {};  // of a stream, until the next draw(); by index, none
    std::int32_t after = kNoTarget;             // of a stream: the token that follows in the document
  };
  struct Passed {
    std::int64_t truncated_tokens = 0, empty_documents = 0;  // dropped and skipped so far
  };

  explicit PieceSource(bool repeat) : repeat_(repeat) {}
  virtual ~PieceSource() = default;

  // Nothing at the end of an epoch unless the next one may begin, and at the end of the documents. A whole epoch
  // without a document is a UserError.
  virtual std::optional<Drawn> draw(bool may_begin_epoch) = 0;
  // Gives pieces that were drawn once, or the rest of them, in their order; one that cannot have been drawn is of
  // length 0, or a UserError. A seek() must follow.
  virtual void draw_again(const std::vector<PieceId>& ids, const std::function<void(const Drawn&)>& take) = 0;
  void seek(const FeedPlace& place, Passed passed);
  const FeedPlace& place() const { return place_; }
  const Passed& passed() const { return passed_; }
  virtual std::int64_t waited_ns() const { return 0; }  // for chunks, in all

  // As of Feed: known before an epoch was read, for some sources. Any thread may ask.
  virtual std::optional<EpochSize> size() const = 0;
  virtual std::vector<PieceLength> first_lengths(std::int64_t most) const = 0;
  virtual std::optional<double> share_before(const FeedPlace& place) const = 0;

 protected:
  virtual void go_to(const FeedPlace& place) = 0;
  bool begins_epoch(bool may_begin_epoch);  // at the end of one

  FeedPlace place_;
  Passed passed_;
  bool any_in_epoch_ = false;

 private:
  bool repeat_;
};

// The rank whose batch of each round is made.
struct Replica {
  std::int64_t rank = 0, ranks = 1;
};

// Decides which pieces make the batches of a round, one piece after another.
class RoundPacker {
 public:
  // A piece that waits or is being placed. Tokens of a stream are copied out of their chunk when they are drawn, so
  // that a piece that waits does not hold a whole chunk.
  struct Slot {
    PieceId id = {};
    std::int64_t length = 0;
    bool ends = true;
    std::vector<std::int32_t> tokens = {};
    std::int32_t after = kNoTarget;
  };
  using Sources = std::vector<std::unique_ptr<PieceSource>>;

  RoundPacker(Sources sources, MixtureSchedule schedule, const PackerSettings& settings, Replica replica);

  // Packs a batch for each rank, gives the pieces of this rank's in their order, and returns how many all have.
  using Take = std::function<void(const PlacedPiece& placed, const Slot& slot)>;
  std::int64_t pack(const Take& take);

  LoaderState state() const;
  bool restore(const LoaderState& state);  // as BatchMaker::restore()
  std::int64_t waited_ns() const;          // for chunks, in all

  const PieceSource& source(std::size_t i) const { return *sources_[i]; }
  std::int64_t number(const PieceId& id) const { return schedule_.number(id); }  // any thread may ask

 private:
  bool draw();
  std::int64_t pack_one(const Take* take);
  std::size_t store(const PieceSource::Drawn& drawn);
  void offer(std::size_t slot);

  Sources sources_;
  MixtureSchedule schedule_;
  Packer packer_;
  Replica replica_;
  std::int64_t drawn_tokens_ = 0;  // since the last restore()
  bool enough_ = false;            // PackerSettings::most_tokens are drawn
  std::vector<Slot> slots_;
  std::vector<std::size_t> free_;  // of slots_
};

// Makes this rank's batches one after another, in one thread; others read for it.
class BatchMaker {
 public:
  BatchMaker(RoundPacker::Sources sources, MixtureSchedule schedule, const PackerSettings& settings, Replica replica,
             StageCounters& counters);
  virtual ~BatchMaker() = default;

  // This rank's batch of the next round; empty where the documents ended before it. False when every rank's is.
  bool fill(Batch& batch);
  virtual LoaderState state() const = 0;  // after the whole round: the same on every rank
  // False when the corpus cannot be the one that the state is from; errors of the feed are thrown. Either way only
  // another restore() may follow.
  virtual bool restore(const LoaderState& state) = 0;

  const PieceSource& source(std::size_t i) const { return rounds_.source(i); }
  const std::vector<ChunkReader*>& readers() const { return readers_; }
  std::int64_t workers() const;
  std::string_view stage() const;  // name of the work of the readers' threads: "tokenize" where any does that

 protected:
  virtual std::int64_t add_pieces(Batch& batch) = 0;  // returns the pieces of all ranks' batches
  virtual std::int64_t waited_ns() const = 0;         // for chunks, in all
  void add(Batch& batch, std::span<const std::int32_t> tokens, std::int32_t after, const PieceId& id) const;

  RoundPacker rounds_;
  std::vector<ChunkReader*> readers_;

 private:
  StageCounters& counters_;
};

// A corpus that is read, and how it is put in order. Cut and end are the same for all sources of a mixture.
struct OrderedCorpus {
  const Corpus* corpus;
  FeedOptions order;
};

// Sources of a mixture share `workers` and `limit_bytes` as evenly as can be; each has a worker at least, unless there
// are none.
std::unique_ptr<BatchMaker> make_batch_maker(const std::vector<OrderedCorpus>& sources, MixtureSchedule schedule,
                                             const PackerSettings& settings, Replica replica, std::int64_t workers,
                                             std::int64_t limit_bytes, PipelineCounters& counters);

}  // namespace redline::data
