// The library by its name, and its functions by theirs.
#include "dist/nccl/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace redline::dist {
namespace {

NcclLibrary load() {
  NcclLibrary lib;
  void* const handle = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* const error = ::dlerror();
    lib.problem = fmt::format("libnccl.so.2 could not be loaded ({})", error ? error : "no reason was given");
    return lib;
  }
  const auto find = [&]<class Function>(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(handle, name));
    if (!function && lib.problem.empty()) lib.problem = fmt::format("libnccl.so.2 has no {}", name);
  };
  find(lib.get_version, "ncclGetVersion");
  find(lib.get_unique_id, "ncclGetUniqueId");
  find(lib.comm_init_rank, "ncclCommInitRank");
  find(lib.comm_abort, "ncclCommAbort");
  find(lib.comm_get_async_error, "ncclCommGetAsyncError");
  find(lib.get_error_string, "ncclGetErrorString");
  find(lib.get_last_error, "ncclGetLastError");
  find(lib.group_start, "ncclGroupStart");
  find(lib.group_end, "ncclGroupEnd");
  find(lib.all_reduce, "ncclAllReduce");
  find(lib.reduce, "ncclReduce");
  find(lib.broadcast, "ncclBroadcast");
  int code = 0;
  if (lib.problem.empty() && lib.get_version(&code) == ncclSuccess)
    lib.version = fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
  return lib;
}

}  // namespace

const NcclLibrary& nccl_library() {
  static const NcclLibrary library = load();
  return library;
}

}  // namespace redline::dist
