// Shares the work of tiled attention: a fixed number of resident blocks takes tiles from the list of
// ops::DocumentTiles until it is empty. The order decides when a tile is done, never its bits.
#pragma once

#include "device/cuda/launch.h"
#include "ops/attention.h"

namespace redline::ops::cuda {

// A document as each of its tiles (slots of the list) finds it: its tokens, its first slot, its number of slots.
struct alignas(16) PlannedDocument {
  int begin, end, first, tiles;
};

// One list of ops::DocumentTiles: the tiles of one size.
struct TileList {
  int tile = 0;          // tokens a tile, counted from the document's own start
  int* taken = nullptr;  // pieces of work that blocks have asked for beside their first two, and blocks that are done
  int* count = nullptr;  // slots in use
  PlannedDocument* slots = nullptr;
};
static_assert(sizeof(PlannedDocument) == kTileSlotBytes);

// The list of that size among the lists that DocumentTiles wrote for a batch.
TileList tile_list(const Tensor& tiles, std::int64_t tokens, std::int64_t capacity, std::int64_t tile);
template <class Op>
TileList tile_list(const Op& op, std::int64_t tile) {
  return tile_list(op.tiles, op.qkv.rows(), op.doc_offsets.elements() - 1, tile);
}

// One tile of one head; position 0 is the tile of its document with most work.
struct Work {
  PlannedDocument document;
  int position, head;
  // For tiles of queries, of which late ones see most keys.
  __device__ int query_tile() const { return document.tiles - 1 - position; }
};

// Piece `index` of count * heads. The heads of one tile are neighbours, and so are a document's tiles: data that one
// block brings into L2 serve the others.
__device__ inline Work find_work(const TileList& list, int index, int heads) {
  const auto slot = static_cast<int>(static_cast<unsigned>(index) / static_cast<unsigned>(heads));
  Work work;
  work.document = list.slots[slot];
  work.head = index - slot * heads;
  work.position = slot - work.document.first;
  return work;
}

// The pieces of work that a block takes, one after the other, until there are none. A piece is asked for two ahead,
// since an answer may take as long as a small piece. Every thread calls all of it. The block that ends last sets the
// list back for the next kernel.
class WorkQueue {
 public:
  __device__ WorkQueue(const TileList& list, int heads, int (&next)[2])
      : list_(list),
        next_(next),
        heads_(heads),
        count_(*list.count * heads),
        index_(static_cast<int>(blockIdx.x)),
        following_(index_ + static_cast<int>(gridDim.x)) {
    ask();
  }
  __device__ ~WorkQueue() {
    if (threadIdx.x != 0) return;
    __threadfence();  // what was asked for is counted before the block is
    if (atomicAdd(list_.taken + 1, 1) != static_cast<int>(gridDim.x) - 1) return;
    list_.taken[0] = 0;
    list_.taken[1] = 0;
  }
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  __device__ bool more() const { return index_ < count_; }
  __device__ int index() const { return index_; }
  __device__ Work work() const { return find_work(list_, index_, heads_); }

  // After this call no thread of the block works on the last piece.
  __device__ void take_next() {
    if (threadIdx.x == 0) next_[turn_] = asked_;
    __syncthreads();
    index_ = following_;
    following_ = next_[turn_];
    turn_ ^= 1;  // the slots alternate: one barrier a piece is enough
    ask();
  }

 private:
  __device__ void ask() {
    if (threadIdx.x == 0) asked_ = atomicAdd(list_.taken, 1) + 2 * static_cast<int>(gridDim.x);
  }

  const TileList& list_;
  int (&next_)[2];
  int heads_, count_, index_, following_, turn_ = 0, asked_ = 0;
};

}  // namespace redline::ops::cuda
