// The weight of a step in the average.
#include "optim/average.h"

#include <algorithm>

namespace redline::optim {

double average_share(const config::Train& t, std::int64_t step, std::int64_t steps) {
  const std::int64_t before = t.average == "last" ? std::max<std::int64_t>(0, steps - t.average_steps) : 0;
  return 1 / static_cast<double>(std::clamp<std::int64_t>(step + 1 - before, 1, t.average_steps));
}

}  // namespace redline::optim
