// What a fuzz target is: libFuzzer's entry point, some seeds, and the two exceptions that are not findings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

// Must come back for any bytes; whatever it throws is a finding.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace redline::fuzz {

// Inputs to begin with; the files in fuzz/corpus/NAME come on top. A target may do without.
__attribute__((weak)) std::vector<std::string> seeds();

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Runs body(); what a user would read as one sentence is all right.
template <class Body>
void expect_user_errors(const Body& body) {
  try {
    body();
  } catch (const UserError&) {
  }
}

// Ends the process with a message: for what must hold of every input that was accepted.
[[noreturn]] void fail(std::string_view what);
inline void require(bool holds, std::string_view what) {
  if (!holds) fail(what);
}

// A folder of this process's own, gone when it ends, and files in it.
std::string scratch(std::string_view name);
void write_scratch(std::string_view name, std::string_view bytes);

// One input that holds several files: each part after the first follows a length of 32 bits.
std::string join(const std::vector<std::string>& parts);
std::vector<std::string> split(std::string_view input, std::size_t parts);

}  // namespace redline::fuzz
