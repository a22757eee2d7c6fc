// Products of a warp group, four warps, on Hopper's tensor cores: 64 rows at a time, operands read from tiles of shared
// memory by the cores themselves, results left in registers, all of it while the warps go on. sm_90a only.
//   Lane l of warp w holds rows 16 w + l / 4 and + 8 of the result, as mma's C does (attention_math.cuh), and of a left
//   operand in registers what mma's A holds.
// Between the warps' own accesses to registers or tiles and a product's there has to be begin_products; a product's
// results are there after await_products.
#pragma once

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
