// Times large bf16 products on a card, and says which libraries compute there.
#include "perf/peak.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/random.h"
#include "device/cuda/device.h"
#include "device/cuda/handles.h"
#include "ops/cuda/attention_backends.h"
#include "ops/cuda/cublaslt.h"
#include "ops/cuda/gemm.h"

namespace redline::perf {
namespace {

constexpr std::int64_t kExtent = 8192;  // 1.1 TFLOP a product
constexpr int kRuns = 20;

// Zeros would run faster than anything that is trained.
std::vector<std::uint16_t> random_bf16(std::uint64_t stream) {
  const Random random(0, stream);
  std::vector<std::uint16_t> m(static_cast<std::size_t>(kExtent * kExtent));
  for (std::size_t i = 0; i < m.size(); i += 2) {
    const std::uint64_t bits = random.bits(i);
    for (std::size_t j : {0, 1}) {
      const float value = static_cast<float>(bits >> (32 * j) & 0xFFFF) * 0x1p-16f - 0.5f;
      m[i + j] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
    }
  }
  return m;
}

}  // namespace

Peak measure_cuda_peak(device::Device& device) {
  const device::cuda::Launch& launch = static_cast<device::CudaDevice&>(device).launch();
  std::unique_ptr<device::Buffer> operands[3];
  for (std::uint64_t i = 0; i < 3; ++i) {
    const std::vector<std::uint16_t> values = random_bf16(i);
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof values[0]);
    operands[i] = device.allocate(bytes);
    device.copy_in(operands[i]->data(), values.data(), bytes);
  }
  ops::cuda::Gemm product;  // y = x * weight^T, as every linear of a model
  product.transpose_b = true;
  product.m = product.n = product.k = kExtent;
  product.a = operands[0]->data(), product.b = operands[1]->data(), product.c = operands[2]->data();
  product.lda = product.ldb = product.ldc = kExtent;

  const device::cuda::Stopwatch watch(launch.stream);
  double best = INFINITY;
  for (int run = 0; run < kRuns; ++run) {
    watch.start();
    ops::cuda::gemm(product, launch);
    const double seconds = watch.stop();
    if (run > 0) best = std::min(best, seconds);  // the first one makes the plan
  }
  const double flops = 2.0 * static_cast<double>(kExtent * kExtent * kExtent);
  return {flops / best, fmt::format("measured: bf16 product of {0} x {0} x {0}", kExtent)};
}

double measure_cuda_copy_rate(device::Device& device) {
  const device::cuda::Launch& launch = static_cast<device::CudaDevice&>(device).launch();
  constexpr std::int64_t kBytes = std::int64_t{1} << 30;
  const auto from = device.allocate(kBytes), to = device.allocate(kBytes);
  const std::vector<std::uint16_t> values = random_bf16(0);
  const auto piece = static_cast<std::int64_t>(values.size() * sizeof values[0]);
  for (std::int64_t at = 0; at < kBytes; at += piece)
    device.copy_in(from->data() + at, values.data(), std::min(piece, kBytes - at));
  const device::cuda::Stopwatch watch(launch.stream);
  double best = INFINITY;
  for (int run = 0; run < kRuns; ++run) {
    watch.start();
    REDLINE_CUDA(cudaMemcpyAsync(to->data(), from->data(), kBytes, cudaMemcpyDeviceToDevice, launch.stream));
    best = std::min(best, watch.stop());
  }
  return 2.0 * static_cast<double>(kBytes) / best;
}

CardLibraries card_libraries() {
  CardLibraries found{"", ops::cuda::cudnn_version(), "", ops::cuda::cudnn_problem()};
  try {
    const std::size_t version = ops::cuda::lt::cublasLtGetVersion();  // 130100 is 13.1.0
    found.cublaslt = fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  } catch (const MachineError& missing) {
    found.cublaslt_problem = missing.what();
  }
  return found;
}

}  // namespace redline::perf
