// The softmax of tiled attention, forward, in registers: the running statistics of rows, a step for each tile of
// scores, and the last step. Rows are those of mma's C: lane / 4 and lane / 4 + 8 of each 16.
#pragma once

#include "ops/cuda/attention_tiles.cuh"

namespace redline::ops::cuda {

// The largest score of each row, and this thread's share of its sum of p.
template <int kM>
struct SoftmaxRows {
  float top[kM][2], sum[kM][2];
  __device__ SoftmaxRows() {
#pragma unroll
    for (int m = 0; m < kM; ++m) top[m][0] = top[m][1] = -INFINITY, sum[m][0] = sum[m][1] = 0;
  }
};

// Turns scores into p. Earlier sums, if any, are scaled down where a larger score comes.
template <int kM, int kN, int kColumns>
__device__ inline void softmax_step(float (&s)[kM][kN][4], float (&out)[kM][kColumns][4], SoftmaxRows<kM>& rows,
                                    float scale_log2, bool begun) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = rows.top[m][half];
#pragma unroll
      for (int n = 0; n < kN; ++n) top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float correction = exp2_approx((rows.top[m][half] - top) * scale_log2), shift = top * scale_log2;
      float sum = rows.sum[m][half] * correction;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          s[m][n][i] = exp2_approx(s[m][n][i] * scale_log2 - shift);
          sum += s[m][n][i];
        }
      }
      if (begun) {
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          out[m][n][2 * half] *= correction;
          out[m][n][2 * half + 1] *= correction;
        }
      }
      rows.top[m][half] = top;
      rows.sum[m][half] = sum;
    }
  }
}

// Writes lse of the rows below `present` and gives the factor that turns out's sums into means.
template <int kM>
__device__ inline void finish_softmax(const SoftmaxRows<kM>& rows, float scale, float* lse, int present,
                                      float (&factor)[kM][2]) {
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = rows.sum[m][half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      factor[m][half] = 1.0f / sum;
      const int row = m * 16 + half * 8 + lane / 4;
      if (lane % 4 == 0 && row < present) lse[row] = rows.top[m][half] * scale + logf(sum);
    }
  }
}

}  // namespace redline::ops::cuda
