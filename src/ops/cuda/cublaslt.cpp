// The functions of cuBLASLt that redline calls, forwarded to the library, which is loaded at the first of them. Linked
// against, it would be loaded by every start of the program: 410,000 places in its 600 MB hold addresses that the
// loader writes, which took 75 of the 83 ms of CPU of `redline --version`. A machine without the library runs all but
// products on a card.
#include <cublasLt.h>
#include <dlfcn.h>

#include <string>

#include "base/error.h"

namespace {

void* library() {
  static void* const handle = [] {
    const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
    void* const opened = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!opened) {
      const char* const error = ::dlerror();
      redline::fail_machine(
          "{} could not be loaded ({}): install it from CUDA {}, or name its folder in LD_LIBRARY_PATH", name,
          error ? error : "no reason was given", CUBLAS_VER_MAJOR);
    }
    return opened;
  }();
  return handle;
}

template <class Function>
Function* find(const char* name) {
  auto* const function = reinterpret_cast<Function*>(::dlsym(library(), name));
  if (!function) redline::fail_machine("libcublasLt.so.{} has no {}", CUBLAS_VER_MAJOR, name);
  return function;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static auto* const real = find<decltype(cublasLtCreate)>("cublasLtCreate");
  return real(handle);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  static auto* const real = find<decltype(cublasLtDestroy)>("cublasLtDestroy");
  return real(handle);
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  static auto* const real = find<decltype(cublasLtGetStatusString)>("cublasLtGetStatusString");
  return real(status);
}

size_t cublasLtGetVersion() {
  static auto* const real = find<decltype(cublasLtGetVersion)>("cublasLtGetVersion");
  return real();
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  static auto* const real = find<decltype(cublasLtMatmul)>("cublasLtMatmul");
  return real(handle, product, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm, workspace,
              workspace_bytes, stream);
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                 cublasLtMatmulAlgoCapAttributes_t attribute, void* value, size_t bytes,
                                                 size_t* written) {
  static auto* const real = find<decltype(cublasLtMatmulAlgoCapGetAttribute)>("cublasLtMatmulAlgoCapGetAttribute");
  return real(algorithm, attribute, value, bytes, written);
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                       cublasLtMatrixLayout_t a_layout, cublasLtMatrixLayout_t b_layout,
                                       cublasLtMatrixLayout_t c_layout, cublasLtMatrixLayout_t d_layout,
                                       const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t* result) {
  static auto* const real = find<decltype(cublasLtMatmulAlgoCheck)>("cublasLtMatmulAlgoCheck");
  return real(handle, product, a_layout, b_layout, c_layout, d_layout, algorithm, result);
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void* value,
                                                    size_t bytes, size_t* written) {
  static auto* const real =
      find<decltype(cublasLtMatmulAlgoConfigGetAttribute)>("cublasLtMatmulAlgoConfigGetAttribute");
  return real(algorithm, attribute, value, bytes, written);
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  static auto* const real =
      find<decltype(cublasLtMatmulAlgoConfigSetAttribute)>("cublasLtMatmulAlgoConfigSetAttribute");
  return real(algorithm, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a_layout, cublasLtMatrixLayout_t b_layout,
                                              cublasLtMatrixLayout_t c_layout, cublasLtMatrixLayout_t d_layout,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  static auto* const real = find<decltype(cublasLtMatmulAlgoGetHeuristic)>("cublasLtMatmulAlgoGetHeuristic");
  return real(handle, product, a_layout, b_layout, c_layout, d_layout, preference, asked, results, found);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  static auto* const real = find<decltype(cublasLtMatmulDescCreate)>("cublasLtMatmulDescCreate");
  return real(product, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  static auto* const real = find<decltype(cublasLtMatmulDescDestroy)>("cublasLtMatmulDescDestroy");
  return real(product);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  static auto* const real = find<decltype(cublasLtMatmulDescSetAttribute)>("cublasLtMatmulDescSetAttribute");
  return real(product, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  static auto* const real = find<decltype(cublasLtMatmulPreferenceCreate)>("cublasLtMatmulPreferenceCreate");
  return real(preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  static auto* const real = find<decltype(cublasLtMatmulPreferenceDestroy)>("cublasLtMatmulPreferenceDestroy");
  return real(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  static auto* const real =
      find<decltype(cublasLtMatmulPreferenceSetAttribute)>("cublasLtMatmulPreferenceSetAttribute");
  return real(preference, attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
  static auto* const real = find<decltype(cublasLtMatrixLayoutCreate)>("cublasLtMatrixLayoutCreate");
  return real(layout, type, rows, columns, ld);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  static auto* const real = find<decltype(cublasLtMatrixLayoutDestroy)>("cublasLtMatrixLayoutDestroy");
  return real(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t bytes) {
  static auto* const real = find<decltype(cublasLtMatrixLayoutSetAttribute)>("cublasLtMatrixLayoutSetAttribute");
  return real(layout, attribute, value, bytes);
}

}  // extern "C"
