// Who does what in tiled attention. Documents live in device memory and change from batch to batch while a captured
// graph does not, so a small kernel cuts them into tiles, longest documents first, and a fixed number of resident
// blocks takes tiles from that list until it is empty. The order decides when a tile is done, never its bits.
#pragma once

#include <span>

#include "device/cuda/launch.h"
#include "ops/attention.h"

namespace redline::ops::cuda {

// A document as each of its tiles ("slots" of the list) finds it: its tokens, its first slot, its number of slots.
struct alignas(16) PlannedDocument {
  int begin, end, first, tiles;
};

struct Plan {
  int tile = 0;          // tokens a tile, counted from the document's own start
  int blocks = 0;        // that take pieces
  int* next = nullptr;   // the first piece of work that no block has taken
  int* count = nullptr;  // slots in use
  PlannedDocument* slots = nullptr;
};

// One tile of one head; position 0 is the tile of its document with most work.
struct Work {
  PlannedDocument document;
  int position, head;
  // Of queries, where late ones see most keys.
  __device__ int query_tile() const { return document.tiles - 1 - position; }
};

// Places plans of the given tiles and blocks in the launch's workspace and enqueues the kernel that fills them in.
void plan_documents(const Tensor& doc_offsets, std::int64_t n, std::span<Plan> plans,
                    const device::cuda::Launch& launch);

// Piece `index` of count * heads. The heads of one tile are neighbours, and so are a document's tiles: what one block
// brings into L2 the others find there.
__device__ inline Work find_work(const Plan& plan, int index, int heads) {
  const auto slot = static_cast<int>(static_cast<unsigned>(index) / static_cast<unsigned>(heads));
  Work work;
  work.document = plan.slots[slot];
  work.head = index - slot * heads;
  work.position = slot - work.document.first;
  return work;
}

// The pieces of work that a block takes, one after the other, until there are none. A piece is asked for two ahead, since
// an answer may take as long as a small piece. Every thread calls all of it.
class WorkQueue {
 public:
  __device__ WorkQueue(const Plan& plan, int heads, int (&next)[2])
      : plan_(plan),
        next_(next),
        heads_(heads),
        count_(*plan.count * heads),
        index_(static_cast<int>(blockIdx.x)),
        following_(index_ + static_cast<int>(gridDim.x)) {
    ask();
  }
  __device__ bool more() const { return index_ < count_; }
  __device__ int index() const { return index_; }
  __device__ Work work() const { return find_work(plan_, index_, heads_); }

  // Behind this nobody of the block works on the piece that was.
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
    if (threadIdx.x == 0) asked_ = atomicAdd(plan_.next, 1);
  }

  const Plan& plan_;
  int (&next_)[2];
  int heads_, count_, index_, following_, turn_ = 0, asked_ = 0;
};

}  // namespace redline::ops::cuda
