// AdamW, g scaled and clipped, skipped but for the working copies when the norm was not finite:
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= lr * (wd * p + (m / c1) / (sqrt(v / c2) + eps));
//   working = p in bf16. Refresh is that last line alone, and may copy in fp32.
// One kernel for every way to keep moments (optim/moments.h). A thread has four elements of every array, with codes of
// eight bits eight, so that a warp has a block of 256; a thread at either end has fewer. Everything that changes from
// step to step is read from the step's state, the same address for all: one cached load.
// average = parameters where the share is 1, else average + share * (parameters - average), and nothing where the
// update was not made; exchange: both change places. A thread has four elements of both arrays, or one where they do
// not lie in vectors; what is left over at the end goes one to a thread.
#include "base/step_state.h"
#include "device/cuda/vectors.cuh"
#include "optim/cuda/kernels.h"
#include "optim/moments.h"

namespace redline::optim::cuda {
namespace {

using namespace device::cuda;

constexpr int kThreads = kShareThreads;

struct Arrays {
  float* parameters;
  const float* gradients;
  bf16* working;  // or none
};

// Elements [first, first + kWidth) of arrays, those of them that are inside: `whole`, in one access.
template <int kWidth>
struct Part {
  std::int64_t first;
  bool whole;
  std::int64_t n;

  __device__ bool inside(int e) const { return first + e >= 0 && first + e < n; }

  template <class T>
  __device__ void load(const T* from, float (&x)[kWidth]) const {
    if (whole) {
      const auto all = device::cuda::load<kWidth>(from + first);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) x[e] = all[e];
    } else {
#pragma unroll
      for (int e = 0; e < kWidth; ++e) x[e] = inside(e) ? device::cuda::load<1>(from + first + e)[0] : 0.0f;
    }
  }
  template <class T>
  __device__ void store(T* to, const float (&x)[kWidth]) const {
    if (whole) {
      device::cuda::store(to + first, x);
      return;
    }
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      const float one[] = {x[e]};
      if (inside(e)) device::cuda::store(to + first + e, one);
    }
  }

  // Numbers of one or two bytes, packed into words.
  template <class T>
  struct alignas(sizeof(T) * kWidth) Packed {
    T at[kWidth];
  };
  template <class T>
  __device__ Packed<T> load_packed(const T* from) const {
    if (whole) return *reinterpret_cast<const Packed<T>*>(from + first);
    Packed<T> packed{};
#pragma unroll
    for (int e = 0; e < kWidth; ++e)
      if (inside(e)) packed.at[e] = from[first + e];
    return packed;
  }
  template <class T>
  __device__ void store_packed(T* to, const Packed<T>& packed) const {
    if (whole) {
      *reinterpret_cast<Packed<T>*>(to + first) = packed;
      return;
    }
#pragma unroll
    for (int e = 0; e < kWidth; ++e)
      if (inside(e)) to[first + e] = packed.at[e];
  }
};

// How moments lie in memory: what a block of threads has in shared memory for it, and a thread's moments as floats,
// there and back. kBlocks: of threads that a multiprocessor has at once.
struct Floats {
  static constexpr int kWidth = 4, kBlocks = 5;
  struct Shared {};
  float *m, *v;

  __device__ static void fill(Shared&) {}
  __device__ void load(const Part<kWidth>& part, const Shared&, std::int64_t, float (&m_out)[kWidth],
                       float (&v_out)[kWidth]) const {
    part.load(m, m_out);
    part.load(v, v_out);
  }
  __device__ void store(const Part<kWidth>& part, const Shared&, std::int64_t, const StepState&,
                        const float (&m_in)[kWidth], const float (&v_in)[kWidth]) const {
    part.store(m, m_in);
    part.store(v, v_in);
  }
};

// A thread has the elements whose bits come from one draw.
struct RandomBf16 {
  static constexpr int kWidth = kRoundedAtOnce, kBlocks = 5;
  struct Shared {};
  std::uint16_t *m, *v;

  __device__ static void fill(Shared&) {}
  __device__ void load(const Part<kWidth>& part, const Shared&, std::int64_t, float (&m_out)[kWidth],
                       float (&v_out)[kWidth]) const {
    const auto ms = part.load_packed(m), vs = part.load_packed(v);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      m_out[e] = f32_from_bf16(ms.at[e]);
      v_out[e] = f32_from_bf16(vs.at[e]);
    }
  }
  __device__ void store(const Part<kWidth>& part, const Shared&, std::int64_t begin, const StepState& state,
                        const float (&m_in)[kWidth], const float (&v_in)[kWidth]) const {
    const Random random(state.seed, kMomentStreams + state.step);
    const auto words = random.words(static_cast<std::uint64_t>((begin + part.first) / kRoundedAtOnce));
    Part<kWidth>::Packed<std::uint16_t> ms, vs;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      ms.at[e] = bf16_at_random(m_in[e], first_bits(words[e]));
      vs.at[e] = bf16_at_random(v_in[e], second_bits(words[e]));
    }
    part.store_packed(m, ms);
    part.store_packed(v, vs);
  }
};

__device__ constexpr DynamicMap kMaps[2] = {dynamic_map(true), dynamic_map(false)};

// A warp has the elements of one block, of which it finds the largest. Products by the inverse of a scale are kept from
// being contracted, so that codes are the CPU's.
struct Codes {
  static constexpr int kWidth = static_cast<int>(kCutBlock) / kWarp, kBlocks = 3;
  // Words, as a constructor has no place in shared memory.
  struct Shared {
    std::uint32_t words[sizeof kMaps / 4];
    __device__ const DynamicMap& map(int i) const { return reinterpret_cast<const DynamicMap*>(words)[i]; }
  };
  std::uint8_t *m, *v;
  float *m_scales, *v_scales;

  __device__ static void fill(Shared& shared) {
    const auto* const from = reinterpret_cast<const std::uint32_t*>(kMaps);
    for (unsigned i = threadIdx.x; i < sizeof kMaps / 4; i += kThreads) shared.words[i] = from[i];
    __syncthreads();
  }
  __device__ static bool any_inside(const Part<kWidth>& part) {  // of the warp's
    const std::int64_t begin = part.first - static_cast<std::int64_t>(threadIdx.x % kWarp) * kWidth;
    return begin < part.n;
  }
  __device__ static std::int64_t block_of(const Part<kWidth>& part, std::int64_t begin) {
    return (begin + part.first) / kCutBlock - begin / kCutBlock;
  }

  __device__ void load(const Part<kWidth>& part, const Shared& shared, std::int64_t begin, float (&m_out)[kWidth],
                       float (&v_out)[kWidth]) const {
    const bool any = any_inside(part);
    const std::int64_t block = block_of(part, begin);
    const float m_scale = any ? m_scales[block] : 0.0f, v_scale = any ? v_scales[block] : 0.0f;
    const auto ms = part.load_packed(m), vs = part.load_packed(v);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      m_out[e] = part.inside(e) ? shared.map(0).values[ms.at[e]] * m_scale : 0.0f;
      v_out[e] = part.inside(e) ? shared.map(1).values[vs.at[e]] * v_scale : 0.0f;
    }
  }
  __device__ void store(const Part<kWidth>& part, const Shared& shared, std::int64_t begin, const StepState&,
                        const float (&m_in)[kWidth], const float (&v_in)[kWidth]) const {
    float m_most = 0, v_most = 0;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      m_most = fmaxf(m_most, part.inside(e) ? fabsf(m_in[e]) : 0.0f);
      v_most = fmaxf(v_most, part.inside(e) ? fabsf(v_in[e]) : 0.0f);
    }
    const float m_scale = scale_of_block(warp_max(m_most)), v_scale = scale_of_block(warp_max(v_most));
    const float m_inverse = inverse_of(m_scale), v_inverse = inverse_of(v_scale);
    Part<kWidth>::Packed<std::uint8_t> ms, vs;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      ms.at[e] = signed_code(__fmul_rn(m_in[e], m_inverse), shared.map(0));
      vs.at[e] = unsigned_code(above_zero(__fmul_rn(v_in[e], v_inverse), v_in[e]), shared.map(1));
    }
    part.store_packed(m, ms);
    part.store_packed(v, vs);
    if (threadIdx.x % kWarp != 0 || !any_inside(part)) return;
    m_scales[block_of(part, begin)] = m_scale;
    v_scales[block_of(part, begin)] = v_scale;
  }
};

// Threads count from the block of the flat layout on that the arrays begin in: the first of them may have nothing.
template <class Moments>
__global__ void __launch_bounds__(kThreads, Moments::kBlocks)
    adamw(const Arrays a, const Moments moments, bool vectors, std::int64_t begin, std::int64_t n, AdamWSettings s,
          const StepState* step_state, const UpdateResult* result) {
  constexpr int kWidth = Moments::kWidth;
  __shared__ typename Moments::Shared shared;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x,
                     first = thread * kWidth - begin % kCutBlock;
  const Part<kWidth> part{first, vectors && first >= 0 && first + kWidth <= n, n};
  float p[kWidth], gradient[kWidth], m[kWidth], v[kWidth];
  part.load(a.parameters, p);
  if (result->finite != 1.0f) {  // working copies are written whatever happened
    if (a.working) part.store(a.working, p);
    return;
  }
  const StepState state = *step_state;
  const float scale = result->grad_scale;
  part.load(a.gradients, gradient);
  Moments::fill(shared);
  moments.load(part, shared, begin, m, v);
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    const float g = scale * gradient[e];
    m[e] = s.beta1 * m[e] + (1.0f - s.beta1) * g;
    v[e] = s.beta2 * v[e] + (1.0f - s.beta2) * (g * g);
    const float step = (m[e] / state.correction1) / (sqrtf(v[e] / state.correction2) + s.eps);
    p[e] = p[e] - state.lr * (s.weight_decay * state.weight_decay_share) * p[e] - state.lr * step;
  }
  part.store(a.parameters, p);
  moments.store(part, shared, begin, state, m, v);
  if (a.working) part.store(a.working, p);
}

template <int N, class T>
__device__ void copy(const float* from, T* to) {
  const auto x = load<N>(from);
  store<N>(to, x.at);
}

template <int kWidth, class T>
__global__ void __launch_bounds__(kThreads) refresh(const float* parameters, T* working, std::int64_t n) {
  const Share<kWidth> share = share_of_thread<kWidth>(n);
  if (!share.inside) return;
  if (share.whole) {
    copy<kWidth>(parameters + share.first, working + share.first);
  } else {
    copy<1>(parameters + share.first, working + share.first);
  }
}

bf16* working_copy(const Tensor& working) {
  REDLINE_CHECK(!working.present() || working.dtype == DType::bf16, "working copies are bf16, not {}",
                name_of(working.dtype));
  return working.as<bf16>();
}

template <int N>
__device__ void add(const float* parameters, float* average, float share) {
  const auto p = load<N>(parameters);
  float out[N];
  if (share == 1.0f) {
#pragma unroll
    for (int e = 0; e < N; ++e) out[e] = p[e];
  } else {
    const auto a = load<N>(average);
#pragma unroll
    for (int e = 0; e < N; ++e) out[e] = a[e] + share * (p[e] - a[e]);
  }
  store(average, out);
}

template <int kWidth>
__global__ void __launch_bounds__(kShareThreads) average(const float* parameters, float* average, std::int64_t n,
                                                         const StepState* state, const UpdateResult* result) {
  const Share<kWidth> share = share_of_thread<kWidth>(n);
  if (!share.inside || result->finite != 1.0f) return;
  if (share.whole)
    add<kWidth>(parameters + share.first, average + share.first, state->average);
  else
    add<1>(parameters + share.first, average + share.first, state->average);
}

template <int N>
__device__ void swap(float* a, float* b) {
  const auto x = load<N>(a), y = load<N>(b);
  store<N>(a, y);
  store<N>(b, x);
}

template <int kWidth>
__global__ void __launch_bounds__(kShareThreads) exchange(float* a, float* b, std::int64_t n) {
  const Share<kWidth> share = share_of_thread<kWidth>(n);
  if (!share.inside) return;
  if (share.whole)
    swap<kWidth>(a + share.first, b + share.first);
  else
    swap<1>(a + share.first, b + share.first);
}

}  // namespace

void run(const AdamW<Tensor>& op, const device::cuda::Launch& launch) {
  const std::int64_t n = op.parameters.elements();
  const Arrays arrays{op.parameters.f32(), op.gradients.f32(), working_copy(op.working)};
  const auto update = [&]<class Moments>(const Moments& moments) {
    constexpr int kWidth = Moments::kWidth;
    const bool vectors =
        op.begin % kWidth == 0 && in_vectors(16, {op.parameters, op.gradients, op.moment1, op.moment2, op.working});
    const std::int64_t threads = (op.begin % kCutBlock + n + kWidth - 1) / kWidth;
    adamw<<<blocks_for(threads, kThreads), kThreads, 0, launch.stream>>>(
        arrays, moments, vectors, op.begin, n, op.settings, op.state.as<StepState>(), op.result.as<UpdateResult>());
  };
  switch (op.moment1.dtype) {
    case DType::f32: update(Floats{op.moment1.f32(), op.moment2.f32()}); break;
    case DType::bf16: update(RandomBf16{op.moment1.as<std::uint16_t>(), op.moment2.as<std::uint16_t>()}); break;
    case DType::u8:
      update(Codes{op.moment1.as<std::uint8_t>(), op.moment2.as<std::uint8_t>(), op.scales1.f32(), op.scales2.f32()});
      break;
    default: REDLINE_CHECK(false, "moments are f32, bf16 or u8, not {}", name_of(op.moment1.dtype));
  }
  REDLINE_LAUNCHED();
}

void run(const Refresh<Tensor>& op, const device::cuda::Launch& launch) {
  const std::int64_t n = op.parameters.elements();
  const auto copy_to = [&]<class T>(T* working) {
    const bool vectors = in_vectors(8, {op.parameters, op.working});
    const auto kernel = vectors ? refresh<8, T> : refresh<1, T>;
    kernel<<<share_blocks(n, vectors ? 8 : 1), kThreads, 0, launch.stream>>>(op.parameters.f32(), working, n);
    REDLINE_LAUNCHED();
  };
  if (op.working.dtype == DType::f32)
    copy_to(op.working.f32());
  else
    copy_to(working_copy(op.working));
}

void run(const Average<Tensor>& op, const device::cuda::Launch& launch) {
  const std::int64_t n = op.average.elements();
  const bool vectors = in_vectors(4, {op.parameters, op.average});
  const auto kernel = vectors ? average<4> : average<1>;
  kernel<<<share_blocks(n, vectors ? 4 : 1), kShareThreads, 0, launch.stream>>>(
      op.parameters.f32(), op.average.f32(), n, op.state.as<StepState>(), op.result.as<UpdateResult>());
  REDLINE_LAUNCHED();
}

void run(const Exchange<Tensor>& op, const device::cuda::Launch& launch) {
  const std::int64_t n = op.average.elements();
  const bool vectors = in_vectors(4, {op.parameters, op.average});
  const auto kernel = vectors ? exchange<4> : exchange<1>;
  kernel<<<share_blocks(n, vectors ? 4 : 1), kShareThreads, 0, launch.stream>>>(op.parameters.f32(), op.average.f32(),
                                                                                n);
  REDLINE_LAUNCHED();
}

}  // namespace redline::optim::cuda
