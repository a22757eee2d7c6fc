// What a device's readback must do, whatever the device.
#pragma once

#include <gtest/gtest.h>

#include "base/error.h"
#include "device/device.h"

namespace redline::testing {

// What is posted is what memory held when the work before it was done; results are taken in the order of posting.
inline void expect_results_in_order(device::Device& device) {
  using device::AsyncReadback;
  constexpr std::int64_t kBytes = sizeof(std::int64_t);
  const auto memory = device.allocate(3 * kBytes);
  const auto readback = device.make_readback(2 * kBytes);
  const AsyncReadback::Piece pieces[] = {{memory->data() + 2 * kBytes, kBytes}, {memory->data(), kBytes}};
  std::int64_t result[2];
  for (std::int64_t round = 0; round < 5; ++round) {
    for (std::int64_t posted = 0; posted < AsyncReadback::kSlots; ++posted) {
      const std::int64_t now[] = {10 * round + posted, 2, -round};
      device.copy_in(memory->data(), now, sizeof now);
      readback->post(pieces);
    }
    EXPECT_THROW(readback->post(pieces), MachineError);
    for (std::int64_t posted = 0; posted < AsyncReadback::kSlots; ++posted) {
      readback->take(result);
      EXPECT_EQ(result[0], -round);
      EXPECT_EQ(result[1], 10 * round + posted);
    }
  }
  EXPECT_THROW(readback->take(result), MachineError);
}

}  // namespace redline::testing
