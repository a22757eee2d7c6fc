// totals = sum g^2 by group, with the step's loss and counts after them. Then
// norm = inv_pairs * sqrt(sum of squares);  finite = norm and loss are finite, and the norm is within its limit, if it
// has one; grad_scale = inv_pairs * min(1, clip / (norm + 1e-6)), or 0 where not finite. A block adds up one group in
// double, or a slice of a large one, and a thread then the group's slices; one block at last adds the groups, a thread
// each. All orders are fixed.
// sums[t] = sum (x - minus)^2 over a tensor of a flat array. A block adds up one slice of a tensor in double, for all
// tensors at once; a warp a tensor then adds its slices, in a fixed order.
#include "base/step_state.h"
#include "device/cuda/vectors.cuh"
#include "optim/cuda/kernels.h"

namespace redline::optim::cuda {
namespace {

using namespace device::cuda;

constexpr int kThreads = 256;  // 8 blocks a multiprocessor: all groups at once on 128 of them

// Loss and counts stand behind the first piece's sums.
__device__ void put_total(double* totals, std::int64_t group, double sum, bool more, const double* loss_sum,
                          const StepState* state) {
  totals[group] = more ? totals[group] + sum : sum;  // one of the two is 0
  if (group != 0 || more) return;
  totals[kLossTotal] = loss_sum ? *loss_sum : 0.0;
  *reinterpret_cast<StepCounts*>(totals + kCountTotals) = state ? state->counts : StepCounts{.pairs = 1};
}

// What a piece of the gradients has of the groups from `first` on, each in so many slices, a block a slice.
template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    sum_squares(const float* gradients, std::int64_t begin, std::int64_t n, std::int64_t all, std::int64_t first,
                std::int64_t slices, const double* loss_sum, const StepState* state, double* totals, double* partial,
                bool more) {
  __shared__ double parts[kMaxWarps];
  const std::int64_t group = first + blockIdx.x / slices, slice = blockIdx.x % slices;
  const std::int64_t group_from = max(group_begin(group, all) - begin, std::int64_t{0}),
                     group_to = min(group_begin(group + 1, all) - begin, n),
                     vectors_of_group = (max(group_to - group_from, std::int64_t{0}) + kWidth - 1) / kWidth;
  const std::int64_t from = group_from + vectors_of_group * slice / slices * kWidth,
                     to = min(group_from + vectors_of_group * (slice + 1) / slices * kWidth, group_to);
  double sum = 0;
  const auto add = [&sum](float x) { sum += static_cast<double>(x) * static_cast<double>(x); };
  if (from < to) {  // it begins with a whole vector; the last one may end within one
    const std::int64_t vectors = (to - from) / kWidth;
#pragma unroll 4
    for (std::int64_t v = threadIdx.x; v < vectors; v += kThreads) {
      const auto g = load<kWidth>(gradients + from + v * kWidth);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) add(g[e]);
    }
    const std::int64_t rest = from + vectors * kWidth + threadIdx.x;
    if (rest < to) add(gradients[rest]);
  }
  sum = row_sum(sum, parts);
  if (threadIdx.x != 0) return;
  if (partial)
    partial[group * slices + slice] = sum;
  else
    put_total(totals, group, sum, more, loss_sum, state);
}

// A thread a group; the piece has groups [first, last).
__global__ void __launch_bounds__(kThreads)
    add_groups(const double* partial, std::int64_t first, std::int64_t last, std::int64_t slices,
               const double* loss_sum, const StepState* state, double* totals, bool more) {
  const std::int64_t group = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  double sum = 0;
  if (group >= first && group < last)
    for (std::int64_t s = 0; s < slices; ++s) sum += partial[group * slices + s];
  put_total(totals, group, sum, more, loss_sum, state);
}

// The limit of the norm, and the usual norm after this one. One thread computes both.
__device__ float limit_of(const UsualNorm& usual, float spike) {
  if (usual.count < kUsualLeast) return 0.0f;
  return static_cast<float>(static_cast<double>(spike) * exp(static_cast<double>(usual.mean_log)));
}
__device__ void follow(UsualNorm& usual, float norm) {
  usual.count = fminf(usual.count + 1.0f, kUsualMost);
  usual.mean_log += (logf(norm) - usual.mean_log) / usual.count;
}

__global__ void __launch_bounds__(kCutGroups)
    finish(const double* totals, UpdateResult* result, float clip, UsualNorm* usual, float spike) {
  __shared__ double parts[kMaxWarps];
  const double sum = row_sum(totals[threadIdx.x], parts);
  if (threadIdx.x != 0) return;
  const StepCounts counts = *reinterpret_cast<const StepCounts*>(totals + kCountTotals);
  const double loss_sum = totals[kLossTotal],
               inv_pairs = counts.pairs == 0 ? 0.0 : static_cast<double>(static_cast<float>(1.0 / counts.pairs));
  const double norm = inv_pairs * sqrt(sum);
  const auto grad_norm = static_cast<float>(norm);
  const float limit = usual ? limit_of(*usual, spike) : 0.0f;
  const bool finite = isfinite(grad_norm) && isfinite(loss_sum) && (limit == 0.0f || grad_norm <= limit);
  if (usual && finite && grad_norm > 0.0f) follow(*usual, grad_norm);
  const double clipped = clip > 0 ? fmin(1.0, static_cast<double>(clip) / (norm + 1e-6)) : 1.0;
  *result = {.grad_norm = grad_norm,
             .grad_scale = finite ? static_cast<float>(inv_pairs * clipped) : 0.0f,
             .finite = finite ? 1.0f : 0.0f,
             .limit = limit,
             .loss_sum = loss_sum,
             .counts = counts};
}

template <int N>
__device__ double squares(const float* x, const float* minus) {
  const auto v = load<N>(x);
  double sum = 0;
  if (minus) {
    const auto m = load<N>(minus);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const auto d = static_cast<double>(v[e] - m[e]);
      sum += d * d;
    }
  } else {
#pragma unroll
    for (int e = 0; e < N; ++e) sum += static_cast<double>(v[e]) * static_cast<double>(v[e]);
  }
  return sum;
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    sum_slices(const float* x, const float* minus, const std::int64_t* bounds, double* partial) {
  __shared__ double parts[kMaxWarps];
  const std::int64_t tensor = blockIdx.x / kTensorSlices, slice = blockIdx.x % kTensorSlices;
  const std::int64_t first = bounds[2 * tensor], n = bounds[2 * tensor + 1] - first;
  const std::int64_t begin = first + slice_begin(slice, n), count = slice_begin(slice + 1, n) - slice_begin(slice, n);
  const std::int64_t vectors = count / kWidth;
  x += begin;
  if (minus) minus += begin;
  double sum = 0;
#pragma unroll 4
  for (std::int64_t v = threadIdx.x; v < vectors; v += kThreads)
    sum += squares<kWidth>(x + v * kWidth, minus ? minus + v * kWidth : nullptr);
  const std::int64_t rest = vectors * kWidth + threadIdx.x;
  if (rest < count) sum += squares<1>(x + rest, minus ? minus + rest : nullptr);
  sum = row_sum(sum, parts);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kWarp) add_slices(const double* partial, double* sums) {
  double sum = 0;
  for (std::int64_t s = threadIdx.x; s < kTensorSlices; s += kWarp) sum += partial[blockIdx.x * kTensorSlices + s];
  sum = warp_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

}  // namespace

void run(const SumSquares<Tensor>& op, const device::cuda::Launch& launch) {
  static_assert(kCutGroups % kThreads == 0, "add_groups() has a thread a group");
  const std::int64_t n = op.gradients.elements(), slices = op.partial.present() ? op.partial.columns() : 1;
  std::int64_t first = 0, last = kCutGroups;
  if (op.partial.present()) {  // others have nothing to sum, and no blocks
    while (first < kCutGroups && group_begin(first + 1, op.all) <= op.begin) ++first;
    while (last > first && group_begin(last - 1, op.all) >= op.begin + n) --last;
  }
  const auto kernel = in_vectors(4, {op.gradients}) && op.begin % 4 == 0 ? sum_squares<4> : sum_squares<1>;
  const auto *const loss_sum = op.loss_sum.as<double>(), *const partial = op.partial.as<double>();
  if (first < last)
    kernel<<<static_cast<unsigned>((last - first) * slices), kThreads, 0, launch.stream>>>(
        op.gradients.f32(), op.begin, n, op.all, first, slices, loss_sum, op.state.as<StepState>(),
        op.totals.as<double>(), op.partial.as<double>(), op.more);
  if (partial)
    add_groups<<<kCutGroups / kThreads, kThreads, 0, launch.stream>>>(
        partial, first, last, slices, loss_sum, op.state.as<StepState>(), op.totals.as<double>(), op.more);
  REDLINE_LAUNCHED();
}

void run(const GradNorm<Tensor>& op, const device::cuda::Launch& launch) {
  static_assert(kCutGroups <= 1024, "finish() has a thread a group");
  finish<<<1, kCutGroups, 0, launch.stream>>>(op.totals.as<double>(), op.result.as<UpdateResult>(), op.clip,
                                              op.usual.as<UsualNorm>(), op.spike);
  REDLINE_LAUNCHED();
}

void run(const TensorSums<Tensor>& op, const device::cuda::Launch& launch) {
  const auto tensors = static_cast<unsigned>(op.sums.elements());
  const auto kernel = in_vectors(4, {op.x, op.minus}) ? sum_slices<4> : sum_slices<1>;
  static_assert(kSliceAlignment % 4 == 0, "slices begin with whole vectors");
  kernel<<<tensors* static_cast<unsigned>(kTensorSlices), kThreads, 0, launch.stream>>>(
      op.x.f32(), op.minus.f32(), op.bounds.as<std::int64_t>(), op.partial.as<double>());
  REDLINE_LAUNCHED();
  add_slices<<<tensors, kWarp, 0, launch.stream>>>(op.partial.as<double>(), op.sums.as<double>());
  REDLINE_LAUNCHED();
}

}  // namespace redline::optim::cuda
