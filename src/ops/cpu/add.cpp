// y = a + b, element by element.
#include "ops/cpu/kernels.h"

namespace redline::ops::cpu {

void run(const Add<Tensor>& op, ThreadPool& pool) {
  const float *a = op.a.f32(), *b = op.b.f32();
  float* y = op.y.f32();
  pool.for_ranges(op.y.elements(), 1 << 14, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) y[i] = a[i] + b[i];
  });
}

}  // namespace redline::ops::cpu
