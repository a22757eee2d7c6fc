// Products of a warp group, four warps, on Hopper's tensor cores: 64 rows at a time, operands read from tiles of shared
// memory by the cores themselves, results left in registers, all of it while the warps go on. sm_90a only.
//   Lane l of warp w holds rows 16 w + l / 4 and + 8 of the result, as mma's C does (attention_ptx.cuh), and of a left
//   operand in registers what mma's A holds.
// Between the warps' own accesses to registers or tiles and a product's there has to be begin_products; a product's
// results are there after await_products.
#pragma once

#include "ops/cuda/attention_tiles.cuh"

namespace redline::ops::cuda {

inline constexpr int kTile = 64, kWarpRows = 16;  // rows of a product, and those of them that one warp has

// After this call all copies into shared memory are visible to the warps and to their products, and tiles that earlier
// products have read may be overwritten.
__device__ inline void exchange_tiles() {
  await_copies();
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
  __syncthreads();
}
// Values of registers stay on this side of it.
template <class Columns>
__device__ inline void pin(Columns& c) {
  for (auto& columns : c) {
#pragma unroll
    for (float& x : columns) asm volatile("" : "+f"(x)::"memory");
  }
}
// The sums that products add to are named, so that they are there before.
template <class... Results>
__device__ inline void begin_products(Results&... results) {
  (pin(results), ...);
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
// The products since the last call become a group.
__device__ inline void end_products() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }

// All groups but the last kPending are done. The results are named so that no use of them moves to before this.
template <int kPending, class... Results>
__device__ inline void await_products(Results&... results) {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
  (pin(results), ...);
}

// A tile as products see it: swizzle of 128 bytes, squares one after the other, 8 rows to the next. It serves both ways
// of reading: columns summed over (the squares' stride is not looked at then) and rows summed over. `bytes` into the
// tile.
template <int kHeadDim>
class TileView {
 public:
  __device__ explicit TileView(std::uint32_t tile)
      : low_((tile & 0x3ffff) >> 4 | static_cast<std::uint32_t>(TileRows<kHeadDim>::kSquareBytes / 16) << 16) {}
  __device__ std::uint64_t at(std::uint32_t bytes) const {
    constexpr std::uint64_t kSwizzle = std::uint64_t{1} << 62, kRows = 8 * TileRows<kHeadDim>::kRowBytes / 16;
    return kSwizzle | kRows << 32 | (low_ + bytes / 16);
  }

 private:
  std::uint32_t low_;
};

// One step of 16 of the summed dimension. Of tiles whose columns are summed over: c = a b^T, or c += a b^T where `add`
// is not 0. Of a left operand in registers and a tile whose rows are summed over: c = a b, or c += a b.
__device__ inline void multiply_step(float (&c)[8][4], std::uint64_t a, std::uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
      " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, 0, 0;\n}\n"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
        "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
        "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]),
        "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
        "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
      : "l"(a), "l"(b), "r"(add));
}
__device__ inline void multiply_step(float (&c)[8][4], const std::uint32_t (&a)[4], std::uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
      " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
        "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
        "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]),
        "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
        "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
__device__ inline void multiply_step(float (&c)[16][4], const std::uint32_t (&a)[4], std::uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
      " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
      " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
      " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
        "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
        "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]),
        "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
        "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]),
        "+f"(c[8][3]), "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]), "+f"(c[10][1]),
        "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3]), "+f"(c[12][0]),
        "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]),
        "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]), "+f"(c[15][0]), "+f"(c[15][1]), "+f"(c[15][2]),
        "+f"(c[15][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// c = left right^T, or c += left right^T: 64 rows of one tile and 64 of another, summed over head_dim.
template <int kHeadDim>
__device__ inline void multiply_tiles(float (&c)[8][4], std::uint32_t left, std::uint32_t right, bool add = false) {
  const TileView<kHeadDim> a(left), b(right);
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
    const std::uint32_t columns = TileRows<kHeadDim>::offset(0, 2 * k);
    multiply_step(c, a.at(columns), b.at(columns), k > 0 || add);
  }
}

// c = weights right, or c += weights right: 64 x 64 weights in registers, 64 rows of a tile.
template <int kHeadDim>
__device__ inline void weigh_rows(float (&c)[kHeadDim / 8][4], const std::uint32_t (&weights)[4][4],
                                  std::uint32_t right, bool add) {
  const TileView<kHeadDim> b(right);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    multiply_step(c, weights[k], b.at(k * 16 * TileRows<kHeadDim>::kRowBytes), k > 0 || add);
  }
}

}  // namespace redline::ops::cuda
