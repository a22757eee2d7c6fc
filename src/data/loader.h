// Documents to batches: the feed's order, read and tokenized by workers, packed and assembled by one more thread, and
// queued. Batches are a pure function of (corpus, settings, state): threads decide only when, never what.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/batch.h"
#include "data/corpus.h"
#include "data/feed.h"
#include "data/packer.h"
#include "data/pieces.h"
#include "data/pipeline_stats.h"

namespace redline::data {

struct LoaderOptions {
  PackerSettings packer;
  FeedOptions feed;
  // Batches are made in one order and go round the ranks: this one gets every `ranks`-th, from `rank` on.
  std::int64_t rank = 0, ranks = 1;
  std::int64_t workers = 0;  // 0: everything is done in next()
  std::int64_t prefetch = 4;
  std::int64_t ram_bytes = std::int64_t{1} << 30;
  std::function<void(const PipelineStats&)> report;  // called from next(), every `report_seconds`
  double report_seconds = 5;
};

// Thrown when ram_bytes leaves no room for the batches to be made ahead.
struct NoRoomForBatches : UserError {
  using UserError::UserError;
};

// The size of an epoch, where the corpus knows it before it was read.
struct Epoch : EpochSize {
  double batches = 0;  // of all ranks
};

// The size of an epoch of documents that tell it only when they are read (a stream). All of them are read once, packed
// as `options` say but on one rank, and forgotten. `progress` hears now and then of what was counted so far and, where
// it is known, of its share; it may throw to end the work.
using CountProgress = std::function<void(const EpochSize& so_far, std::optional<double> share)>;
Epoch count_epoch(std::unique_ptr<Corpus> corpus, LoaderOptions options, const CountProgress& progress);

class Loader {
 public:
  // May throw NoRoomForBatches.
  Loader(std::unique_ptr<Corpus> corpus, LoaderOptions options);
  ~Loader();

  // Fills `batch` with this rank's of the next round, which is one batch for each rank. Without `repeat` the documents
  // come once: the last batch may be partly filled, the last round may give some ranks an empty one, and then all ranks
  // get false. An exception of a thread is rethrown here, after the batches before it.
  bool next(Batch& batch);

  // The state after the last round that next() gave, however far the threads are. It is the same on every rank, and
  // restore() takes it on any number of them.
  const LoaderState& state() const;
  void restore(const LoaderState& state);  // a UserError when the corpus cannot be the one that the state is from
  const Corpus& corpus() const;
  // Runs the packer over the first 2^17 pieces; a larger epoch is extrapolated from them, to about a thousandth.
  std::optional<Epoch> epoch() const;
  std::optional<EpochSize> epoch_size() const;  // the same without the packer
  // How often the documents were read up to state(), as 1.37; nothing where an epoch has no end or no known length.
  std::optional<double> epochs_read() const;
  std::vector<SourceShare> shares() const;  // of a mixture, up to state(); empty for any other corpus
  std::int64_t workers() const;
  void report_now();  // on the pipeline, since the last report

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace redline::data
