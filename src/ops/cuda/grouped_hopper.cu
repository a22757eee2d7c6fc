// Products of groups with Hopper's products of warp groups, in bf16 with sums in fp32 (ops/grouped.h):
//   y = x W^T          A = x,     B = W of the group, both summed over their columns
//   dx (+)= dy W       A = dy,    B = W of the group, whose rows are summed over
//   dW (+)= dy^T x     A = dy^T,  B = x, both summed over the group's rows
// A tile of the result is 128 x 256. A block is one thread that copies and two warp groups that multiply, 64 rows each;
// blocks stay and walk over all tiles (grouped_tiles.h), which depend on the offsets alone. Operands come in boxes of
// 64 rows by 128 bytes, in the layout with a swizzle of 128 bytes, a stage of the sum at a time: two boxes of A, four
// of B. A pair of blocks has two neighbouring tiles of one row of tiles and the same steps, so each fetches half of A
// for both: by arithmetic a block asks the second-level cache for 40 bytes a clock instead of 48. Results leave through
// shared memory by the copy engine, while the next tile is multiplied.
//   Edges: the copy engine writes zeros for what lies outside of an array and leaves out what would be written there.
//   Rows of the next group that a tile of y or dx reaches into are computed and not written. In the last step of dW
//   they would be summed over: the warps write zeros over them in shared memory, in both operands, as a NaN may be
//   there.
#include <cudaTypedefs.h>

#include "ops/cuda/attention_tiles.cuh"
#include "ops/cuda/grouped_tiles.h"
#include "ops/cuda/warp_group_products.cuh"

namespace redline::ops::cuda {
namespace {

using device::cuda::Launch;

constexpr int kCluster = 2;                              // blocks that share A; 1: each fetches its own
constexpr int kRows = 128, kColumns = 256, kDepth = 64;  // of a tile, and of a step of its sum
constexpr int kBox = 64, kBoxBytes = kBox * 128;         // rows, or columns of bf16
constexpr int kRowBoxes = kRows / kBox, kColumnBoxes = kColumns / kBox;
constexpr int kStages = 4, kStageBytes = (kRowBoxes + kColumnBoxes) * kBoxBytes;
constexpr int kBuffers = 2;  // boxes of results under way, of a warp group
constexpr int kMultiplying = 2, kGroupThreads = 128, kThreads = (1 + kMultiplying) * kGroupThreads;
constexpr int kMaxGroups = 512;
constexpr int kBuffersAt = kStages * kStageBytes, kBarriersAt = kBuffersAt + kMultiplying * kBuffers * kBoxBytes;
constexpr int kOffsetsAt = kBarriersAt + 2 * kStages * 8, kBytes = kOffsetsAt + (kMaxGroups + 1) * 4;
static_assert(kBytes <= 227 * 1024 && kRowBoxes % kCluster == 0 && kRowBoxes == kMultiplying);

enum class Product { output, input_grad, weight_grad };

template <Product kProduct>
struct Kind {
  static constexpr bool kOfRows = kProduct != Product::weight_grad;
  static constexpr bool kTurnA = kProduct == Product::weight_grad, kTurnB = kProduct != Product::output;
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
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
      " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
      " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
      " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,"
      " %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,"
      " %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95,"
      " %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111,"
      " %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, p, 1, 1, %131, %132;\n}\n"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
        "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
        "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]),
        "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
        "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]),
        "+f"(c[8][3]), "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]), "+f"(c[10][1]),
        "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3]), "+f"(c[12][0]),
        "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]),
        "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]), "+f"(c[15][0]), "+f"(c[15][1]), "+f"(c[15][2]),
        "+f"(c[15][3]), "+f"(c[16][0]), "+f"(c[16][1]), "+f"(c[16][2]), "+f"(c[16][3]), "+f"(c[17][0]), "+f"(c[17][1]),
        "+f"(c[17][2]), "+f"(c[17][3]), "+f"(c[18][0]), "+f"(c[18][1]), "+f"(c[18][2]), "+f"(c[18][3]), "+f"(c[19][0]),
        "+f"(c[19][1]), "+f"(c[19][2]), "+f"(c[19][3]), "+f"(c[20][0]), "+f"(c[20][1]), "+f"(c[20][2]), "+f"(c[20][3]),
        "+f"(c[21][0]), "+f"(c[21][1]), "+f"(c[21][2]), "+f"(c[21][3]), "+f"(c[22][0]), "+f"(c[22][1]), "+f"(c[22][2]),
        "+f"(c[22][3]), "+f"(c[23][0]), "+f"(c[23][1]), "+f"(c[23][2]), "+f"(c[23][3]), "+f"(c[24][0]), "+f"(c[24][1]),
        "+f"(c[24][2]), "+f"(c[24][3]), "+f"(c[25][0]), "+f"(c[25][1]), "+f"(c[25][2]), "+f"(c[25][3]), "+f"(c[26][0]),
        "+f"(c[26][1]), "+f"(c[26][2]), "+f"(c[26][3]), "+f"(c[27][0]), "+f"(c[27][1]), "+f"(c[27][2]), "+f"(c[27][3]),
        "+f"(c[28][0]), "+f"(c[28][1]), "+f"(c[28][2]), "+f"(c[28][3]), "+f"(c[29][0]), "+f"(c[29][1]), "+f"(c[29][2]),
        "+f"(c[29][3]), "+f"(c[30][0]), "+f"(c[30][1]), "+f"(c[30][2]), "+f"(c[30][3]), "+f"(c[31][0]), "+f"(c[31][1]),
        "+f"(c[31][2]), "+f"(c[31][3])
      : "l"(a), "l"(b), "r"(add), "n"(kTurnA ? 1 : 0), "n"(kTurnB ? 1 : 0));
}

// The stage of the next step, round after round.
struct Turn {
  int stage = 0, parity = 0;
  __device__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

template <Product kProduct>
__device__ auto tiles_of(const Arguments& a, const std::int32_t* offsets) {
  const int across = (a.columns + kCluster * kColumns - 1) / (kCluster * kColumns);
  if constexpr (Kind<kProduct>::kOfRows)
    return TilesOfRows(offsets, a.groups, kRows, kCluster * kColumns, across);
  else
    return TilesOfMatrices(offsets, a.groups, kRows, kCluster * kColumns, across, (a.rows + kRows - 1) / kRows);
}
// A group without rows has one step, all of which clear_rest makes zeros, unless its gradient stays as it is.
template <Product kProduct>
__device__ int steps_of(const Arguments& a, const GroupTile& tile) {
  if constexpr (Kind<kProduct>::kOfRows) return (a.depth + kDepth - 1) / kDepth;
  return tile.rows() == 0 && !a.accumulate ? 1 : (tile.rows() + kDepth - 1) / kDepth;
}

// The one thread that copies.
template <Product kProduct>
__device__ void fetch_tiles(const Arguments& a, std::uint32_t memory, const std::int32_t* offsets) {
  using K = Kind<kProduct>;
  const int rank = cluster_rank();
  auto tiles = tiles_of<kProduct>(a, offsets);
  GroupTile tile;
  Turn turn;
  for (int number = blockIdx.x / kCluster; tiles.seek(number, tile); number += gridDim.x / kCluster) {
    const int steps = steps_of<kProduct>(a, tile), column = tile.column + rank * kColumns;
    for (int s = 0; s < steps; ++s, turn.advance()) {
      const std::uint32_t stage = memory + turn.stage * kStageBytes, full = memory + kBarriersAt + turn.stage * 8;
      await_phase(full + kStages * 8, turn.parity ^ 1);
      announce_bytes(full, kStageBytes);
      const int depth = s * kDepth + (K::kOfRows ? 0 : tile.begin);
#pragma unroll
      for (int i = 0; i < kRowBoxes / kCluster; ++i) {
        const int box = rank * (kRowBoxes / kCluster) + i, row = tile.row + box * kBox;
        const auto fetch = kCluster > 1 ? fetch_box_for_all : fetch_box;
        fetch(a.a, stage + box * kBoxBytes, full, K::kTurnA ? row : depth, K::kTurnA ? depth : row, 0);
      }
#pragma unroll
      for (int box = 0; box < kColumnBoxes; ++box) {
        const int own = column + box * kBox;
        fetch_box(a.b, stage + (kRowBoxes + box) * kBoxBytes, full, K::kTurnB ? own : depth, K::kTurnB ? depth : own,
                  K::kOfRows ? tile.group : 0);
      }
    }
  }
}

// The sums of a tile, or of the half that this warp group has: kBoxColumns columns at a time through shared memory.
// `sent` counts the boxes, whose buffers take turns.
template <Product kProduct>
__device__ void send_results(const Arguments& a, float (&c)[kColumns / 8][4], std::uint32_t buffers, int half,
                             const GroupTile& tile, int column, int& sent) {
  using K = Kind<kProduct>;
  using T = typename K::Result;
  using Rows = TileRows<K::kBoxColumns, T>;  // a box: rows of 128 bytes
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads, lane = thread % 32, warp = thread / 32;
  const int row = tile.row + half * kBox, present = min((K::kOfRows ? tile.end : a.rows) - row, kBox);
  if (present <= 0) return;
#pragma unroll
  for (int box = 0; box < kColumns / K::kBoxColumns; ++box) {
    const int first = column + box * K::kBoxColumns;
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

// The rows of a stage from `present` on become zeros: the end of each of its boxes.
__device__ void clear_rest(std::uint32_t stage, int present) {
  const int thread = static_cast<int>(threadIdx.x) - kGroupThreads;
#pragma unroll
  for (int box = 0; box < kRowBoxes + kColumnBoxes; ++box) {
#pragma unroll 1
    for (int at = present * 128 + thread * 16; at < kBoxBytes; at += kMultiplying * kGroupThreads * 16)
      asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};\n" ::"r"(stage + box * kBoxBytes + at), "r"(0) : "memory");
  }
  show_to_engines();
  sync_threads(1 + kMultiplying, kMultiplying * kGroupThreads);
}

// A warp group that multiplies.
template <Product kProduct>
__device__ void multiply_tiles(const Arguments& a, std::uint32_t memory, const std::int32_t* offsets) {
  using K = Kind<kProduct>;
  const int half = static_cast<int>(threadIdx.x) / kGroupThreads - 1, lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t buffers = memory + kBuffersAt + half * kBuffers * kBoxBytes;
  const auto release = [&](int stage) {
    if (lane < kCluster) arrive_at(memory + kBarriersAt + (kStages + stage) * 8, lane);
  };
  const int column = cluster_rank() * kColumns;
  auto tiles = tiles_of<kProduct>(a, offsets);
  GroupTile tile;
  Turn turn;
  int sent = 0;
  for (int number = blockIdx.x / kCluster; tiles.seek(number, tile); number += gridDim.x / kCluster) {
    const int steps = steps_of<kProduct>(a, tile);
    if (!K::kOfRows && steps == 0) continue;
    float c[kColumns / 8][4];
    int before = 0;  // the stage of the step before
    for (int s = 0; s < steps; ++s, turn.advance()) {
      const std::uint32_t stage = memory + turn.stage * kStageBytes;
      await_phase(memory + kBarriersAt + turn.stage * 8, turn.parity);
      if (!K::kOfRows && tile.rows() - s * kDepth < kDepth) clear_rest(stage, tile.rows() - s * kDepth);
      begin_products(c);
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k)
        multiply_step<K::kTurnA, K::kTurnB>(c, boxes_at<K::kTurnA>(stage + half * kBoxBytes, k),
                                            boxes_at<K::kTurnB>(stage + kRowBoxes * kBoxBytes, k), s > 0 || k > 0);
      end_products();
      await_products<1>(c);
      if (s > 0) release(before);
      before = turn.stage;
    }
    await_products<0>(c);
    release(before);
    send_results<kProduct>(a, c, buffers, half, tile, tile.column + column, sent);
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

template <Product kProduct>
__global__ __launch_bounds__(kThreads, 1) void grouped_kernel(const __grid_constant__ Arguments a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  const std::uint32_t memory = shared_address(shared);
  auto* const offsets = reinterpret_cast<std::int32_t*>(shared + kOffsetsAt);
  for (int g = static_cast<int>(threadIdx.x); g <= a.groups; g += kThreads) offsets[g] = a.offsets[g];
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      make_barrier(memory + kBarriersAt + stage * 8, 1);                                             // it is full
      make_barrier(memory + kBarriersAt + (kStages + stage) * 8, kCluster * kMultiplying * kWarps);  // all have read it
    }
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  }
  __syncthreads();
  sync_cluster();

  // 128 sums a thread of those that multiply; the registers that the others have too many are theirs.
  if (threadIdx.x < kGroupThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
    if (threadIdx.x == 0) fetch_tiles<kProduct>(a, memory, offsets);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
    multiply_tiles<kProduct>(a, memory, offsets);
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
  const CUresult result =
      encode(&map, t.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3,
             t.data, extents, strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  REDLINE_CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled of {}: error {}", t.shape.str(),
                static_cast<int>(result));
  return map;
}

template <Product kProduct>
void launch_product(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& offsets, bool accumulate,
                    const Launch& launch) {
  using K = Kind<kProduct>;
  const auto small = [](std::int64_t i) { return static_cast<std::int32_t>(i); };
  const Arguments arguments{.a = map_of(a),
                            .b = map_of(b),
                            .c = map_of(c),
                            .offsets = offsets.i32(),
                            .result = c.data,
                            .groups = small(offsets.elements() - 1),
                            .n = small(a.rows()),
                            .rows = small(K::kOfRows ? c.rows() : c.shape[1]),
                            .columns = small(c.columns()),
                            .depth = small(a.columns()),
                            .accumulate = accumulate};
  device::cuda::allow_shared(grouped_kernel<kProduct>, kBytes);
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
  REDLINE_CUDA(cudaLaunchKernelEx(&config, grouped_kernel<kProduct>, arguments));
}

// Rows of the copy engine begin at multiples of 16 bytes.
std::string why_not(const Launch& launch, const Tensor& offsets, std::initializer_list<Tensor> tensors) {
  if (launch.major != 9) return "it needs compute capability 9.0";
  if (!REDLINE_SM90A) return "this program was not compiled for 90a";
  if (offsets.elements() - 1 > kMaxGroups) return "it is built for up to 512 groups";
  for (const Tensor& t : tensors) {
    if (t.columns() % 8 != 0) return "it needs rows that are multiples of 8 long";
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

void hopper_run(const GroupedLinear<Tensor>& op, const Launch& launch) {
  launch_product<Product::output>(op.x, op.weight, op.y, op.offsets, false, launch);
}
void hopper_run(const GroupedLinearInputGrad<Tensor>& op, const Launch& launch) {
  launch_product<Product::input_grad>(op.dy, op.weight, op.dx, op.offsets, op.accumulate, launch);
}
void hopper_run(const GroupedLinearWeightGrad<Tensor>& op, const Launch& launch) {
  launch_product<Product::weight_grad>(op.dy, op.x, op.dweight, op.offsets, op.accumulate, launch);
}

}  // namespace redline::ops::cuda
