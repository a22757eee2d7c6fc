// A share, a size and what is left of the time.
#include "report/bytes_progress.h"

#include <fmt/format.h>

#include "base/clock.h"
#include "report/figures.h"

namespace redline::report {

std::string BytesProgress::text(const std::string& doing, std::uint64_t done, std::uint64_t of, double seconds) {
  const double share = of > 0 ? static_cast<double>(done) / static_cast<double>(of) : 1;
  // The first moments say little about the rest.
  const std::string left = share > 0.01 && seconds > 1 ? ", " + duration(seconds * (1 - share) / share) + " left" : "";
  return fmt::format("{}: {} of {}{}", doing, percent(share), bytes(static_cast<double>(of)), left);
}

void BytesProgress::show(LiveLine& line, std::uint64_t done, std::uint64_t of) {
  const double now = steady_seconds();
  if (start_ < 0 || done == 0) start_ = now;
  if (now - start_ >= quiet_) line.show(text(doing_, done, of, now - start_));
}

}  // namespace redline::report
