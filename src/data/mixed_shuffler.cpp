// A shuffler for each source, and the rule that says which one is next.
#include "data/mixed_shuffler.h"

#include <utility>

#include "base/error.h"

namespace redline::data {

MixedShuffler::MixedShuffler(const ChunkReaders& readers, MixtureSchedule schedule, bool repeat)
    : schedule_(std::move(schedule)) {
  REDLINE_CHECK(readers.size() == schedule_.sources(), "{} readers of {} sources", readers.size(), schedule_.sources());
  for (const auto& reader : readers) shufflers_.emplace_back(*reader, repeat);
}

std::optional<Shuffler::Drawn> MixedShuffler::draw(bool may_begin_epoch) {
  const std::size_t source = schedule_.next();
  std::optional<Shuffler::Drawn> drawn = shufflers_[source].draw(may_begin_epoch || schedule_.several());
  if (!drawn) return drawn;
  drawn->id.source = static_cast<std::int64_t>(source);
  schedule_.drew(source, static_cast<std::int64_t>(drawn->tokens.size()));
  return drawn;
}

void MixedShuffler::seek(const LoaderState& state) {
  schedule_.restore(state);
  Shuffler::Passed passed{state.truncated_tokens, state.empty_documents};  // of all: the first counts on
  for (std::size_t i = 0; i < shufflers_.size(); ++i)
    shufflers_[i].seek(state.sources.empty() ? state.next : state.sources[i].next, std::exchange(passed, {}));
}

LoaderState MixedShuffler::state() const {
  LoaderState state;
  for (std::size_t i = 0; i < shufflers_.size(); ++i) {
    const Shuffler& d = shufflers_[i];
    if (schedule_.several())
      state.sources.push_back({d.place(), schedule_.tokens(i)});
    else
      state.next = d.place();
    state.truncated_tokens += d.passed().truncated_tokens;
    state.empty_documents += d.passed().empty_documents;
  }
  return state;
}

std::int64_t MixedShuffler::waited_ns() const {
  std::int64_t sum = 0;
  for (const Shuffler& d : shufflers_) sum += d.waited_ns();
  return sum;
}

}  // namespace redline::data
