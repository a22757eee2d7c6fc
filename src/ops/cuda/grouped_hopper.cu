// Products of groups with Hopper's products of warp groups, in bf16 with sums in fp32 (ops/grouped.h):
//   y = x W^T          A = x,     B = W of the group, both summed over their columns
//   dx (+)= dy W       A = dy,    B = W of the group, whose rows are summed over
//   dW (+)= dy^T x     A = dy^T,  B = x, both summed over the group's rows
// A tile of the result is 128 x 256. A block is one thread that copies and two warp groups that multiply, 64 rows each;
// blocks stay and walk over all tiles (grouped_tiles.h), which depend on the offsets alone. Operands come in boxes of
// 64 rows by 128 bytes, in the layout with a swizzle of 128 bytes, a stage of the sum at a time: two boxes of A, four
// of B. A pair of blocks has two neighbouring tiles and the same steps. Side by side each fetches half of A for both,
// and by arithmetic a block asks the second-level cache for 40 bytes a clock instead of 48. Stacked, one above the
// other, each fetches half of B, which makes 32; but then a group's rows fill tiles of 256, so pairs are stacked only
// where fewer tiles lie outside of the result. Wide results were not measured so. Results leave through shared memory
// by the copy engine, while the next tile is multiplied.
//   Edges: the copy engine writes zeros for what lies outside of an array and leaves out what would be written there.
//   Rows of the next group that a tile of y or dx reaches into are computed and not written. In the last step of dW
//   they would be summed over: the warps write zeros over them in shared memory, in both operands, as a NaN may be
//   there.
// In eight bits a step is 128 of the sum, and all operands lie as those of y do: dW takes dy and x turned over, in
// blocks (ops/fp8.h). A step is a block, and its boxes are one piece of memory each. So a group's first step begins
// with some of the group before, and what is not the group's are both ends of a box's rows. The tensor cores keep some
// 14 bits of a sum of eight-bit products. Where all bits count, what they make of one step is added to sums in
// registers, half of the columns at a time; meanwhile the other warp group has the tensor cores.
#include <cudaTypedefs.h>
#include <cuda_fp8.h>

#include "device/cuda/vectors.cuh"
#include "ops/cuda/attention_tiles.cuh"
#include "ops/cuda/grouped_tiles.h"
#include "ops/cuda/warp_group_products.cuh"

namespace redline::ops::cuda {
namespace {

using device::cuda::ceil_div;
using device::cuda::Launch;

constexpr int kRows = 128, kColumns = 256;        // of a tile
constexpr int kBox = 64, kBoxBytes = kBox * 128;  // rows, or columns of bf16
constexpr int kRowBoxes = kRows / kBox, kColumnBoxes = kColumns / kBox;
constexpr int kStages = 4, kStageBytes = (kRowBoxes + kColumnBoxes) * kBoxBytes;
constexpr int kBuffers = 2;  // boxes of results under way, of a warp group
constexpr int kMultiplying = 2, kGroupThreads = 128, kThreads = (1 + kMultiplying) * kGroupThreads;
constexpr int kMaxGroups = 512;
constexpr int kCluster = 2;  // blocks that share A or B
constexpr int kBuffersAt = kStages * kStageBytes, kBarriersAt = kBuffersAt + kMultiplying * kBuffers * kBoxBytes;
constexpr int kOffsetsAt = kBarriersAt + 2 * kStages * 8, kOrderAt = kOffsetsAt + (kMaxGroups + 1) * 4;
constexpr int kBytes = kOrderAt + kMostOrdered;
static_assert(kBytes <= 227 * 1024 && kRowBoxes == kMultiplying);
static_assert(kRowBoxes % kCluster == 0 && kColumnBoxes % kCluster == 0);

enum class Product { output, input_grad, weight_grad };
enum class Sums { of_cores, in_registers };  // where a product's sums grow from step to step

// A product: of which kind, of what type A is, and its sums.
template <Product kProduct, class Left, Sums kAddedUp = Sums::of_cores>
struct Kind {
  using A = Left;
  static constexpr bool kEightBits = sizeof(A) == 1, kInRegisters = kAddedUp == Sums::in_registers;
  static constexpr int kDepth = 128 / static_cast<int>(sizeof(A));  // of a step of the sum
  static constexpr bool kOfRows = kProduct != Product::weight_grad;
  static constexpr bool kTurnA = !kEightBits && kProduct == Product::weight_grad;
  static constexpr bool kTurnB = !kEightBits && kProduct != Product::output;
  static_assert(kEightBits || !kInRegisters);
  using Result = std::conditional_t<kOfRows, __nv_bfloat16, float>;
  static constexpr int kBoxColumns = 128 / static_cast<int>(sizeof(Result));
};

// Arrays as the copy engine sees them: columns, rows, matrices.
struct Arguments {
  CUtensorMap a, b, c;
  const std::int32_t* offsets;
  void* result;
  std::int32_t groups;
  std::int32_t n;              // rows of the arrays whose rows have groups
  std::int32_t rows, columns;  // of the result, or of each of its matrices
  std::int32_t depth;          // summed over, where the groups do not say it
  bool accumulate;
  bool stacked;                       // the tiles of a pair of blocks lie one above the other
  const Fp8Scale *a_scale, *b_scale;  // of eight bits; of rows B has one a group
};

// Barriers of shared memory. A phase ends when all have arrived and all bytes that were announced have come. `parity`
// is that of the phase that is awaited; the phase before a barrier's first counts as over.
__device__ void make_barrier(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ void announce_bytes(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}
// At the same barrier of block `rank` of the cluster.
__device__ void arrive_at(std::uint32_t barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
// A wait that no working kernel has ends the program after ten seconds instead of holding the card.
__device__ void await_phase(std::uint32_t barrier, int parity) {
  constexpr std::uint64_t kLongest = 10'000'000'000;  // nanoseconds
  constexpr int kBetweenLooks = 1024;                 // tries; the clock is slow to read
  std::uint64_t since = 0;
#pragma unroll 1
  for (int tries = 1;; ++tries) {
    int over;
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.s32 %0, 1, 0, p;\n}\n"
        : "=r"(over)
        : "r"(barrier), "r"(parity)
        : "memory");
    if (over) return;
    if (tries % kBetweenLooks != 0) continue;
    std::uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;\n" : "=l"(now));
    if (since == 0) since = now;
    if (now - since > kLongest) __trap();
  }
}

// A box of an array, from element (column, row, matrix) on, to this block or to the same place in all blocks of the
// cluster; its bytes count at each one's barrier.
__device__ void fetch_box(const CUtensorMap& map, std::uint32_t to, std::uint32_t barrier, int column, int row,
                          int matrix) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];\n" ::
          "r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(matrix)
      : "memory");
}
__device__ void fetch_box_for_all(const CUtensorMap& map, std::uint32_t to, std::uint32_t barrier, int column, int row,
                                  int matrix) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;\n" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(matrix), "h"(static_cast<std::uint16_t>((1 << kCluster) - 1))
      : "memory");
}
// A box of results to an array, or added to what is there: by one writer for each element, so the bits repeat.
__device__ void send_box(const CUtensorMap& map, std::uint32_t from, int column, int row, int matrix) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];\n" ::"l"(&map),
               "r"(from), "r"(column), "r"(row), "r"(matrix)
               : "memory");
}
__device__ void add_box(const CUtensorMap& map, std::uint32_t from, int column, int row, int matrix) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4}], [%1];\n" ::"l"(&map),
      "r"(from), "r"(column), "r"(row), "r"(matrix)
      : "memory");
}
__device__ void end_sending() { asm volatile("cp.async.bulk.commit_group;\n" ::: "memory"); }
// Of all boxes sent but the last kPending their memory may be written again.
template <int kPending>
__device__ void await_sending() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}

// What the warps wrote to shared memory may be read by products and by the copy engine, once a barrier has told them.
__device__ void show_to_engines() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }
__device__ void sync_threads(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;\n" ::: "memory");
}
__device__ int cluster_rank() {
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return static_cast<int>(rank);
}

// Boxes of one operand as products see them, from `boxes` on. Summed over columns: rows lie 128 bytes apart, eight of
// them 1024, a box after the other; a step of 16 is 32 bytes on. Summed over rows: the same, and the next 64 columns
// are the next box; a step is 16 rows on.
template <bool kTurned>
__device__ std::uint64_t boxes_at(std::uint32_t boxes, int step) {
  constexpr std::uint64_t kSwizzle = std::uint64_t{1} << 62, kEightRows = 1024 / 16, kNextBox = kBoxBytes / 16;
  const std::uint32_t place = boxes + static_cast<std::uint32_t>(step * (kTurned ? 16 * 128 : 32));
  return kSwizzle | kEightRows << 32 | kNextBox << 16 | (place & 0x3ffff) >> 4;
}

// One step of 16: c = A B or c += A B, 64 rows of A.
template <bool kTurnA, bool kTurnB>
__device__ void multiply_step(float (&c)[kColumns / 8][4], std::uint64_t a, std::uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{" REDLINE_NAMES_128 "}, %128, %129, p, 1, 1, %131, %132;\n}\n"
      : REDLINE_SUMS_128(c, 0)
      : "l"(a), "l"(b), "r"(add), "n"(kTurnA ? 1 : 0), "n"(kTurnB ? 1 : 0));
}

// One step of 32 in eight bits, of half the columns. A is of either format, B of e4m3.
__device__ void multiply_step(float (&c)[kColumns / 16][4], std::uint64_t a, std::uint64_t b, int add, __nv_fp8_e4m3) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "
      "{" REDLINE_NAMES_64 "}, %64, %65, p, 1, 1;\n}\n"
      : REDLINE_SUMS_64(c, 0)
      : "l"(a), "l"(b), "r"(add));
}
__device__ void multiply_step(float (&c)[kColumns / 16][4], std::uint64_t a, std::uint64_t b, int add, __nv_fp8_e5m2) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e5m2.e4m3 "
      "{" REDLINE_NAMES_64 "}, %64, %65, p, 1, 1;\n}\n"
      : REDLINE_SUMS_64(c, 0)
      : "l"(a), "l"(b), "r"(add));
}

// The products of a step: A and B are its boxes. In eight bits c is half of the columns.
template <class K>
__device__ void multiply_boxes(float (&c)[kColumns / 8][4], std::uint32_t a, std::uint32_t b, bool add) {
#pragma unroll
  for (int k = 0; k < 4; ++k)
    multiply_step<K::kTurnA, K::kTurnB>(c, boxes_at<K::kTurnA>(a, k), boxes_at<K::kTurnB>(b, k), add || k > 0);
}
template <class K>
__device__ void multiply_boxes(float (&c)[kColumns / 16][4], std::uint32_t a, std::uint32_t b, bool add) {
#pragma unroll
  for (int k = 0; k < 4; ++k)
    multiply_step(c, boxes_at<false>(a, k), boxes_at<false>(b, k), add || k > 0, typename K::A{});
}
template <int kHalf>
__device__ auto& half_of(float (&c)[kColumns / 8][4]) {
  return reinterpret_cast<float(&)[kColumns / 16][4]>(c[kHalf * kColumns / 16]);
}

// The stage of the next step, round after round.
struct Turn {
  int stage = 0, parity = 0;
  __device__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// The groups in the order in which dW takes them; it lies behind the offsets.
__device__ std::uint8_t* order_of(const Arguments& a, const std::int32_t* offsets) {
  auto* const bytes = reinterpret_cast<std::uint8_t*>(const_cast<std::int32_t*>(offsets));
  return a.groups <= kMostOrdered ? bytes + (kOrderAt - kOffsetsAt) : nullptr;
}
template <class K>
__device__ auto tiles_of(const Arguments& a, const std::int32_t* offsets) {
  const int rows = a.stacked ? kCluster * kRows : kRows, columns = a.stacked ? kColumns : kCluster * kColumns;
  const int across = ceil_div(a.columns, columns);
  if constexpr (K::kOfRows)
    return TilesOfRows(offsets, a.groups, rows, columns, across);
  else
    return TilesOfMatrices(offsets, order_of(a, offsets), a.groups, rows, columns, across, ceil_div(a.rows, rows));
}
// Of a pair's tile, the one of block `rank`. The lower of two that are stacked may begin beyond the group's rows.
__device__ GroupTile own_tile(const Arguments& a, GroupTile tile, int rank) {
  (a.stacked ? tile.row : tile.column) += rank * (a.stacked ? kRows : kColumns);
  return tile;
}
// The turns of a pair of blocks.
template <class K>
__device__ auto turns_of_cluster() {
  return Turns(static_cast<int>(blockIdx.x) / kCluster, static_cast<int>(gridDim.x) / kCluster, !K::kOfRows);
}
// Where the sum of a group's rows begins.
template <class K>
__device__ int sum_from(const GroupTile& tile) {
  static_assert(!K::kEightBits || K::kDepth == kColumnBlock);
  return K::kEightBits ? tile.begin / K::kDepth * K::kDepth : tile.begin;
}
// A group without rows has one step, all of which clear_rest makes zeros, unless its gradient stays as it is.
template <class K>
__device__ int steps_of(const Arguments& a, const GroupTile& tile) {
  if constexpr (K::kOfRows) return (a.depth + K::kDepth - 1) / K::kDepth;
  if (tile.rows() == 0) return a.accumulate ? 0 : 1;
  return (tile.end - sum_from<K>(tile) + K::kDepth - 1) / K::kDepth;
}

// The one thread that copies.
template <class K>
__device__ void fetch_tiles(const Arguments& a, std::uint32_t memory, const std::int32_t* offsets) {
  const int rank = cluster_rank();
  auto tiles = tiles_of<K>(a, offsets);
  GroupTile tile;
  Turn turn;
  for (auto turns = turns_of_cluster<K>(); tiles.seek(turns.number(), tile); turns.advance()) {
    const int steps = steps_of<K>(a, tile);
    const GroupTile own = own_tile(a, tile, rank);
    for (int s = 0; s < steps; ++s, turn.advance()) {
      const std::uint32_t stage = memory + turn.stage * kStageBytes, full = memory + kBarriersAt + turn.stage * 8;
      await_phase(full + kStages * 8, turn.parity ^ 1);
      announce_bytes(full, kStageBytes);
      int depth = s * K::kDepth + (K::kOfRows ? 0 : sum_from<K>(tile)), block = 0;
      if (!K::kOfRows && K::kEightBits) block = depth / K::kDepth, depth = 0;
      const auto fetch = [&](const CUtensorMap& map, bool shared, int box, int column, int row, int matrix) {
        const std::uint32_t to = stage + box * kBoxBytes;
        if (shared)
          fetch_box_for_all(map, to, full, column, row, matrix);
        else
          fetch_box(map, to, full, column, row, matrix);
      };
      // Of what both blocks multiply each fetches half.
#pragma unroll
      for (int box = 0; box < kRowBoxes; ++box) {
        if (!a.stacked && box * kCluster / kRowBoxes != rank) continue;
        const int row = own.row + box * kBox;
        fetch(a.a, !a.stacked, box, K::kTurnA ? row : depth, K::kTurnA ? depth : row, block);
      }
#pragma unroll
      for (int box = 0; box < kColumnBoxes; ++box) {
        if (a.stacked && box * kCluster / kColumnBoxes != rank) continue;
        const int column = own.column + box * kBox;
        fetch(a.b, a.stacked, kRowBoxes + box, K::kTurnB ? column : depth, K::kTurnB ? depth : column,
              K::kOfRows ? tile.group : block);
      }
    }
  }
}

// The sums of a tile, or of the half that this warp group has: kBoxColumns columns at a time through shared memory.
// `sent` counts the boxes, whose buffers take turns.
template <class K>
__device__ void send_results(const Arguments& a, float (&c)[kColumns / 8][4], std::uint32_t buffers, int half,
                             const GroupTile& tile, int& sent) {
  using T = typename K::Result;
  using Rows = TileRows<K::kBoxColumns, T>;  // a box: rows of 128 bytes
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads, lane = thread % 32, warp = thread / 32;
  const int row = tile.row + half * kBox, present = min((K::kOfRows ? tile.end : a.rows) - row, kBox);
  if (present <= 0) return;
#pragma unroll
  for (int box = 0; box < kColumns / K::kBoxColumns; ++box) {
    const int first = tile.column + box * K::kBoxColumns;
    if (first >= a.columns) break;
    const std::uint32_t buffer = buffers + sent++ % kBuffers * kBoxBytes, own = buffer + warp * 16 * 128;
    if (thread == 0) await_sending<kBuffers - 1>();
    sync_threads(1 + half, kGroupThreads);
    if constexpr (K::kOfRows) {
      auto& sums = reinterpret_cast<float(&)[8][4]>(c[box * 8]);
      if (a.accumulate) {
        const auto* before = static_cast<const __nv_bfloat16*>(a.result);
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          const int in_box = warp * 16 + i % 2 * 8 + lane / 4, at = first + i / 2 * 8 + lane % 4 * 2;
          if (in_box >= present || at >= a.columns) continue;
          const auto pair = *reinterpret_cast<const __nv_bfloat162*>(
              before + static_cast<std::int64_t>(row + in_box) * a.columns + at);
          sums[i / 2][i % 2 * 2] += __low2float(pair);
          sums[i / 2][i % 2 * 2 + 1] += __high2float(pair);
        }
      }
      const std::uint32_t place = own + Rows::offset(lane % 16, lane / 16);
#pragma unroll
      for (int n = 0; n < 8; n += 2) {
        const std::uint32_t squares[4] = {pack_bf16(sums[n][0], sums[n][1]), pack_bf16(sums[n][2], sums[n][3]),
                                          pack_bf16(sums[n + 1][0], sums[n + 1][1]),
                                          pack_bf16(sums[n + 1][2], sums[n + 1][3])};
        store_matrices(Rows::chunks_on(place, n), squares);
      }
    } else {
      const auto& sums = reinterpret_cast<const float(&)[4][4]>(c[box * 4]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t place = own + Rows::offset(i * 8 + lane / 4, lane / 2 % 2) + lane % 2 * 8;
#pragma unroll
        for (int n = 0; n < 4; ++n)
          store_shared_pair(Rows::chunks_on(place, 2 * n), sums[n][2 * i], sums[n][2 * i + 1]);
      }
    }
    show_to_engines();
    sync_threads(1 + half, kGroupThreads);
    if (K::kOfRows && present < kBox) {  // the rows below are another group's
      const int chunk = thread % 8, at = first + chunk * 8;
#pragma unroll
      for (int i = 0; i < kBox / 16; ++i) {
        const int in_box = thread / 8 + i * 16;
        if (in_box >= present || at >= a.columns) continue;
        T* const to = static_cast<T*>(a.result) + static_cast<std::int64_t>(row + in_box) * a.columns + at;
        *reinterpret_cast<uint4*>(to) = load_shared_16(buffer + Rows::offset(in_box, chunk));
      }
    } else if (thread == 0) {
      const int matrix = K::kOfRows ? 0 : tile.group;
      !K::kOfRows&& a.accumulate ? add_box(a.c, buffer, first, row, matrix) : send_box(a.c, buffer, first, row, matrix);
    }
    if (thread == 0) end_sending();
  }
}

// What a stage has before `from` and from `end` on of the sum becomes zeros: the end of each of its boxes, or in eight
// bits both ends of each of their rows.
template <class K>
__device__ void clear_rest(std::uint32_t stage, int from, int end) {
  constexpr int kZeroing = kMultiplying * kGroupThreads;
  const int thread = static_cast<int>(threadIdx.x) - kGroupThreads;
  const auto clear = [](std::uint32_t at) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};\n" ::"r"(at), "r"(0) : "memory");
  };
  if constexpr (K::kEightBits) {
    using Rows = TileRows<64>;  // of 128 bytes
#pragma unroll 1
    for (int row = thread; row < (kRowBoxes + kColumnBoxes) * kBox; row += kZeroing) {
      const auto clear_outside = [=](int chunk) {  // a chunk that has some of the group's
        const std::uint32_t at = stage + Rows::offset(row, chunk);
        const uint4 codes = load_shared_16(at);
        const auto first_bytes = [](int bytes) { return bytes >= 4 ? ~0u : bytes <= 0 ? 0u : (1u << 8 * bytes) - 1; };
        const auto kept = [=](std::uint32_t word, int first) {
          const int begins = chunk * 16 + first;
          return word & first_bytes(end - begins) & ~first_bytes(from - begins);
        };
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(at), "r"(kept(codes.x, 0)),
                     "r"(kept(codes.y, 4)), "r"(kept(codes.z, 8)), "r"(kept(codes.w, 12))
                     : "memory");
      };
#pragma unroll 1
      for (int chunk = 0; chunk < 8; ++chunk) {
        const int begins = chunk * 16, ends = begins + 16;
        if (ends <= from || begins >= end)
          clear(stage + Rows::offset(row, chunk));
        else if (begins < from || ends > end)
          clear_outside(chunk);
      }
    }
  } else {
#pragma unroll
    for (int box = 0; box < kRowBoxes + kColumnBoxes; ++box) {
#pragma unroll 1
      for (int at = end * 128 + thread * 16; at < kBoxBytes; at += kZeroing * 16) clear(stage + box * kBoxBytes + at);
    }
  }
  show_to_engines();
  sync_threads(1 + kMultiplying, kZeroing);
}

// A warp group that multiplies.
template <class K>
__device__ void multiply_tiles(const Arguments& a, std::uint32_t memory, const std::int32_t* offsets) {
  const int half = static_cast<int>(threadIdx.x) / kGroupThreads - 1, lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t buffers = memory + kBuffersAt + half * kBuffers * kBoxBytes;
  const auto release = [&](int stage) {
    if (lane < kCluster) arrive_at(memory + kBarriersAt + (kStages + stage) * 8, lane);
  };
  auto tiles = tiles_of<K>(a, offsets);
  GroupTile tile;
  Turn turn;
  int sent = 0;
  for (auto turns = turns_of_cluster<K>(); tiles.seek(turns.number(), tile); turns.advance()) {
    const int steps = steps_of<K>(a, tile);
    if (!K::kOfRows && steps == 0) continue;
    float c[kColumns / 8][4];
    if constexpr (K::kInRegisters) {
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
    }
    int before = 0;  // the stage of the step before
    for (int s = 0; s < steps; ++s, turn.advance()) {
      const std::uint32_t stage = memory + turn.stage * kStageBytes;
      const std::uint32_t left = stage + half * kBoxBytes, right = stage + kRowBoxes * kBoxBytes;
      await_phase(memory + kBarriersAt + turn.stage * 8, turn.parity);
      if constexpr (!K::kOfRows) {
        const int at = sum_from<K>(tile) + s * K::kDepth;
        const int from = max(tile.begin - at, 0), end = min(tile.end - at, K::kDepth);
        if (from > 0 || end < K::kDepth) clear_rest<K>(stage, from, end);
      }
      if constexpr (K::kInRegisters) {
        const auto add_half = [&](auto& sums, std::uint32_t boxes) {
          float part[kColumns / 16][4];
          begin_products(part);
          multiply_boxes<K>(part, left, boxes, false);
          end_products();
          await_products<0>(part);
#pragma unroll
          for (int n = 0; n < kColumns / 16; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[n][i] += part[n][i];
          }
        };
        add_half(half_of<0>(c), right);
        add_half(half_of<1>(c), right + kColumnBoxes / 2 * kBoxBytes);
        release(turn.stage);
      } else {
        begin_products(c);
        if constexpr (K::kEightBits) {
          multiply_boxes<K>(half_of<0>(c), left, right, s > 0);
          multiply_boxes<K>(half_of<1>(c), left, right + kColumnBoxes / 2 * kBoxBytes, s > 0);
        } else {
          multiply_boxes<K>(c, left, right, s > 0);
        }
        end_products();
        await_products<1>(c);
        if (s > 0) release(before);
        before = turn.stage;
      }
    }
    if constexpr (!K::kInRegisters) {
      await_products<0>(c);
      release(before);
    }
    if constexpr (K::kEightBits) {
      const float scale = a.a_scale->inverse * a.b_scale[K::kOfRows ? tile.group : 0].inverse;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) c[n][i] *= scale;
      }
    }
    send_results<K>(a, c, buffers, half, own_tile(a, tile, cluster_rank()), sent);
  }
  asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");

  if (K::kOfRows && !a.accumulate) {  // rows without a group
    const std::int64_t row_chunks = a.columns / 8;
    const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * kMultiplying * kGroupThreads;
    std::int64_t i =
        offsets[a.groups] * row_chunks + blockIdx.x * (kMultiplying * kGroupThreads) + threadIdx.x - kGroupThreads;
    for (; i < a.n * row_chunks; i += threads) static_cast<uint4*>(a.result)[i] = uint4{0, 0, 0, 0};
  }
}

template <class K>
__global__ __launch_bounds__(kThreads, 1) void grouped_kernel(const __grid_constant__ Arguments a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  const std::uint32_t memory = shared_address(shared);
  auto* const offsets = reinterpret_cast<std::int32_t*>(shared + kOffsetsAt);
  for (int g = static_cast<int>(threadIdx.x); g <= a.groups; g += kThreads) offsets[g] = a.offsets[g];
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      make_barrier(memory + kBarriersAt + stage * 8, 1);  // it is full
      make_barrier(memory + kBarriersAt + (kStages + stage) * 8,
                   kCluster * kMultiplying * kWarps);  // all have read it
    }
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  }
  __syncthreads();
  if constexpr (!K::kOfRows) {
    if (std::uint8_t* const order = order_of(a, offsets)) {
      for (int g = static_cast<int>(threadIdx.x); g < a.groups; g += kThreads)
        order[place_by_rows(offsets, a.groups, g)] = static_cast<std::uint8_t>(g);
      __syncthreads();
    }
  }
  sync_cluster();

  // 128 sums a thread of those that multiply; the registers that the others have too many are theirs.
  if (threadIdx.x < kGroupThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
    if (threadIdx.x == 0) fetch_tiles<K>(a, memory, offsets);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
    multiply_tiles<K>(a, memory, offsets);
  }
  __syncwarp();
  sync_cluster();  // nobody leaves while others may write to its memory
#else
  __trap();  // hopper_why_not keeps other cards away
#endif
}

// An array as the copy engine sees it, in boxes of 64 rows.
CUtensorMap map_of(const Tensor& t) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    REDLINE_CUDA(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess) fail_machine("the driver has no cuTensorMapEncodeTiled: it is too old");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  const auto extent = [](std::int64_t e) { return static_cast<cuuint64_t>(e); };
  const std::int64_t matrices = t.shape.rank() == 3 ? t.shape[0] : 1, rows = t.rows() / matrices;
  const cuuint64_t element = size_of(t.dtype), row_bytes = extent(t.columns()) * element;
  const cuuint64_t extents[3] = {extent(t.columns()), extent(rows), extent(matrices)};
  const cuuint64_t strides[2] = {row_bytes, row_bytes * extent(rows)};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(128 / element), kBox, 1}, every[3] = {1, 1, 1};
  CUtensorMap map;
  const CUtensorMapDataType type = t.dtype == DType::bf16  ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                   : t.dtype == DType::f32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                                           : CU_TENSOR_MAP_DATA_TYPE_UINT8;
  const CUresult result =
      encode(&map, type, 3, t.data, extents, strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  REDLINE_CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled of {}: error {}", t.shape.str(),
                static_cast<int>(result));
  return map;
}

struct Operands {
  const Tensor &a, &b, &c, &offsets;
  const Tensor *a_scale = nullptr, *b_scale = nullptr;
};

// Whether pairs of blocks have fewer tiles, with what lies outside of the result or of a group, where they are stacked.
// A group's last one is half outside in the mean.
template <class K>
bool fewer_stacked(const Operands& o) {
  const auto tiles = [&](int down, int across) {  // of pairs, for each group
    const std::int64_t wide = ceil_div<std::int64_t>(o.c.columns(), across * kColumns);
    if (!K::kOfRows) return static_cast<double>(ceil_div<std::int64_t>(o.c.shape[1], down * kRows) * wide);
    const double rows = static_cast<double>(o.a.rows()) / static_cast<double>(o.offsets.elements() - 1);
    return (rows / (down * kRows) + 0.5) * static_cast<double>(wide);
  };
  return tiles(kCluster, 1) < tiles(1, kCluster);
}

template <Product kProduct, class A, Sums kSums = Sums::of_cores>
void launch_product(const Operands& o, bool accumulate, const Launch& launch) {
  using K = Kind<kProduct, A, kSums>;
  const auto small = [](std::int64_t i) { return static_cast<std::int32_t>(i); };
  const Arguments arguments{.a = map_of(o.a),
                            .b = map_of(o.b),
                            .c = map_of(o.c),
                            .offsets = o.offsets.i32(),
                            .result = o.c.data,
                            .groups = small(o.offsets.elements() - 1),
                            .n = small(o.a.rows()),
                            .rows = small(K::kOfRows ? o.c.rows() : o.c.shape[1]),
                            .columns = small(o.c.columns()),
                            .depth = small(o.a.columns()),
                            .accumulate = accumulate,
                            .stacked = fewer_stacked<K>(o),
                            .a_scale = o.a_scale ? o.a_scale->as<Fp8Scale>() : nullptr,
                            .b_scale = o.b_scale ? o.b_scale->as<Fp8Scale>() : nullptr};
  device::cuda::allow_shared(grouped_kernel<K>, kBytes);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(launch.multiprocessors / kCluster * kCluster);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = kBytes;
  config.stream = launch.stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  REDLINE_CUDA(cudaLaunchKernelEx(&config, grouped_kernel<K>, arguments));
}

// Rows of the copy engine begin at multiples of 16 bytes.
std::string why_not(const Launch& launch, const Tensor& offsets, std::initializer_list<Tensor> tensors) {
  if (launch.major != 9) return "it needs compute capability 9.0";
  if (!REDLINE_SM90A) return "this program was not compiled for 90a";
  if (offsets.elements() - 1 > kMaxGroups) return "it is built for up to 512 groups";
  for (const Tensor& t : tensors) {
    if (t.columns() * static_cast<std::int64_t>(size_of(t.dtype)) % 16 != 0)
      return "it needs rows of multiples of 16 bytes";
    if (reinterpret_cast<std::uintptr_t>(t.data) % 16 != 0) return "it needs arrays at multiples of 16 bytes";
  }
  return "";
}
bool in_bf16(const Tensor& a, const Tensor& b) { return a.dtype == DType::bf16 && b.dtype == DType::bf16; }

}  // namespace

std::string hopper_why_not(const GroupedLinear<Tensor>& op, const Launch& launch) {
  if (!in_bf16(op.x, op.weight) || op.y.dtype != DType::bf16) return "it computes in bf16";
  return why_not(launch, op.offsets, {op.x, op.weight, op.y});
}
std::string hopper_why_not(const GroupedLinearInputGrad<Tensor>& op, const Launch& launch) {
  if (!in_bf16(op.dy, op.weight) || op.dx.dtype != DType::bf16) return "it computes in bf16";
  return why_not(launch, op.offsets, {op.dy, op.weight, op.dx});
}
std::string hopper_why_not(const GroupedLinearWeightGrad<Tensor>& op, const Launch& launch) {
  if (!in_bf16(op.x, op.dy) || op.dweight.dtype != DType::f32) return "it takes bf16 and gives fp32";
  return why_not(launch, op.offsets, {op.x, op.dy, op.dweight});
}

std::string hopper_why_not(const GroupedFp8Product<Tensor>& op, const Launch& launch) {
  if (op.b.dtype != DType::e4m3 || op.c.dtype != DType::bf16) return "it takes e4m3 and gives bf16";
  return why_not(launch, op.offsets, {op.a, op.b, op.c});
}
std::string hopper_why_not(const GroupedFp8WeightGrad<Tensor>& op, const Launch& launch) {
  if (op.dy.dtype != DType::e5m2 || op.x.dtype != DType::e4m3) return "it takes e5m2 and e4m3";
  return why_not(launch, op.offsets, {op.dy, op.x, op.dweight});
}

void hopper_run(const GroupedLinear<Tensor>& op, const Launch& launch) {
  launch_product<Product::output, __nv_bfloat16>({op.x, op.weight, op.y, op.offsets}, false, launch);
}
void hopper_run(const GroupedLinearInputGrad<Tensor>& op, const Launch& launch) {
  launch_product<Product::input_grad, __nv_bfloat16>({op.dy, op.weight, op.dx, op.offsets}, op.accumulate, launch);
}
void hopper_run(const GroupedLinearWeightGrad<Tensor>& op, const Launch& launch) {
  launch_product<Product::weight_grad, __nv_bfloat16>({op.dy, op.x, op.dweight, op.offsets}, op.accumulate, launch);
}
void hopper_run(const GroupedFp8Product<Tensor>& op, const Launch& launch) {
  const Operands o{op.a, op.b, op.c, op.offsets, &op.a_scale, &op.b_scales};
  if (op.a.dtype == DType::e5m2)
    launch_product<Product::output, __nv_fp8_e5m2, Sums::in_registers>(o, op.accumulate, launch);
  else if (op.how.fast_sums)
    launch_product<Product::output, __nv_fp8_e4m3>(o, op.accumulate, launch);
  else
    launch_product<Product::output, __nv_fp8_e4m3, Sums::in_registers>(o, op.accumulate, launch);
}
void hopper_run(const GroupedFp8WeightGrad<Tensor>& op, const Launch& launch) {
  launch_product<Product::weight_grad, __nv_fp8_e5m2, Sums::in_registers>(
      {op.dy, op.x, op.dweight, op.offsets, &op.dy_scale, &op.x_scale}, op.accumulate, launch);
}

}  // namespace redline::ops::cuda
