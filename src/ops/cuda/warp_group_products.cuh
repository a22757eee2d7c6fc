// Products of a warp group, four warps, on Hopper's tensor cores: 64 rows at a time, operands read from tiles of shared
// memory by the cores themselves, results left in registers, all of it while the warps go on. sm_90a only.
//   Lane l of warp w holds rows 16 w + l / 4 and + 8 of the result, as mma's C does (attention_math.cuh), and of a left
//   operand in registers what mma's A holds.
// Between the warps' own accesses to registers or tiles and a product's there has to be begin_products; a product's
// results are there after await_products.
#pragma once

// The sums of a product as asm statements name them, and as operands: from c[i] on, a thread has four sums for each
// eight columns.
#define REDLINE_NAMES_32                                                 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REDLINE_NAMES_64                                                             \
  REDLINE_NAMES_32                                                                   \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REDLINE_NAMES_128                                                                        \
  REDLINE_NAMES_64                                                                               \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"             \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"             \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define REDLINE_SUMS_4(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define REDLINE_SUMS_16(c, i) \
  REDLINE_SUMS_4(c, i), REDLINE_SUMS_4(c, i + 1), REDLINE_SUMS_4(c, i + 2), REDLINE_SUMS_4(c, i + 3)
#define REDLINE_SUMS_32(c, i) REDLINE_SUMS_16(c, i), REDLINE_SUMS_16(c, i + 4)
#define REDLINE_SUMS_64(c, i) REDLINE_SUMS_32(c, i), REDLINE_SUMS_32(c, i + 8)
#define REDLINE_SUMS_128(c, i) REDLINE_SUMS_64(c, i), REDLINE_SUMS_64(c, i + 16)

namespace redline::ops::cuda {

// Values of registers stay on this side of it.
template <class Columns>
__device__ void pin(Columns& c) {
  for (auto& columns : c) {
#pragma unroll
    for (float& x : columns) asm volatile("" : "+f"(x)::"memory");
  }
}
// The sums that products add to are named, so that they are there before.
template <class... Results>
__device__ void begin_products(Results&... results) {
  (pin(results), ...);
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
// The products since the last call become a group.
__device__ inline void end_products() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }

// All groups but the last kPending are done. The results are named so that no use of them moves to before this.
template <int kPending, class... Results>
__device__ void await_products(Results&... results) {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
  (pin(results), ...);
}

}  // namespace redline::ops::cuda
