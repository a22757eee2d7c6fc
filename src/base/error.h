// The two ways things go wrong: bad input (exit 2) and a broken machine (exit 1). The library throws
// these; only cli/ exits.
#pragma once

#ifdef __CUDACC__  // nvcc parses a header twice and more, and kernels need no other part of fmt: a second of each file
#include <fmt/core.h>
#else
#include <fmt/format.h>
#endif

#include <stdexcept>
#include <string>
#include <utility>

namespace redline {

// The user gave something that cannot work: one sentence that says what, where and what to do.
struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The machine failed us (disk, memory, CUDA) or an invariant of ours broke: the call, file and line.
struct MachineError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Args>
[[noreturn]] void fail_user(fmt::format_string<Args...> format, Args&&... args) {
  throw UserError(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn]] void fail_machine(fmt::format_string<Args...> format, Args&&... args) {
  throw MachineError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace redline

// An invariant of the program itself. Never for user input.
#define REDLINE_CHECK(condition, ...)                                                                     \
  do {                                                                                                    \
    if (!(condition))                                                                                     \
      ::redline::fail_machine("{}:{}: {}: {}", __FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)); \
  } while (false)
