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
  int* next = nullptr;   // the first piece of work that no block has taken
  int* count = nullptr;  // slots in use
  PlannedDocument* slots = nullptr;
};

// One tile of one head; position 0 is the tile of its document with most work.
struct Work {
  PlannedDocument document;
  int position, head;
};

// Places plans of the given tile sizes in the launch's workspace and enqueues the kernel that fills them in. `blocks`
// is the number of blocks that will start with pieces 0, 1, ...
void plan_documents(const Tensor& doc_offsets, std::int64_t n, int blocks, std::span<Plan> plans,
                    const device::cuda::Launch& launch);

// Piece `index` of count * heads. The tiles of one document and one group of heads, which read the same keys and
// values, are neighbours: what one block brings into L2 the others find there.
__device__ inline Work find_work(const Plan& plan, int index, int heads, int group) {
  Work work;
  work.document = plan.slots[index / heads];
  const int local = index - work.document.first * heads, of_group = work.document.tiles * group;
  work.head = local / of_group * group + local % of_group % group;
  work.position = local % of_group / group;
  return work;
}

// The next piece of work for a block, asked for while the current one still runs: the two slots alternate, so one
// barrier at the end of each piece is enough.
class WorkQueue {
 public:
  __device__ WorkQueue(const Plan& plan, int heads, int (&next)[2])
      : plan_(plan), next_(next), index_(static_cast<int>(blockIdx.x)), count_(*plan.count * heads) {}
  __device__ bool more() const { return index_ < count_; }
  __device__ int index() const { return index_; }
  __device__ void ask_for_next() {
    if (threadIdx.x == 0) next_[turn_] = atomicAdd(plan_.next, 1);
  }
  __device__ void take_next() {
    __syncthreads();
    index_ = next_[turn_];
    turn_ ^= 1;
  }

 private:
  const Plan& plan_;
  int (&next_)[2];
  int index_, count_, turn_ = 0;
};

}  // namespace redline::ops::cuda
