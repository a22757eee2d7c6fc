// Gated linear units, a row of gate_up is [gate | up]:  y = gate * s * up,  s = sigmoid(u) = 1 / (1 + exp(-u)), where u
// is the gate for SwiGLU and a polynomial of it for GeGLU (ops/swiglu.h).
// Gradient:  dup = dy * gate * s;  dgate = dy * up * s * (1 + gate * (1 - s) * du/dgate).
// One thread has one vector of y: the vectors of gate and up under it. It reads both before it writes either, so the
// gradient may be in place. Where results are cast to eight bits a block has a tile of y, a thread four vectors in rows
// that follow each other, all of which it reads first (fp8_casts.cuh).
#include "device/cuda/vectors.cuh"
#include "ops/cuda/fp8_casts.cuh"
#include "ops/cuda/kernels.h"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

// Where exp overflows the quotient is 0, as it should be.
__device__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// The argument of the sigmoid, and how it changes with the gate.
constexpr float kGelu = 1.5957691216f, kCube = 0.044715f;  // 2 sqrt(2 / pi)
template <Gate kGate>
__device__ float argument(float gate) {
  return kGate == Gate::silu ? gate : kGelu * gate * fmaf(kCube * gate, gate, 1.0f);
}
template <Gate kGate>
__device__ float argument_slope(float gate) {
  return kGelu * fmaf(3 * kCube * gate, gate, 1.0f);
}

// Kernels with casts and without share these: their results agree to the bit.
template <Gate kGate, class T, int kWidth>
__device__ Vector<T, kWidth> activated(const Vector<T, kWidth>& gate, const Vector<T, kWidth>& up) {
  float out[kWidth];
#pragma unroll
  for (int e = 0; e < kWidth; ++e) out[e] = gate[e] * up[e] * sigmoid(argument<kGate>(gate[e]));
  return Vector<T, kWidth>::from(out);
}

template <class T, int kWidth>
struct Slopes {
  Vector<T, kWidth> gate, up;
};
template <Gate kGate, class T, int kWidth>
__device__ Slopes<T, kWidth> slopes(const Vector<T, kWidth>& gate, const Vector<T, kWidth>& up,
                                    const Vector<T, kWidth>& slope) {
  float dgate[kWidth], dup[kWidth];
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    const float g = gate[e], s = sigmoid(argument<kGate>(g)),
                rest = kGate == Gate::silu ? 1.0f - s : (1.0f - s) * argument_slope<kGate>(g);
    dup[e] = slope[e] * g * s;
    dgate[e] = slope[e] * up[e] * s * fmaf(g, rest, 1.0f);
  }
  return {Vector<T, kWidth>::from(dgate), Vector<T, kWidth>::from(dup)};
}

template <Gate kGate, class T, int kWidth>
__global__ void __launch_bounds__(kPlaceThreads) swiglu(const T* gate_up, T* y, std::int64_t n, std::int32_t f) {
  const Place at = place_of_thread<kWidth>(n, f);
  if (!at.inside) return;
  const T* from = gate_up + at.row * 2 * f + at.column;
  store<kWidth>(y + at.row * f + at.column, activated<kGate>(load<kWidth>(from), load<kWidth>(from + f)));
}

template <Gate kGate, class T, int kWidth>
__global__ void __launch_bounds__(kPlaceThreads)
    swiglu_grad(const T* gate_up, const T* dy, T* dgate_up, std::int64_t n, std::int32_t f) {
  const Place at = place_of_thread<kWidth>(n, f);
  if (!at.inside) return;
  const T* from = gate_up + at.row * 2 * f + at.column;
  const auto slope = load<kWidth>(dy + at.row * f + at.column);
  const auto out = slopes<kGate>(load<kWidth>(from), load<kWidth>(from + f), slope);
  T* to = dgate_up + at.row * 2 * f + at.column;
  store<kWidth>(to, out.gate);
  store<kWidth>(to + f, out.up);
}

// One vector of the result, in whatever forms it is wanted; returns its bytes.
template <bool kE5m2>
__device__ uint2 cast_and_store(const Vector<bf16, 8>& x, bool inside, std::int64_t at, bf16* as_it_is,
                                const CastTo& to, float scale, LargestBits& largest) {
  largest.add(x);
  const uint2 bytes = cast_8<kE5m2>(x, scale);
  if (inside && as_it_is) store<8>(as_it_is + at, x);
  if (inside && to.rows) *reinterpret_cast<uint2*>(to.rows + at) = bytes;
  return bytes;
}

// Four blocks a multiprocessor have 128 KiB of loads under way.
template <Gate kGate, bool kE5m2>
__global__ void __launch_bounds__(TileThread::kThreads, 4)
    swiglu_cast(const bf16* gate_up, bf16* y, const CastTo to, std::int64_t n, std::int32_t f) {
  __shared__ TurnedTile<TileThread::kRows> tile;
  __shared__ std::uint32_t largest_of_warps[kMaxWarps];
  const TileThread own;
  const std::int64_t first_row = std::int64_t{blockIdx.y} * TileThread::kRows, row = first_row + own.row;
  const auto first_column = static_cast<std::int32_t>(blockIdx.x * kTileColumns), column = first_column + own.column;
  const auto inside = [&](int r) { return row + r < n && column < f; };
  const float scale = to.scale->scale;
  LargestBits largest;
  Vector<bf16, 8> gate[4], up[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const bf16* from = gate_up + (row + r) * 2 * f + column;
    gate[r] = inside(r) ? load_once<8>(from) : Vector<bf16, 8>{};
    up[r] = inside(r) ? load_once<8>(from + f) : Vector<bf16, 8>{};
  }
  uint2 bytes[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    bytes[r] = cast_and_store<kE5m2>(activated<kGate>(gate[r], up[r]), inside(r), (row + r) * f + column, y, to, scale,
                                     largest);
  }
  if (to.columns) tile.put(own.row, own.column, bytes);
  if (to.amax) largest.put(largest_of_warps, static_cast<int>(threadIdx.x));
  __syncthreads();
  if (to.amax && threadIdx.x == 0) LargestBits::record(largest_of_warps, TileThread::kThreads / kWarp, to.amax);
  if (!to.columns) return;
  tile.store(to, first_row, first_column, n, f, f, static_cast<int>(threadIdx.x), TileThread::kThreads);
}

template <Gate kGate, bool kE5m2>
__global__ void __launch_bounds__(TileThread::kThreads, 3)
    swiglu_grad_cast(const bf16* gate_up, const bf16* dy, bf16* dgate_up, const CastTo to, std::int64_t n,
                     std::int32_t f) {
  __shared__ TurnedTile<TileThread::kRows> gate_tile, up_tile;
  __shared__ std::uint32_t largest_of_warps[kMaxWarps];
  const TileThread own;
  const std::int64_t first_row = std::int64_t{blockIdx.y} * TileThread::kRows, row = first_row + own.row;
  const auto first_column = static_cast<std::int32_t>(blockIdx.x * kTileColumns), column = first_column + own.column;
  const auto inside = [&](int r) { return row + r < n && column < f; };
  const float scale = to.scale->scale;
  LargestBits largest;
  Vector<bf16, 8> gate[4], up[4], slope[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const bf16* from = gate_up + (row + r) * 2 * f + column;
    gate[r] = inside(r) ? load_once<8>(from) : Vector<bf16, 8>{};
    up[r] = inside(r) ? load_once<8>(from + f) : Vector<bf16, 8>{};
    slope[r] = inside(r) ? load_once<8>(dy + (row + r) * f + column) : Vector<bf16, 8>{};
  }
  uint2 gate_bytes[4], up_bytes[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const auto out = slopes<kGate>(gate[r], up[r], slope[r]);
    const std::int64_t at = (row + r) * 2 * f + column;
    gate_bytes[r] = cast_and_store<kE5m2>(out.gate, inside(r), at, dgate_up, to, scale, largest);
    up_bytes[r] = cast_and_store<kE5m2>(out.up, inside(r), at + f, dgate_up, to, scale, largest);
  }
  if (to.columns) {
    gate_tile.put(own.row, own.column, gate_bytes);
    up_tile.put(own.row, own.column, up_bytes);
  }
  if (to.amax) largest.put(largest_of_warps, static_cast<int>(threadIdx.x));
  __syncthreads();
  if (to.amax && threadIdx.x == 0) LargestBits::record(largest_of_warps, TileThread::kThreads / kWarp, to.amax);
  if (!to.columns) return;
  const int thread = static_cast<int>(threadIdx.x);
  gate_tile.store(to, first_row, first_column, n, 2 * f, f, thread, TileThread::kThreads);
  up_tile.store(to, first_row, f + first_column, n, 2 * f, 2 * f, thread, TileThread::kThreads);
}

// The blocks of tiles of y [n, f], whose operands the casting kernels can take.
dim3 cast_blocks(std::int64_t n, std::int64_t f, const CastTo& to, std::initializer_list<Tensor> operands) {
  REDLINE_CHECK((n % 16 == 0 || !to.columns) && f % 16 == 0,
                "{} x {} are not multiples of 16: no product takes them in eight bits", n, f);
  for (const Tensor& t : operands)
    REDLINE_CHECK(!t.present() || (t.dtype == DType::bf16 && in_vectors(f, {t})), "no cast of {}", name_of(t.dtype));
  const dim3 blocks(blocks_for(f, kTileColumns), blocks_for(n, TileThread::kRows));
  REDLINE_CHECK(blocks.y < 65536, "{} rows are too many", n);
  return blocks;
}

template <Gate kGate>
void forward(const SwiGlu<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.gate_up.rows(), f = op.gate_up.columns() / 2;
  const auto f32 = static_cast<std::int32_t>(f);
  if (op.fp8.present()) {
    const CastTo to = cast_to(op.fp8, Columns::any);
    const dim3 blocks = cast_blocks(n, f, to, {op.gate_up, op.y});
    const auto kernel = to.e5m2 ? swiglu_cast<kGate, true> : swiglu_cast<kGate, false>;
    kernel<<<blocks, TileThread::kThreads, 0, launch.stream>>>(op.gate_up.as<bf16>(), op.y.as<bf16>(), to, n, f32);
  } else {
    for_type_and_width(op.y.dtype, in_vectors(f, {op.gate_up, op.y}), [&]<class T, int kWidth>() {
      swiglu<kGate, T, kWidth>
          <<<place_blocks(n, f, kWidth), kPlaceThreads, 0, launch.stream>>>(op.gate_up.as<T>(), op.y.as<T>(), n, f32);
    });
  }
  REDLINE_LAUNCHED();
}

template <Gate kGate>
void backward(const SwiGluGrad<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.dy.rows(), f = op.dy.columns();
  const auto f32 = static_cast<std::int32_t>(f);
  if (op.fp8.present()) {
    const CastTo to = cast_to(op.fp8, Columns::any);
    const dim3 blocks = cast_blocks(n, f, to, {op.gate_up, op.dy, op.dgate_up});
    const auto kernel = to.e5m2 ? swiglu_grad_cast<kGate, true> : swiglu_grad_cast<kGate, false>;
    kernel<<<blocks, TileThread::kThreads, 0, launch.stream>>>(op.gate_up.as<bf16>(), op.dy.as<bf16>(),
                                                               op.dgate_up.as<bf16>(), to, n, f32);
  } else {
    for_type_and_width(op.dy.dtype, in_vectors(f, {op.gate_up, op.dy, op.dgate_up}), [&]<class T, int kWidth>() {
      swiglu_grad<kGate, T, kWidth><<<place_blocks(n, f, kWidth), kPlaceThreads, 0, launch.stream>>>(
          op.gate_up.as<T>(), op.dy.as<T>(), op.dgate_up.as<T>(), n, f32);
    });
  }
  REDLINE_LAUNCHED();
}

}  // namespace

void run(const SwiGlu<Tensor>& op, const Launch& launch) {
  op.gate == Gate::silu ? forward<Gate::silu>(op, launch) : forward<Gate::gelu_tanh>(op, launch);
}
void run(const SwiGluGrad<Tensor>& op, const Launch& launch) {
  op.gate == Gate::silu ? backward<Gate::silu>(op, launch) : backward<Gate::gelu_tanh>(op, launch);
}

}  // namespace redline::ops::cuda
