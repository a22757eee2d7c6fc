// The opposite rotation and the gradient of heads' norms (rope.cuh), cast to eight bits; v is cast as it is.
// A pair is a vector of the lower half of a head and its partner of the upper. A unit is eight pairs of 128 tokens, so
// two tiles (fp8_casts.cuh), a thread one pair of four tokens: a head of 128 columns, or as many smaller ones as fit. A
// block has units that follow each other, first those of one row of tiles, and reads ahead; so a thread keeps its place
// in a head and, over a row of tiles, its tokens. Without a norm it keeps their angles in registers. With one there is
// no room: they come from the first cache, which copies ahead pass by. It keeps its part of dw until heads of another
// kind come.
#include <bit>

#include "device/cuda/overlap.cuh"
#include "ops/cuda/fp8_casts.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/rope.cuh"
#include "ops/cuda/row_groups.cuh"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

constexpr int kRows = TileThread::kRows, kThreads = TileThread::kThreads, kOwnRows = 4;
constexpr std::int64_t kMost32 = std::numeric_limits<std::int32_t>::max();
constexpr int kUnitPairs = kTileColumns / 8, kMostHeadDim = 2 * kTileColumns;
using Pair8 = Vector<bf16, 8>;
using Tile = TurnedTile<kRows>;

struct Arguments {
  const bf16* dqkv;
  const bf16 *q_norm, *k_norm;
  const std::int32_t* positions;
  const float* table;
  const bf16* raw;
  const float* rstd;
  float* partial;  // [kRowGroups, 2 head_dim]
  CastTo to;
  std::int32_t n;
  float plus;  // added to every weight: 0 or 1
};

enum class Kind : std::int32_t { q, k, v };

// The shape of a row as the kernel indexes it.
struct Row {
  std::int32_t heads, qk_heads, head_dim;
  std::int32_t pair_bits;     // log2 of the pairs of a head
  std::int32_t pairs, units;  // of a row

  __device__ std::int32_t half() const { return head_dim / 2; }
  __device__ std::int32_t pairs_of_head() const { return 1 << pair_bits; }
  __device__ std::int32_t width() const { return pairs * 16; }
  __device__ std::int32_t qk_width() const { return qk_heads * head_dim; }
  __device__ std::int32_t head(std::int32_t pair) const { return pair >> pair_bits; }
  // Where a pair's lower vector stands in a row.
  __device__ std::int32_t column(std::int32_t pair) const {
    return head(pair) * head_dim + (pair & (pairs_of_head() - 1)) * 8;
  }
  __device__ Kind kind(std::int32_t pair) const {
    return head(pair) < heads ? Kind::q : head(pair) < qk_heads ? Kind::k : Kind::v;
  }
  // Differs between units that differ in the kind of any of their pairs: a boundary is in one unit only.
  __device__ std::int32_t kinds(std::int32_t unit) const {
    const std::int32_t first = unit * kUnitPairs, last = min(first + kUnitPairs, pairs) - 1;
    return static_cast<std::int32_t>(kind(first)) * 3 + static_cast<std::int32_t>(kind(last));
  }
};

// A thread's pair of one unit.
struct Spot {
  std::int32_t tile, unit, pair;
  std::int32_t rows;  // of its four that there are

  __device__ void step(const Row& l) {
    if (++unit == l.units) unit = 0, ++tile;
  }
};

// dw of q and of k over a block. A thread j has the sums of column j of [q | k].
class WeightGrad {
 public:
  // Adds what lanes have, of pairs of `unit`. All threads come; `scratch` is free before and after.
  __device__ void take(float (&dw)[16], std::int32_t unit, const Row& l, std::byte* scratch) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    auto* const sums = reinterpret_cast<float*>(scratch);  // [warps, pairs of a unit, 16]
    __syncthreads();
#pragma unroll
    for (int e = 0; e < 16; ++e) {
      float sum = dw[e];
      sum += __shfl_xor_sync(~0u, sum, 8);
      sum += __shfl_xor_sync(~0u, sum, 16);
      if (lane < kUnitPairs) sums[(warp * kUnitPairs + lane) * 16 + e] = sum;
      dw[e] = 0;
    }
    __syncthreads();
    const auto j = static_cast<std::int32_t>(threadIdx.x);
    if (j < 2 * l.head_dim) {
      const Kind kind = j < l.head_dim ? Kind::q : Kind::k;
      const std::int32_t in_head = j & (l.head_dim - 1), in_half = in_head & (l.half() - 1);
      const std::int32_t e = in_half % 8 + (in_head < l.half() ? 0 : 8);
      for (std::int32_t p = in_half / 8; p < kUnitPairs; p += l.pairs_of_head()) {
        if (l.kind(unit * kUnitPairs + p) != kind) continue;
        for (int w = 0; w < kThreads / kWarp; ++w) total_ += sums[(w * kUnitPairs + p) * 16 + e];
      }
    }
    __syncthreads();
  }
  __device__ void store(float* partial, const Row& l) const {
    const auto j = static_cast<std::int32_t>(threadIdx.x);
    if (j < 2 * l.head_dim) partial[std::int64_t{blockIdx.x} * 2 * l.head_dim + j] = total_;
  }

 private:
  float total_ = 0;
};
static_assert(2 * kMostHeadDim <= kThreads, "a thread a column of dw");

// Rows of a unit that are under way, and what is read of one.
template <bool kNorm>
constexpr int kAhead = kNorm ? 2 : 4;
template <bool kNorm>
constexpr int kReads = kNorm ? 4 : 2;
template <bool kNorm>
using Reads = CopyAhead<bf16, 8, kAhead<kNorm> * kReads<kNorm>>;

// The cosines and sines of a thread's four tokens: kept, or where they are in the table. `from` is that place.
template <bool kNorm>
struct Angles;
template <>
struct Angles<false> {
  Vector<float, 8> cosine[kOwnRows] = {}, sine[kOwnRows] = {};

  __device__ void take(int r, const float* table, std::int32_t from, std::int32_t half) {
    cosine[r] = load<8>(table + from), sine[r] = load<8>(table + from + half);
  }
  __device__ Vector<float, 8> c(int r, const float*) const { return cosine[r]; }
  __device__ Vector<float, 8> s(int r, const float*, std::int32_t) const { return sine[r]; }
};
template <>
struct Angles<true> {
  std::int32_t from[kOwnRows] = {};

  __device__ void take(int r, const float*, std::int32_t at, std::int32_t) { from[r] = at; }
  __device__ Vector<float, 8> c(int r, const float* table) const { return load<8>(table + from[r]); }
  __device__ Vector<float, 8> s(int r, const float* table, std::int32_t half) const {
    return load<8>(table + from[r] + half);
  }
};

template <bool kNorm, bool kE5m2>
__global__ void __launch_bounds__(kThreads, 2) rope_grad_cast_kernel(const Arguments op, const Row l) {
  extern __shared__ __align__(16) std::byte shared[];  // two tiles, then what is read ahead
  Tile* const tiles = reinterpret_cast<Tile*>(shared);
  Reads<kNorm> reads(shared + 2 * sizeof(Tile));
  const TileThread own;
  const std::int32_t half = l.half(), in_head = l.column(own.column / 8) & (l.head_dim - 1);
  const std::int32_t width = l.width(), qk_width = l.qk_width();
  const std::int64_t items = std::int64_t{ceil_div(op.n, kRows)} * l.units;
  const std::int64_t first = items * blockIdx.x / gridDim.x, end = items * (blockIdx.x + 1) / gridDim.x;
  const auto count = static_cast<std::int32_t>(end - first);

  const auto row_of = [&](const Spot& spot) { return spot.tile * kRows + own.row; };
  const auto settle = [&](Spot& spot, bool is_unit) {
    spot.pair = spot.unit * kUnitPairs + own.column / 8;
    spot.rows = is_unit && spot.pair < l.pairs ? min(op.n - row_of(spot), kOwnRows) : 0;
  };
  Spot ahead{};  // what is asked for
  ahead.tile = static_cast<std::int32_t>(first / l.units), ahead.unit = static_cast<std::int32_t>(first % l.units);
  settle(ahead, count > 0);
  const auto ask = [&](int r) {
    const int slot = r % kAhead<kNorm> * kReads<kNorm>;
    const std::int64_t row = row_of(ahead) + r;
    const bool inside = r < ahead.rows;
    const bf16* dx = op.dqkv + row * width + l.column(ahead.pair);
    reads.ask(slot, dx, inside);
    reads.ask(slot + 1, dx + half, inside);
    if constexpr (kNorm) {
      const bool normed = inside && l.head(ahead.pair) < l.qk_heads;
      const bf16* raw = op.raw + row * qk_width + l.column(ahead.pair);
      reads.ask(slot + 2, raw, normed);
      reads.ask(slot + 3, raw + half, normed);
    }
  };

  let_next_kernel_start();
  await_kernel_before();
  const float scale = op.to.scale->scale;
  LargestBits largest;
  float next_rstd[kOwnRows] = {};
  const auto ask_rstd = [&] {
    const bool normed = l.head(ahead.pair) < l.qk_heads;
    const float* from = op.rstd + std::int64_t{row_of(ahead)} * l.qk_heads + l.head(ahead.pair);
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) next_rstd[r] = normed && r < ahead.rows ? from[r * l.qk_heads] : 0.0f;
  };
#pragma unroll
  for (int r = 0; r < kAhead<kNorm>; ++r) ask(r);
  if constexpr (kNorm) ask_rstd();

  Angles<kNorm> angles;
  std::int32_t angles_of = -1, kinds = -1, kinds_of = 0;  // a tile; kinds of pairs, and a unit that has them
  Pair8 w_lower{}, w_upper{};
  float dw[16] = {};
  WeightGrad weights;

  for (std::int32_t i = 0; i < count; ++i) {
    const Spot now = ahead;
    const bool rotates = l.head(now.pair) < l.qk_heads;  // else v
    if (rotates && angles_of != now.tile) {
      angles_of = now.tile;
#pragma unroll
      for (int r = 0; r < kOwnRows; ++r) {
        const std::int32_t position = r < now.rows ? op.positions[row_of(now) + r] : 0;
        angles.take(r, op.table, position * l.head_dim + in_head, half);
      }
    }
    const bool unit_rotates = l.head(now.unit * kUnitPairs) < l.qk_heads;
    float rstd[kOwnRows];
    if constexpr (kNorm) {
      if (unit_rotates && l.kinds(now.unit) != kinds) {
        if (kinds >= 0) weights.take(dw, kinds_of, l, shared);
        kinds = l.kinds(now.unit), kinds_of = now.unit;
        const bf16* weight = (l.kind(now.pair) == Kind::q ? op.q_norm : op.k_norm) + in_head;
        w_lower = load<8>(weight), w_upper = load<8>(weight + half);
      }
#pragma unroll
      for (int r = 0; r < kOwnRows; ++r) rstd[r] = next_rstd[r];
    }

    uint2 lower_bytes[kOwnRows], upper_bytes[kOwnRows];
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
      if (r % kAhead<kNorm> == 0) reads.await();
      const int slot = r % kAhead<kNorm> * kReads<kNorm>;
      Pair8 lower = reads.take(slot), upper = reads.take(slot + 1), x_lower, x_upper;
      if constexpr (kNorm) x_lower = reads.take(slot + 2), x_upper = reads.take(slot + 3);
      if (r + kAhead<kNorm> == kOwnRows) {
        ahead.step(l);
        settle(ahead, i + 1 < count);
      }
      if constexpr (kNorm) {
        if (r + 1 == kOwnRows) ask_rstd();  // no sooner: registers
      }
      ask((r + kAhead<kNorm>) % kOwnRows);

      if (unit_rotates) {  // all threads of the block: a head's sum wants its lanes
        float a[8], b[8];
        const auto cosine = angles.c(r, op.table), sine = angles.s(r, op.table, half);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const Rotated out = rotated(lower[e], upper[e], cosine[e], -sine[e]);
          a[e] = out.lower, b[e] = out.upper;
        }
        if constexpr (kNorm) {
          float product = 0;
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            const float a_x = a[e] * x_lower[e], b_x = b[e] * x_upper[e];
            product = fmaf(a_x, w_lower[e] + op.plus, product);
            product = fmaf(b_x, w_upper[e] + op.plus, product);
            dw[e] = fmaf(a_x, rstd[r], dw[e]);
            dw[8 + e] = fmaf(b_x, rstd[r], dw[8 + e]);
          }
          const float slope = norm_slope(head_sum(product, l.pairs_of_head()), rstd[r], l.head_dim);
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            a[e] = norm_dx(a[e], x_lower.again(e), w_lower.again(e) + op.plus, rstd[r], slope);
            b[e] = norm_dx(b[e], x_upper.again(e), w_upper.again(e) + op.plus, rstd[r], slope);
          }
        }
        if (rotates) lower = Pair8::from(a), upper = Pair8::from(b);
      }
      largest.add(lower);
      largest.add(upper);
      lower_bytes[r] = cast_8<kE5m2>(lower, scale);
      upper_bytes[r] = cast_8<kE5m2>(upper, scale);
      if (op.to.rows && r < now.rows) {
        std::uint8_t* to = op.to.rows + std::int64_t{row_of(now) + r} * width + l.column(now.pair);
        *reinterpret_cast<uint2*>(to) = lower_bytes[r];
        *reinterpret_cast<uint2*>(to + half) = upper_bytes[r];
      }
    }

    if (!op.to.columns) continue;
    __syncthreads();  // the last unit's columns have left
    tiles[0].put(own.row, own.column, lower_bytes);
    tiles[1].put(own.row, own.column, upper_bytes);
    __syncthreads();
#pragma unroll
    for (int part = 0; part < kTileColumns * Tile::kChunks / kThreads; ++part) {
      const int chunk = part * kThreads + static_cast<int>(threadIdx.x), c = chunk / Tile::kChunks;
      const int index = chunk % Tile::kChunks;
      const std::int32_t pair = now.unit * kUnitPairs + c / 8;
      const std::int32_t row = now.tile * kRows + 16 * index;
      if (pair >= l.pairs || row >= op.n) continue;
      std::uint8_t* to = op.to.columns + std::int64_t{l.column(pair) + c % 8} * op.n + row;
      *reinterpret_cast<uint4*>(to) = tiles[0].chunk(c, index);
      *reinterpret_cast<uint4*>(to + std::int64_t{half} * op.n) = tiles[1].chunk(c, index);
    }
  }

  await_copies();
  if (op.to.amax) largest.record(op.to.amax);
  if constexpr (kNorm) {
    if (kinds >= 0) weights.take(dw, kinds_of, l, shared);
    weights.store(op.partial, l);
  }
}

}  // namespace

void rope_grad_cast(const RopeQkNormGrad<Tensor>& op, const Launch& launch) {
  const HeadLayout& layout = op.layout;
  const std::int64_t n = op.dqkv.rows();
  REDLINE_CHECK(n % 16 == 0 || !op.fp8.columns.present(),
                "{} tokens are not a multiple of 16: no product takes them in eight bits", n);
  REDLINE_CHECK(op.dqkv.dtype == DType::bf16 && in_vectors(8, {op.dqkv, op.q_norm, op.k_norm, op.table, op.raw}),
                "no cast of {}", name_of(op.dqkv.dtype));
  REDLINE_CHECK(op.table.elements() <= kMost32 && n <= kMost32 - kRows, "{} tokens, and angles {}, are too many", n,
                op.table.shape.str());
  const auto i32 = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  const std::int64_t pairs = layout.qkv_width() / 16;
  const Row row{i32(layout.heads),    i32(layout.qk_heads()),
                i32(layout.head_dim), std::countr_zero(static_cast<std::uint64_t>(layout.head_dim / 16)),
                i32(pairs),           i32(ceil_div<std::int64_t>(pairs, kUnitPairs))};
  const CastTo to = cast_to(op.fp8);
  const bool norm = op.raw.present();
  auto* kernel = to.e5m2 ? rope_grad_cast_kernel<false, true> : rope_grad_cast_kernel<false, false>;
  if (norm) kernel = to.e5m2 ? rope_grad_cast_kernel<true, true> : rope_grad_cast_kernel<true, false>;
  const std::size_t shared = 2 * sizeof(Tile) + (norm ? Reads<true>::bytes(kThreads) : Reads<false>::bytes(kThreads));
  allow_shared(kernel, shared);
  launch_early(launch, kernel, kRowGroups, kThreads, shared,
               {op.dqkv.as<bf16>(), op.q_norm.as<bf16>(), op.k_norm.as<bf16>(), op.positions.i32(), op.table.f32(),
                op.raw.as<bf16>(), op.rstd.f32(), op.partial.f32(), to, i32(n), op.one_plus ? 1.0f : 0.0f},
               row);
  if (norm) sum_row_groups(op.partial, layout.head_dim, op.dq_norm.f32(), op.dk_norm.f32(), op.accumulate, launch);
}

}  // namespace redline::ops::cuda
