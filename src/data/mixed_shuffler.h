// Draws pieces from one source, or from several in the turns of a mixture: each source has a reader and an order of its
// own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "data/mixture_schedule.h"
#include "data/shuffler.h"

namespace redline::data {

using ChunkReaders = std::vector<std::unique_ptr<ChunkReader>>;

class MixedShuffler {
 public:
  MixedShuffler(const ChunkReaders& readers, MixtureSchedule schedule, bool repeat);  // a reader for each source

  // Of one source, as Shuffler::draw(). Sources of a mixture begin their epochs when they come to it; where documents
  // come once, the mixture ends with the first source that has none left when it is its turn.
  std::optional<Shuffler::Drawn> draw(bool may_begin_epoch);

  // Takes all of the state but the waiting pieces. It must fit.
  void seek(const LoaderState& state);
  LoaderState state() const;
  std::int64_t waited_ns() const;  // for chunks, in all
  const MixtureSchedule& schedule() const { return schedule_; }

 private:
  MixtureSchedule schedule_;
  std::vector<Shuffler> shufflers_;
};

}  // namespace redline::data
