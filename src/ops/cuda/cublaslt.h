// The functions of cuBLASLt that redline calls, each found in the library when it is first called, which loads the
// library. Linked against, it would be loaded by every start of the program: 410,000 places in its 600 MB hold
// addresses that the loader writes, which took 75 of the 83 ms of CPU of `redline --version`. A machine without the
// library runs all but products on a card.
#pragma once

#include <cublasLt.h>

#include <atomic>

namespace redline::ops::cuda::lt {

// The functions are called as the library calls them: lt::cublasLtMatmul(...).
// A MachineError where the library or the function is not there.
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

}  // namespace redline::ops::cuda::lt
