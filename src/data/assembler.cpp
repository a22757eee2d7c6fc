// Pieces are copied out of their chunks when they are drawn, so that one that waits does not hold a whole chunk.
#include "data/assembler.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"

namespace redline::data {

Assembler::Assembler(ChunkReader& reader, const PackerSettings& settings, bool repeat, Turn turn,
                     StageCounters& counters)
    : turn_(turn), packer_(settings), drawer_(reader, repeat), reader_(reader), counters_(counters) {
  drawer_.seek({}, {});
}

bool Assembler::fill(Batch& batch) {
  const double start = steady_seconds();
  const std::int64_t waited = drawer_.waited_ns();
  batch.restart();
  std::int64_t pieces = 0;
  for (std::int64_t i = 0; i < turn_.ranks; ++i) pieces += pack(i == turn_.rank ? &batch : nullptr);
  batch.finish();
  const std::int64_t more_waited = drawer_.waited_ns() - waited;
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
      const std::optional<Drawer::Drawn> d = drawer_.draw(packer_.waiting().empty());
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
  LoaderState state{drawer_.place(), {}, drawer_.passed().truncated_tokens, drawer_.passed().empty_documents};
  for (const Packer::Waiting& w : packer_.waiting()) {
    const PieceId id = slots_[static_cast<std::size_t>(w.piece)].id;
    state.waiting.push_back({id.document, id.begin + w.begin});
  }
  return state;
}

bool Assembler::restore(const LoaderState& state) {
  packer_.clear();
  free_.clear();
  for (std::size_t i = 0; i < slots_.size(); ++i) free_.push_back(i);
  if (state.waiting.size() > packer_.lookahead()) return false;
  Chunk chunk;
  if (!state.waiting.empty()) reader_.fetch(state.waiting, chunk);
  std::int64_t begin = 0;
  for (const Chunk::Piece& p : chunk.pieces) {
    const std::int64_t length = p.end - std::exchange(begin, p.end);
    if (length == 0) return false;
    const auto tokens = std::span<const std::int32_t>(chunk.tokens)
                            .subspan(static_cast<std::size_t>(p.end - length), static_cast<std::size_t>(length));
    packer_.offer(store({p, tokens, p.after}), length, p.after == kNoTarget);
  }
  drawer_.seek(state.next, {state.truncated_tokens, state.empty_documents});
  return true;
}

std::int64_t Assembler::store(const Drawer::Drawn& d) {
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
  const bool added = batch.add(std::span(slot.tokens).subspan(begin, length), after, slot.id.document);
  REDLINE_CHECK(added, "a piece of {} tokens was placed into room for {}", length, batch.room());
}

}  // namespace redline::data
