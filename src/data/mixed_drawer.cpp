// A drawer for each source, and the rule that says which one is next.
#include "data/mixed_drawer.h"

#include <utility>

#include "base/error.h"

namespace redline::data {

MixedDrawer::MixedDrawer(const ChunkReaders& readers, Mixing mixing, bool repeat) : mixing_(std::move(mixing)) {
  REDLINE_CHECK(readers.size() == mixing_.sources(), "{} readers of {} sources", readers.size(), mixing_.sources());
  for (const auto& reader : readers) drawers_.emplace_back(*reader, repeat);
}

std::optional<Drawer::Drawn> MixedDrawer::draw(bool may_begin_epoch) {
  const std::size_t source = mixing_.next();
  std::optional<Drawer::Drawn> drawn = drawers_[source].draw(may_begin_epoch || mixing_.several());
  if (!drawn) return drawn;
  drawn->id.source = static_cast<std::int64_t>(source);
  mixing_.drew(source, static_cast<std::int64_t>(drawn->tokens.size()));
  return drawn;
}

void MixedDrawer::seek(const LoaderState& state) {
  mixing_.restore(state);
  Drawer::Passed passed{state.truncated_tokens, state.empty_documents};  // of all: the first counts on
  for (std::size_t i = 0; i < drawers_.size(); ++i)
    drawers_[i].seek(state.sources.empty() ? state.next : state.sources[i].next, std::exchange(passed, {}));
}

LoaderState MixedDrawer::state() const {
  LoaderState state;
  for (std::size_t i = 0; i < drawers_.size(); ++i) {
    const Drawer& d = drawers_[i];
    if (mixing_.several())
      state.sources.push_back({d.place(), mixing_.tokens(i)});
    else
      state.next = d.place();
    state.truncated_tokens += d.passed().truncated_tokens;
    state.empty_documents += d.passed().empty_documents;
  }
  return state;
}

std::int64_t MixedDrawer::waited_ns() const {
  std::int64_t sum = 0;
  for (const Drawer& d : drawers_) sum += d.waited_ns();
  return sum;
}

}  // namespace redline::data
