// The documents of a batch cut into tiles, longest documents first, for the kernels of a card that share pieces of
// attention out among their blocks. Documents change from batch to batch while a captured graph does not, so the list
// is made on the card, once for all that attend in a micro-step.
//   tiles(d) = ceil(length(d) / tile);  first(d) = sum of tiles over the documents that come before d in that order
// For each of kTileSizes: a head of 16 bytes (pieces taken, blocks done, slots in use), then a slot for each tile. The
// count of taken pieces is zero between two kernels: a kernel that takes pieces resets it.
#pragma once

#include "base/tensor.h"

namespace redline::ops {

template <class T>
struct DocumentTiles {
  static constexpr std::string_view kName = "document_tiles";
  T doc_offsets;  // [capacity + 1] i32
  T tiles;        // [tile_bytes] u8  =
  std::int64_t tokens{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", tiles, Access::read));
    return DocumentTiles<U>{f("doc_offsets", doc_offsets, Access::read), f("tiles", tiles, Access::write), tokens};
  }
};

inline constexpr std::int64_t kTileSizes[] = {64, 128};  // tokens
inline constexpr std::int64_t kTileSlotBytes = 16;

// Every document ends in at most one tile that is not full.
inline std::int64_t tile_list_bytes(std::int64_t tokens, std::int64_t capacity, std::int64_t tile) {
  return kTileSlotBytes * (1 + tokens / tile + capacity);
}
inline std::int64_t tile_bytes(std::int64_t tokens, std::int64_t capacity) {
  std::int64_t bytes = 0;
  for (const std::int64_t tile : kTileSizes) bytes += tile_list_bytes(tokens, capacity, tile);
  return bytes;
}

}  // namespace redline::ops
