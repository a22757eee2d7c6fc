// The library by its name.
#include "ops/cuda/cublaslt.h"

#include <dlfcn.h>

#include <string>

#include "base/error.h"

namespace redline::ops::cuda::lt {
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

}  // namespace redline::ops::cuda::lt
