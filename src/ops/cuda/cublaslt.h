// cuBLASLt: its functions, the description of a product for it, and the algorithms that can compute the product.
#pragma once

#include <cublasLt.h>

#include <atomic>
#include <compare>
#include <string>
#include <vector>

#include "device/cuda/handles.h"
#include "ops/cuda/gemm.h"

// A failed call is a MachineError with the call, file and line.
#define REDLINE_CUBLAS(call)                                                                      \
  do {                                                                                            \
    const cublasStatus_t redline_status = (call);                                                 \
    if (redline_status != CUBLAS_STATUS_SUCCESS)                                                  \
      ::redline::fail_machine("{}:{}: {}: {}", __FILE__, __LINE__, #call,                         \
                              ::redline::ops::cuda::lt::cublasLtGetStatusString(redline_status)); \
  } while (false)

namespace redline::ops::cuda {
namespace lt {

// The functions that redline calls, each found in the library when it is first called, which loads the library. Linked
// against, it would be loaded by every start of the program: 410,000 places in its 600 MB hold addresses that the
// loader writes, which took 75 of the 83 ms of CPU of `redline --version`. A machine without the library runs all but
// products on a card. They are called as the library calls them: lt::cublasLtMatmul(...). A MachineError where the
// library or the function is not there.
void* find(const char* name);

template <class Function>
class Call;
template <class Result, class... Arguments>
class Call<Result(Arguments...)> {
 public:
  explicit constexpr Call(const char* name) : name_(name) {}
  Result operator()(Arguments... arguments) {
    auto* function = function_.load(std::memory_order_relaxed);
    if (!function) function_ = function = reinterpret_cast<Result (*)(Arguments...)>(find(name_));
    return function(arguments...);
  }

 private:
  const char* name_;
  std::atomic<Result (*)(Arguments...)> function_ = nullptr;
};

inline Call<decltype(::cublasLtCreate)> cublasLtCreate("cublasLtCreate");
inline Call<decltype(::cublasLtDestroy)> cublasLtDestroy("cublasLtDestroy");
inline Call<decltype(::cublasLtGetStatusString)> cublasLtGetStatusString("cublasLtGetStatusString");
inline Call<decltype(::cublasLtGetVersion)> cublasLtGetVersion("cublasLtGetVersion");
inline Call<decltype(::cublasLtMatmul)> cublasLtMatmul("cublasLtMatmul");
inline Call<decltype(::cublasLtMatmulAlgoCapGetAttribute)> cublasLtMatmulAlgoCapGetAttribute(
    "cublasLtMatmulAlgoCapGetAttribute");
inline Call<decltype(::cublasLtMatmulAlgoCheck)> cublasLtMatmulAlgoCheck("cublasLtMatmulAlgoCheck");
inline Call<decltype(::cublasLtMatmulAlgoConfigGetAttribute)> cublasLtMatmulAlgoConfigGetAttribute(
    "cublasLtMatmulAlgoConfigGetAttribute");
inline Call<decltype(::cublasLtMatmulAlgoConfigSetAttribute)> cublasLtMatmulAlgoConfigSetAttribute(
    "cublasLtMatmulAlgoConfigSetAttribute");
inline Call<decltype(::cublasLtMatmulAlgoGetHeuristic)> cublasLtMatmulAlgoGetHeuristic(
    "cublasLtMatmulAlgoGetHeuristic");
inline Call<decltype(::cublasLtMatmulDescCreate)> cublasLtMatmulDescCreate("cublasLtMatmulDescCreate");
inline Call<decltype(::cublasLtMatmulDescDestroy)> cublasLtMatmulDescDestroy("cublasLtMatmulDescDestroy");
inline Call<decltype(::cublasLtMatmulDescSetAttribute)> cublasLtMatmulDescSetAttribute(
    "cublasLtMatmulDescSetAttribute");
inline Call<decltype(::cublasLtMatmulPreferenceCreate)> cublasLtMatmulPreferenceCreate(
    "cublasLtMatmulPreferenceCreate");
inline Call<decltype(::cublasLtMatmulPreferenceDestroy)> cublasLtMatmulPreferenceDestroy(
    "cublasLtMatmulPreferenceDestroy");
inline Call<decltype(::cublasLtMatmulPreferenceSetAttribute)> cublasLtMatmulPreferenceSetAttribute(
    "cublasLtMatmulPreferenceSetAttribute");
inline Call<decltype(::cublasLtMatrixLayoutCreate)> cublasLtMatrixLayoutCreate("cublasLtMatrixLayoutCreate");
inline Call<decltype(::cublasLtMatrixLayoutDestroy)> cublasLtMatrixLayoutDestroy("cublasLtMatrixLayoutDestroy");
inline Call<decltype(::cublasLtMatrixLayoutSetAttribute)> cublasLtMatrixLayoutSetAttribute(
    "cublasLtMatrixLayoutSetAttribute");

}  // namespace lt

using device::cuda::Launch;

template <auto& kDestroy>
struct LtDestroy {
  template <class T>
  void operator()(T* handle) const {
    kDestroy(handle);
  }
};
using LtHandle = std::unique_ptr<cublasLtContext, LtDestroy<lt::cublasLtDestroy>>;
using LtOperation = std::unique_ptr<cublasLtMatmulDescOpaque_t, LtDestroy<lt::cublasLtMatmulDescDestroy>>;
using LtLayout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, LtDestroy<lt::cublasLtMatrixLayoutDestroy>>;
using LtPreference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, LtDestroy<lt::cublasLtMatmulPreferenceDestroy>>;

LtHandle make_handle();

// Everything about a product that its plan depends on.
struct GemmShape {
  explicit GemmShape(const Gemm& g);

  bool transpose_a, transpose_b;
  std::int64_t m, n, k, lda, ldb, ldc;
  DType input, input_b, output;
  bool accumulate;  // beta is not 0
  bool tf32;        // of fp32 inputs only
  bool fast_sums;   // of fp8 inputs only
  bool bias;
  std::uint32_t align_a, align_b, align_c;  // bytes, at most 256: what cuBLASLt asks for
  std::int64_t workspace;                   // bytes that an algorithm may use
  std::int64_t batch, stride_a, stride_b, stride_c;

  auto operator<=>(const GemmShape&) const = default;
  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(batch);
  }
  // Elements from the first of an operand to its last.
  std::int64_t span_a() const { return (batch - 1) * stride_a + (transpose_a ? k : m) * lda; }
  std::int64_t span_b() const { return (batch - 1) * stride_b + (transpose_b ? n : k) * ldb; }
  std::int64_t span_c() const { return (batch - 1) * stride_c + m * ldc; }
  std::string str() const;
};

// cuBLASLt speaks column-major; a row-major C = A B is its C^T = B^T A^T, so the operands change places.
class GemmPlan {
 public:
  GemmPlan(cublasLtHandle_t handle, const GemmShape& shape);

  // The heuristic's algorithms, best guess first. Empty: the library has none, for example for eight bits on a card
  // without them.
  std::vector<cublasLtMatmulAlgo_t> candidates() const;
  std::vector<cublasLtMatmulAlgo_t> all_candidates() const;  // as many as it has, not the best few
  std::string why_none() const;                              // as a sentence
  // The same algorithm with its other options and orders of tiles, as far as they can compute the product.
  std::vector<cublasLtMatmulAlgo_t> variants(const cublasLtMatmulAlgo_t& algorithm) const;
  // Whether this library takes an algorithm from elsewhere, within the workspace.
  bool accepts(const cublasLtMatmulAlgo_t& algorithm) const;
  void choose(const cublasLtMatmulAlgo_t& algorithm) { algorithm_ = algorithm; }
  const cublasLtMatmulAlgo_t& algorithm() const { return algorithm_; }
  void run(const Gemm& g, const Launch& launch) const;
  // Runs any algorithm. One that cannot do it is no error here.
  struct Operands {
    const void *a, *b;
    void *c, *workspace;
    const float *a_scale = nullptr, *b_scale = nullptr;
    const void* added = nullptr;  // none: c
    float alpha = 1, beta = 1;    // the latter where something is added
    const void* bias = nullptr;
  };
  cublasStatus_t try_run(const cublasLtMatmulAlgo_t& algorithm, const Operands& with, const Launch& launch) const;

  const GemmShape& shape() const { return shape_; }

 private:
  cublasLtHandle_t handle_;
  GemmShape shape_;
  LtOperation operation_;
  LtLayout a_, b_, c_;  // of our A, B and C
  void set_scales(const float* a, const float* b) const;
  void set_bias(const void* bias) const;
  std::vector<cublasLtMatmulAlgo_t> proposals(int most) const;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace redline::ops::cuda
