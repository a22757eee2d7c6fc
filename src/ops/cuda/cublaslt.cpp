// Loads the library by its name, and leads from a product's shape to cuBLASLt's descriptors, preferences and
// candidates.
#include "ops/cuda/cublaslt.h"

#include <dlfcn.h>

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace redline::ops::cuda {
namespace lt {
namespace {

void* library() {
  static void* const handle = [] {
    const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
    void* const opened = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!opened) {
      const char* const error = ::dlerror();
      fail_machine("{} could not be loaded ({}): install it from CUDA {}, or name its folder in LD_LIBRARY_PATH", name,
                   error ? error : "no reason was given", CUBLAS_VER_MAJOR);
    }
    return opened;
  }();
  return handle;
}

}  // namespace

void* find(const char* name) {
  void* const function = ::dlsym(library(), name);
  if (!function) fail_machine("libcublasLt.so.{} has no {}", CUBLAS_VER_MAJOR, name);
  return function;
}

}  // namespace lt

namespace {

constexpr int kCandidates = 16, kAllCandidates = 256;  // the heuristic has some dozens for a product
constexpr std::uint32_t kFullAlignment = 256;

std::uint32_t alignment(const void* p) {
  const auto address = reinterpret_cast<std::uintptr_t>(p) | kFullAlignment;
  return std::uint32_t{1} << std::countr_zero(address);
}

cudaDataType_t data_type(DType t) {
  switch (t) {
    case DType::bf16: return CUDA_R_16BF;
    case DType::e4m3: return CUDA_R_8F_E4M3;
    case DType::e5m2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_32F;
  }
}

// The alignment that all members of a batch have.
std::uint32_t alignment(const void* p, std::int64_t batch, std::int64_t stride, DType type) {
  const std::int64_t step = batch > 1 ? stride * static_cast<std::int64_t>(size_of(type)) : 0;
  return std::min(alignment(p), alignment(reinterpret_cast<const void*>(step)));
}

struct Batch {
  std::int64_t count, stride;
};

// A row-major [rows, columns] is a column-major [columns, rows].
LtLayout layout(DType type, std::int64_t rows, std::int64_t columns, std::int64_t ld, const Batch& batch) {
  cublasLtMatrixLayout_t l = nullptr;
  REDLINE_CUBLAS(lt::cublasLtMatrixLayoutCreate(&l, data_type(type), static_cast<std::uint64_t>(columns),
                                                static_cast<std::uint64_t>(rows), ld));
  LtLayout owned(l);
  if (batch.count > 1) {
    const auto count = static_cast<std::int32_t>(batch.count);
    REDLINE_CUBLAS(lt::cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    REDLINE_CUBLAS(lt::cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch.stride,
                                                        sizeof batch.stride));
  }
  return owned;
}

LtOperation operation(const GemmShape& s) {
  cublasLtMatmulDesc_t op = nullptr;
  REDLINE_CUBLAS(
      lt::cublasLtMatmulDescCreate(&op, s.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
  LtOperation owned(op);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, bool transpose) {
    const cublasOperation_t t = transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    REDLINE_CUBLAS(lt::cublasLtMatmulDescSetAttribute(op, attribute, &t, sizeof t));
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, s.transpose_b);  // its A is our B
  set(CUBLASLT_MATMUL_DESC_TRANSB, s.transpose_a);
  if (s.fast_sums) {
    const std::int8_t fast = 1;
    REDLINE_CUBLAS(lt::cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast));
  }
  if (s.bias) {  // for each row of its C, a column of ours
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    REDLINE_CUBLAS(lt::cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    const cudaDataType_t type = data_type(s.output);
    REDLINE_CUBLAS(lt::cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type));
  }
  return owned;
}

LtPreference preference(const GemmShape& s) {
  cublasLtMatmulPreference_t p = nullptr;
  REDLINE_CUBLAS(lt::cublasLtMatmulPreferenceCreate(&p));
  LtPreference owned(p);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    REDLINE_CUBLAS(lt::cublasLtMatmulPreferenceSetAttribute(p, attribute, &value, sizeof value));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(s.workspace));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, s.align_b);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, s.align_a);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, s.align_c);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, s.align_c);
  // Where K is split, parts are added in fp32, never in bf16.
  if (s.output == DType::bf16)
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  return owned;
}

}  // namespace

LtHandle make_handle() {
  cublasLtHandle_t handle = nullptr;
  REDLINE_CUBLAS(lt::cublasLtCreate(&handle));
  return LtHandle(handle);
}

GemmShape::GemmShape(const Gemm& g)
    : transpose_a(g.transpose_a),
      transpose_b(g.transpose_b),
      m(g.m),
      n(g.n),
      k(g.k),
      lda(g.lda),
      ldb(g.ldb),
      ldc(g.ldc),
      input(g.input),
      input_b(g.input_b),
      output(g.output),
      accumulate(g.beta != 0),
      tf32(g.how.math == Math::tf32 && g.input == DType::f32),
      fast_sums(g.how.fast_sums && is_fp8(g.input)),
      bias(g.bias != nullptr),
      align_a(alignment(g.a, g.batch, g.stride_a, g.input)),
      align_b(alignment(g.b, g.batch, g.stride_b, g.input_b)),
      align_c(std::min(alignment(g.c, g.batch, g.stride_c, g.output), alignment(g.added))),
      workspace(g.workspace_bytes),
      batch(g.batch),
      stride_a(g.stride_a),
      stride_b(g.stride_b),
      stride_c(g.stride_c) {
  const auto taken = [](DType t) { return t == DType::bf16 || t == DType::f32; };
  const bool fp8 = is_fp8(input) && is_fp8(input_b) && !(input == DType::e5m2 && input_b == DType::e5m2);
  REDLINE_CHECK(
      taken(output) && (fp8 || (taken(input) && input == input_b && !(input == DType::f32 && output == DType::bf16))),
      "no product of {} and {} gives {}", name_of(input), name_of(input_b), name_of(output));
  REDLINE_CHECK(!fp8 || (g.a_scale && g.b_scale && !transpose_a && transpose_b), "{} without scales, or not by rows",
                str());
  REDLINE_CHECK(!g.added || g.beta != 0, "{} adds an array zero times", str());
  REDLINE_CHECK(!bias || (batch == 1 && !accumulate), "{} has a bias", str());
}

std::string GemmShape::str() const {
  const std::string batched =
      batch > 1 ? fmt::format(" batch {} strides {},{},{}", batch, stride_a, stride_b, stride_c) : "";
  return fmt::format(
      "{}x{}x{} {}{} {}>{}{}{} ld {},{},{} align {},{},{}{}", m, n, k, transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N',
      input == input_b ? std::string(name_of(input)) : fmt::format("{}x{}", name_of(input), name_of(input_b)),
      name_of(output),
      tf32        ? " tf32"
      : fast_sums ? " fast"
                  : "",
      accumulate ? " +="
      : bias     ? " +bias"
                 : "",
      lda, ldb, ldc, align_a, align_b, align_c, batched);
}

GemmPlan::GemmPlan(cublasLtHandle_t handle, const GemmShape& s)
    : handle_(handle),
      shape_(s),
      operation_(operation(s)),
      a_(layout(s.input, s.transpose_a ? s.k : s.m, s.transpose_a ? s.m : s.k, s.lda, {s.batch, s.stride_a})),
      b_(layout(s.input_b, s.transpose_b ? s.n : s.k, s.transpose_b ? s.k : s.n, s.ldb, {s.batch, s.stride_b})),
      c_(layout(s.output, s.m, s.n, s.ldc, {s.batch, s.stride_c})) {
  // The heuristic wants to know that there are scales, and looks at none.
  const auto* const somewhere = reinterpret_cast<const float*>(std::uintptr_t{kFullAlignment});
  if (is_fp8(s.input)) set_scales(somewhere, somewhere);
  if (s.bias) set_bias(somewhere);
}

void GemmPlan::set_scales(const float* a, const float* b) const {
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const float* scale) {
    REDLINE_CUBLAS(lt::cublasLtMatmulDescSetAttribute(operation_.get(), attribute, &scale, sizeof scale));
  };
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, b);
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a);
}

void GemmPlan::set_bias(const void* bias) const {
  REDLINE_CUBLAS(
      lt::cublasLtMatmulDescSetAttribute(operation_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
}

std::vector<cublasLtMatmulAlgo_t> GemmPlan::candidates() const { return proposals(kCandidates); }
std::vector<cublasLtMatmulAlgo_t> GemmPlan::all_candidates() const { return proposals(kAllCandidates); }

std::vector<cublasLtMatmulAlgo_t> GemmPlan::proposals(int most) const {
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(most));
  int count = 0;
  const cublasStatus_t status =
      lt::cublasLtMatmulAlgoGetHeuristic(handle_, operation_.get(), b_.get(), a_.get(), c_.get(), c_.get(),
                                         preference(shape_).get(), most, results.data(), &count);
  if (status != CUBLAS_STATUS_SUCCESS) return {};
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  results.resize(static_cast<std::size_t>(count));
  for (const cublasLtMatmulHeuristicResult_t& result : results)
    if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(result.algo);
  return algorithms;
}

std::string GemmPlan::why_none() const {
  return fmt::format("cuBLASLt {} has no algorithm for {}", lt::cublasLtGetVersion(), shape_.str());
}

std::vector<cublasLtMatmulAlgo_t> GemmPlan::variants(const cublasLtMatmulAlgo_t& algorithm) const {
  constexpr std::uint32_t kSwizzles = 2;
  const auto read = [&](cublasLtMatmulAlgoConfigAttributes_t attribute) {
    std::uint32_t value = 0;
    std::size_t written = 0;
    REDLINE_CUBLAS(lt::cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof value, &written));
    return value;
  };
  std::uint32_t last_option = 0;
  std::size_t written = 0;
  REDLINE_CUBLAS(lt::cublasLtMatmulAlgoCapGetAttribute(&algorithm, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX, &last_option,
                                                       sizeof last_option, &written));
  const std::uint32_t own_option = read(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION);
  const std::uint32_t own_swizzle = read(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING);
  std::vector<cublasLtMatmulAlgo_t> found;
  for (std::uint32_t swizzle = 0; swizzle < kSwizzles; ++swizzle) {
    for (std::uint32_t option = 0; option <= last_option; ++option) {
      if (option == own_option && swizzle == own_swizzle) continue;
      cublasLtMatmulAlgo_t variant = algorithm;
      const auto set = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, std::uint32_t value) {
        return lt::cublasLtMatmulAlgoConfigSetAttribute(&variant, attribute, &value, sizeof value) ==
               CUBLAS_STATUS_SUCCESS;
      };
      if (set(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, option) && set(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, swizzle) &&
          accepts(variant))
        found.push_back(variant);
    }
  }
  return found;
}

bool GemmPlan::accepts(const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result{};
  return lt::cublasLtMatmulAlgoCheck(handle_, operation_.get(), b_.get(), a_.get(), c_.get(), c_.get(), &algorithm,
                                     &result) == CUBLAS_STATUS_SUCCESS &&
         result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= static_cast<std::size_t>(shape_.workspace);
}

cublasStatus_t GemmPlan::try_run(const cublasLtMatmulAlgo_t& algorithm, const Operands& with,
                                 const Launch& launch) const {
  const float beta = shape_.accumulate ? with.beta : 0.0f;
  const void* const added = with.added ? with.added : with.c;
  if (is_fp8(shape_.input)) set_scales(with.a_scale, with.b_scale);  // for each launch: layers share a plan
  if (shape_.bias) set_bias(with.bias);
  return lt::cublasLtMatmul(handle_, operation_.get(), &with.alpha, with.b, b_.get(), with.a, a_.get(), &beta, added,
                            c_.get(), with.c, c_.get(), &algorithm, with.workspace,
                            static_cast<std::size_t>(shape_.workspace), launch.stream);
}

void GemmPlan::run(const Gemm& g, const Launch& launch) const {
  const cublasStatus_t status =
      try_run(algorithm_, {g.a, g.b, g.c, g.workspace, g.a_scale, g.b_scale, g.added, g.alpha, g.beta, g.bias}, launch);
  if (status != CUBLAS_STATUS_SUCCESS)
    fail_machine("{}:{}: cublasLtMatmul of {}: {}", __FILE__, __LINE__, shape_.str(),
                 lt::cublasLtGetStatusString(status));
}

}  // namespace redline::ops::cuda
