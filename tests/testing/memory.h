// How much memory this process has, for tests that bound it.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace redline::testing {

// "VmRSS:" is what it has now, "VmHWM:" the most that it had at once since reset_peak(); 0 where the system does not
// tell.
inline std::int64_t status_bytes(std::string_view key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key)) return std::stoll(line.substr(key.size())) * 1024;
  return 0;
}

inline bool reset_peak() { return static_cast<bool>(std::ofstream("/proc/self/clear_refs") << "5" << std::flush); }

}  // namespace redline::testing
