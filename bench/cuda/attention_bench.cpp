// Times attention on the GPU and prints TFLOP/s of the pairs that the mask keeps: 4 heads head_dim a pair forward, 2.5
// times that backward (the five products; what a kernel computes twice counts once). Columns: rows, tokens a row,
// heads, key/value heads, head_dim, mean length of the packed documents (0: each row is one document), window (0:
// none). `auto` is what training takes: a backend is asked whether it can, and of those that can the fastest is taken.
//   cuda_attention_bench --benchmark_filter='auto.*/65536/'     what a window of 4,096 costs beside a whole row
//   cuda_attention_bench --benchmark_filter='/256/'             heads of 256
#include <benchmark/benchmark.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <vector>

#include "base/random.h"
#include "device/cuda/device.h"
#include "ops/cuda/attention_backends.h"
#include "ops/cuda/kernels.h"

namespace redline {
namespace {

device::CudaDevice& gpu() {
  static device::CudaDevice device;
  return device;
}

struct Documents {
  std::vector<std::int32_t> offsets{0};
  double pairs = 0;

  // Lengths fall off exponentially, up to a row; all tokens belong to some document.
  Documents(std::int64_t rows, std::int64_t row, std::int64_t mean, std::int64_t window) {
    const Random random(1, 7);
    for (std::uint64_t i = 0; offsets.back() < rows * row; ++i) {
      const double drawn = -static_cast<double>(mean) * std::log(1 - random.uniform(i));
      const std::int64_t wanted = mean == 0 ? row : std::clamp(static_cast<std::int64_t>(drawn), std::int64_t{1}, row);
      const std::int64_t length = std::min(wanted, rows * row - offsets.back());
      offsets.push_back(static_cast<std::int32_t>(offsets.back() + length));
      pairs += kept_pairs(static_cast<double>(length), window);
    }
    // Capacity as training has it: 32 documents a row, unused entries repeat the end.
    offsets.resize(std::max(offsets.size(), static_cast<std::size_t>(rows * 32 + 1)), offsets.back());
  }
};

// Arrays on the card, filled with noise: zeros run faster than what is trained on.
class Arrays {
 public:
  Tensor noise(DType dtype, const Shape& shape) {
    const Tensor t = array(dtype, shape);
    std::vector<std::uint16_t> block(1 << 20);
    const Random random(2, buffers_.size());
    for (std::size_t i = 0; i < block.size(); ++i) {
      block[i] =
          static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(random.uniform(i) * 2 - 1)) >> 16);
    }
    for (std::int64_t at = 0; at < t.bytes(); at += 1 << 21) {
      gpu().copy_in(t.as<std::byte>() + at, block.data(), std::min(std::int64_t{1} << 21, t.bytes() - at));
    }
    return t;
  }
  Tensor array(DType dtype, const Shape& shape) {
    Tensor t{nullptr, dtype, shape};
    t.data = buffers_.emplace_back(gpu().allocate(t.bytes()))->data();
    return t;
  }

 private:
  std::vector<std::unique_ptr<device::Buffer>> buffers_;
};

enum Pass { forward, backward };
enum Math { bf16, tf32, fp32 };

void attention(benchmark::State& state, std::string_view backend, Pass pass, Math math = bf16) {
  if (device::cuda_status().cards.empty()) return state.SkipWithError("no GPU");
  const ops::HeadLayout layout{.heads = state.range(2), .kv_heads = state.range(3), .head_dim = state.range(4)};
  const std::int64_t window = state.range(6);
  const Documents documents(state.range(0), state.range(1), state.range(5), window);
  const std::int64_t n = state.range(0) * state.range(1), out_width = layout.heads * layout.head_dim;
  Arrays arrays;
  const Tensor offsets = arrays.array(DType::i32, {static_cast<std::int64_t>(documents.offsets.size())});
  gpu().copy_in(offsets.data, documents.offsets.data(), offsets.bytes());
  const DType dtype = math == bf16 ? DType::bf16 : DType::f32;
  const Tensor qkv = arrays.noise(dtype, {n, layout.qkv_width()}), dqkv = arrays.array(dtype, qkv.shape);
  const Tensor dout = arrays.noise(dtype, {n, out_width}), out = arrays.array(dtype, dout.shape);
  const Tensor lse = arrays.array(DType::f32, {layout.heads, n}), delta = arrays.array(DType::f32, lse.shape);
  const float scale = 1 / std::sqrt(static_cast<float>(layout.head_dim));
  const std::int64_t longest = state.range(1), capacity = offsets.elements() - 1;
  const Tensor workspace = arrays.array(DType::u8, {ops::library_workspace_bytes(capacity)});
  const Tensor grad_workspace = arrays.array(DType::u8, {ops::library_grad_workspace_bytes(layout, n, capacity)});
  const Tensor tiles = arrays.array(DType::u8, {ops::tile_bytes(n, capacity)});
  const ops::AttentionHow how{.by = ops::attention_by(backend),
                              .math = math == tf32 ? ops::Math::tf32 : ops::Math::full,
                              .documents = state.range(5) == 0 ? ops::Documents::full_rows : ops::Documents::packed};
  const ops::Attention<Tensor> op{qkv, offsets, out, lse, layout, scale, longest, tiles, workspace, how, window};
  const ops::AttentionGrad<Tensor> grad{qkv,    offsets, out,     lse,   dout, dqkv,  delta, grad_workspace,
                                        layout, scale,   longest, tiles, how,  window};

  const device::cuda::Launch& launch = gpu().launch();
  const bool named = how.by != ops::AttentionBy::automatic;
  try {
    if (named) ops::cuda::find_attention(ops::cuda::case_of(grad, launch), how.by);
  } catch (const UserError& e) {
    return state.SkipWithError(e.what());
  }
  const device::cuda::Event begin = device::cuda::make_event(), end = device::cuda::make_event();
  ops::cuda::run(ops::DocumentTiles<Tensor>{offsets, tiles, n}, launch);
  ops::cuda::run(op, launch);  // backward reads what it leaves
  if (pass == backward) ops::cuda::run(grad, launch);
  gpu().wait();
  for (auto _ : state) {
    REDLINE_CUDA(cudaEventRecord(begin.get(), launch.stream));
    pass == forward ? ops::cuda::run(op, launch) : ops::cuda::run(grad, launch);
    REDLINE_CUDA(cudaEventRecord(end.get(), launch.stream));
    REDLINE_CUDA(cudaEventSynchronize(end.get()));
    float milliseconds = 0;
    REDLINE_CUDA(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
    state.SetIterationTime(static_cast<double>(milliseconds) * 1e-3);
  }
  const double flops = documents.pairs * ops::flops_per_pair(op) * (pass == forward ? 1 : 2.5);
  state.counters["TFLOP/s"] = benchmark::Counter(flops * 1e-12, benchmark::Counter::kIsIterationInvariantRate);
}

void timed(benchmark::internal::Benchmark* b) { b->UseManualTime()->Unit(benchmark::kMillisecond)->MinTime(0.2); }

void shapes(benchmark::internal::Benchmark* b) {
  timed(b);
  b->Args({16, 2048, 16, 16, 128, 0, 0})
      ->Args({16, 2048, 18, 18, 128, 0, 0})
      ->Args({16, 2048, 16, 8, 128, 0, 0})
      ->Args({4, 8192, 32, 8, 128, 0, 0})
      ->Args({64, 1024, 10, 10, 64, 0, 0})
      ->Args({64, 1024, 10, 10, 64, 193, 0})
      ->Args({16, 2048, 16, 16, 128, 449, 0})
      ->Args({16, 2048, 16, 16, 128, 189, 0})
      ->Args({128, 1024, 10, 10, 64, 200, 0});
}

// Long rows with a window and without; the shapes of mistral-1.3b and, with heads of 256, of gemma3-1b.
void windows(benchmark::internal::Benchmark* b) {
  timed(b);
  for (const std::int64_t window : {0, 4096}) {
    b->Args({1, 65536, 16, 8, 128, 0, window});
    b->Args({6, 8192, 16, 4, 128, 0, window});
  }
  for (const std::int64_t window : {0, 512})
    for (const std::int64_t mean : {0, 1000}) b->Args({8, 4096, 4, 1, 256, mean, window});
}
BENCHMARK_CAPTURE(attention, auto_forward, "auto", forward)->Apply(windows);
BENCHMARK_CAPTURE(attention, auto_backward, "auto", backward)->Apply(windows);
BENCHMARK_CAPTURE(attention, cudnn_windows_forward, "cudnn", forward)->Apply(windows);
BENCHMARK_CAPTURE(attention, cudnn_windows_backward, "cudnn", backward)->Apply(windows);
BENCHMARK_CAPTURE(attention, hopper_windows_forward, "hopper", forward)->Apply(windows);
BENCHMARK_CAPTURE(attention, hopper_windows_backward, "hopper", backward)->Apply(windows);
BENCHMARK_CAPTURE(attention, hopper_forward, "hopper", forward)->Apply(shapes);
BENCHMARK_CAPTURE(attention, hopper_backward, "hopper", backward)->Apply(shapes);
BENCHMARK_CAPTURE(attention, flash_forward, "flash", forward)->Apply(shapes);
BENCHMARK_CAPTURE(attention, flash_backward, "flash", backward)->Apply(shapes);
BENCHMARK_CAPTURE(attention, flash_tf32_forward, "flash", forward, tf32)->Apply(shapes);
BENCHMARK_CAPTURE(attention, flash_tf32_backward, "flash", backward, tf32)->Apply(shapes);
BENCHMARK_CAPTURE(attention, flash_fp32_forward, "flash", forward, fp32)->Apply(shapes);
BENCHMARK_CAPTURE(attention, flash_fp32_backward, "flash", backward, fp32)->Apply(shapes);
BENCHMARK_CAPTURE(attention, cudnn_forward, "cudnn", forward)->Apply(shapes);
BENCHMARK_CAPTURE(attention, cudnn_backward, "cudnn", backward)->Apply(shapes);

}  // namespace
}  // namespace redline
