// Pieces are copied out of their chunks when they are drawn, so that one that waits does not hold a whole chunk.
#include "data/assembler.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"

namespace redline::data {

Assembler::Assembler(const ChunkReaders& readers, MixtureSchedule schedule, const PackerSettings& settings, bool repeat,
                     Replica replica, StageCounters& counters)
    : replica_(replica),
      packer_(settings),
      shuffler_(readers, std::move(schedule), repeat),
      readers_(readers),
      counters_(counters) {
  shuffler_.seek({});
}

bool Assembler::fill(Batch& batch) {
  const double start = steady_seconds();
  const std::int64_t waited = shuffler_.waited_ns();
  batch.restart();
  std::int64_t pieces = 0;
  for (std::int64_t i = 0; i < replica_.ranks; ++i) pieces += pack(i == replica_.rank ? &batch : nullptr);
  batch.finish();
  const std::int64_t more_waited = shuffler_.waited_ns() - waited;
  counters_.items += batch.documents;
  counters_.tokens += batch.real_tokens;
  counters_.waiting_ns += more_waited;
  counters_.busy_ns += static_cast<std::int64_t>(1e9 * (steady_seconds() - start)) - more_waited;
  return pieces > 0;
}

// One batch, which stands in `mine` where it is this rank's. Returns its pieces.
std::int64_t Assembler::pack(Batch* mine) {
  for (std::int64_t pieces = 0;; ++pieces) {
    while (packer_.wants()) {
      const std::optional<Shuffler::Drawn> d = shuffler_.draw(packer_.waiting().empty());
      if (!d) break;
      packer_.offer(store(*d), static_cast<std::int64_t>(d->tokens.size()), d->after == kNoTarget);
    }
    const std::optional<PlacedPiece> piece = packer_.place();
    if (!piece) return pieces;
    if (mine) add(*piece, *mine);
    if (piece->last) free_.push_back(static_cast<std::size_t>(piece->piece));
  }
}

LoaderState Assembler::state() const {
  LoaderState state = shuffler_.state();
  for (const Packer::Waiting& w : packer_.waiting()) {
    PieceId id = slots_[static_cast<std::size_t>(w.piece)].id;
    id.begin += w.begin;
    state.waiting.push_back(id);
  }
  return state;
}

// One chunk for each source, with its pieces in their order.
std::vector<Chunk> Assembler::fetch(const std::vector<PieceId>& ids) {
  std::vector<std::vector<PieceId>> by_source(readers_.size());
  for (const PieceId& id : ids) by_source[static_cast<std::size_t>(id.source)].push_back(id);
  std::vector<Chunk> chunks(readers_.size());
  for (std::size_t i = 0; i < readers_.size(); ++i)
    if (!by_source[i].empty()) readers_[i]->fetch(by_source[i], chunks[i]);
  return chunks;
}

bool Assembler::restore(const LoaderState& state) {
  packer_.clear();
  free_.clear();
  for (std::size_t i = 0; i < slots_.size(); ++i) free_.push_back(i);
  if (state.waiting.size() > packer_.lookahead()) return false;
  if (!shuffler_.schedule().fits(state)) return false;
  const std::vector<Chunk> chunks = fetch(state.waiting);
  std::vector<std::size_t> next(chunks.size());
  for (const PieceId& id : state.waiting) {
    const auto source = static_cast<std::size_t>(id.source);
    const Chunk& chunk = chunks[source];
    const std::size_t at = next[source]++;
    const Chunk::Piece& p = chunk.pieces[at];
    const std::int64_t length = p.end - (at == 0 ? 0 : chunk.pieces[at - 1].end);
    if (length == 0) return false;
    const auto tokens = std::span<const std::int32_t>(chunk.tokens)
                            .subspan(static_cast<std::size_t>(p.end - length), static_cast<std::size_t>(length));
    packer_.offer(store({id, tokens, p.after}), length, p.after == kNoTarget);
  }
  shuffler_.seek(state);
  return true;
}

std::int64_t Assembler::store(const Shuffler::Drawn& d) {
  if (free_.empty()) {
    free_.push_back(slots_.size());
    slots_.emplace_back();
  }
  const std::size_t at = free_.back();
  free_.pop_back();
  Slot& slot = slots_[at];
  slot.id = d.id;
  slot.after = d.after;
  slot.tokens.assign(d.tokens.begin(), d.tokens.end());
  return static_cast<std::int64_t>(at);
}

// The target of its last token is what follows in the document, whether or not a batch will hold that.
void Assembler::add(const PlacedPiece& placed, Batch& batch) const {
  const Slot& slot = slots_[static_cast<std::size_t>(placed.piece)];
  const auto begin = static_cast<std::size_t>(placed.begin), length = static_cast<std::size_t>(placed.length);
  const std::int32_t after = begin + length < slot.tokens.size() ? slot.tokens[begin + length] : slot.after;
  const bool added =
      batch.add(std::span(slot.tokens).subspan(begin, length), after, shuffler_.schedule().number(slot.id));
  REDLINE_CHECK(added, "a piece of {} tokens was placed into room for {}", length, batch.room());
}

}  // namespace redline::data
