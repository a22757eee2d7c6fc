// What a device's spans must tell, whatever the device.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "device/device.h"

namespace redline::testing {

// The time between ends is the device's: what it waited for the host counts, and what the host did meanwhile does not.
inline void expect_spans_by_the_devices_clock(device::Device& device) {
  constexpr std::int64_t kBytes = 16 << 20;
  constexpr auto kStall = std::chrono::milliseconds(300);
  const auto memory = device.allocate(kBytes);
  const auto spans = device.make_spans();
  const auto work = [&](std::size_t span) {
    spans->begin(span);
    device.fill(memory->data(), 0, kBytes);
    spans->end(span);
  };
  for (int round = 0; round < 2; ++round) {  // numbers are used again
    work(0);
    std::this_thread::sleep_for(kStall);
    work(1);
    work(2);
    std::this_thread::sleep_for(kStall);  // the device has gone on meanwhile
    spans->wait(2);
    for (const std::size_t span : {0u, 1u, 2u}) {
      EXPECT_GT(spans->length(span), 0);
      EXPECT_LT(spans->length(span), 0.2) << span;
    }
    EXPECT_GE(spans->between_ends(0, 1), 0.25);
    EXPECT_LT(spans->between_ends(1, 2), 0.2);
    EXPECT_GE(spans->between_ends(1, 2), spans->length(2));
  }
}

}  // namespace redline::testing
