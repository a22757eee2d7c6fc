// What copies and spans of a device must do beside its work, whatever the device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <thread>

#include "base/error.h"
#include "device/device.h"

namespace redline::testing {

inline constexpr std::int64_t kLaneBytes = 24 << 20;
// Work before a copy or after it: together it takes longer on a card than the copy, which crosses a bus.
inline constexpr int kFills = 300;

inline bool all_are(std::span<const std::byte> bytes, int value) {
  return std::ranges::all_of(bytes, [&](std::byte b) { return b == static_cast<std::byte>(value); });
}

// The last of them leaves `value` everywhere.
inline void fill_often(device::Device& device, const device::Buffer& memory, int value) {
  const int fills = device.runs_ahead() ? kFills : 2;
  for (int i = 1; i < fills; ++i) device.fill(memory.data(), 0xEE, memory.bytes());
  device.fill(memory.data(), static_cast<std::uint8_t>(value), memory.bytes());
}

// Copies see all work before follow(), and a thread reads through two windows while another goes on giving work.
inline void expect_lane_keeps_its_place(device::Device& device) {
  constexpr std::int64_t kWindow = 3 << 20;
  const auto memory = device.allocate(kLaneBytes), other = device.allocate(kLaneBytes);
  const auto lane = device.make_lane();
  for (const int round : {1, 2, 3}) {
    fill_often(device, *memory, round);
    lane->follow();
    int wrong = 0;
    std::thread reader([&] {
      const std::unique_ptr<device::Buffer> windows[] = {device.try_allocate_host(kWindow),
                                                         device.try_allocate_host(kWindow)};
      const auto fetch = [&](int i) {
        lane->copy(windows[i % 2]->data(), memory->data() + i * kWindow, kWindow);
        lane->mark(i % 2);
      };
      fetch(0);
      for (int i = 0; i < kLaneBytes / kWindow; ++i) {
        if ((i + 1) * kWindow < kLaneBytes) fetch(i + 1);
        lane->wait(i % 2);
        wrong += !all_are({windows[i % 2]->data(), static_cast<std::size_t>(kWindow)}, round);
      }
    });
    fill_often(device, *other, 9);
    reader.join();
    EXPECT_EQ(wrong, 0) << "round " << round;
  }
}

// Memory that the host does not have is no error: whoever asked does without.
inline void expect_host_memory_or_nothing(device::Device& device) {
  EXPECT_EQ(device.try_allocate_host(std::int64_t{1} << 50), nullptr);
  constexpr std::int64_t kLarge = (std::int64_t{80} << 20) + 5;  // is made another way than small ones
  const auto memory = device.allocate(kLarge);
  const auto lane = device.make_lane();
  device.fill(memory->data(), 7, kLarge);
  lane->follow();
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{1}, kLaneBytes + 5, kLarge}) {
    const auto host = device.try_allocate_host(bytes);
    ASSERT_TRUE(host) << bytes;
    EXPECT_EQ(host->bytes(), bytes);
    const std::span<const std::byte> all(host->data(), static_cast<std::size_t>(bytes));
    EXPECT_TRUE(!host->is_zero() || all_are(all, 0)) << bytes;
    std::fill_n(host->data(), bytes, std::byte{3});
    lane->copy(host->data(), memory->data(), bytes);
    lane->mark(0);
    lane->wait(0);
    EXPECT_TRUE(all_are(all, 7)) << bytes;
  }
}

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
