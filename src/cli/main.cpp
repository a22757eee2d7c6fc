// The program.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "cli/commands.h"

namespace {

// OpenBLAS starts threads as it is loaded, which we never use. Each takes a buffer, tries without end where `ulimit -v`
// or `ulimit -d` leaves no room for it, and is waited for at the exit. Nothing but the environment keeps it from that,
// so under such a limit the program starts once more with the right one. Without it, a second start is 20 ms for
// nothing.
void keep_openblas_from_threads(char** argv) {
#ifdef __linux__
  constexpr const char* kThreads = "OPENBLAS_NUM_THREADS";
  const char* threads = std::getenv(kThreads);
  const auto limited = [](auto resource) {
    rlimit limit{};
    return ::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  };
  if ((threads && std::string_view(threads) == "1") || !(limited(RLIMIT_AS) || limited(RLIMIT_DATA))) return;
  if (::setenv(kThreads, "1", 1) == 0) ::execv("/proc/self/exe", argv);  // comes back where it cannot
#endif
}

}  // namespace

int main(int argc, char** argv) {
  keep_openblas_from_threads(argv);
  return redline::cli::run(argc, argv);
}
