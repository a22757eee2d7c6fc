// A shuffler for each source, and the rule that says which one is next.
#include "data/mixed_shuffler.h"

#include <utility>

#include "base/error.h"

namespace redline::data {

MixedShuffler::MixedShuffler(const ChunkReaders& readers, Mixing mixing, bool repeat) : mixing_(std::move(mixing)) {
  REDLINE_CHECK(readers.size() == mixing_.sources(), "{} readers of {} sources", readers.size(), mixing_.sources());
  for (const auto& reader : readers) shufflers_.emplace_back(*reader, repeat);
}

std::optional<Shuffler::Drawn> MixedShuffler::draw(bool may_begin_epoch) {
  const std::size_t source = mixing_.next();
  std::optional<Shuffler::Drawn> drawn = shufflers_[source].draw(may_begin_epoch || mixing_.several());
  if (!drawn) return drawn;
  drawn->id.source = static_cast<std::int64_t>(source);
  mixing_.drew(source, static_cast<std::int64_t>(drawn->tokens.size()));
  return drawn;
}

void MixedShuffler::seek(const LoaderState& state) {
  mixing_.restore(state);
  Shuffler::Passed passed{state.truncated_tokens, state.empty_documents};  // of all: the first counts on
  for (std::size_t i = 0; i < shufflers_.size(); ++i)
    shufflers_[i].seek(state.sources.empty() ? state.next : state.sources[i].next, std::exchange(passed, {}));
}

LoaderState MixedShuffler::state() const {
  LoaderState state;
  for (std::size_t i = 0; i < shufflers_.size(); ++i) {
    const Shuffler& d = shufflers_[i];
    if (mixing_.several())
      state.sources.push_back({d.place(), mixing_.tokens(i)});
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
