// What copies, readbacks and spans of a device must do beside its work, whatever the device.
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

// Copies see all work before them and none after hold_work().
inline void expect_lane_keeps_its_place(device::Device& device) {
  const auto memory = device.allocate(kLaneBytes);
  const auto host = device.try_allocate_host(kLaneBytes);
  ASSERT_TRUE(host);
  ASSERT_EQ(host->bytes(), kLaneBytes);
  const auto lane = device.make_lane();
  for (const int round : {1, 2, 3}) {
    fill_often(device, *memory, round);
    lane->follow();
    const std::int64_t first = kLaneBytes / 3 + round;  // two pieces, of odd sizes
    lane->fetch(host->data(), memory->data(), first);
    lane->fetch(host->data() + first, memory->data() + first, kLaneBytes - first);
    lane->fetch(host->data(), memory->data(), 0);
    lane->hold_work();
    device.fill(memory->data(), 0x77, kLaneBytes);
    lane->wait();
    EXPECT_TRUE(all_are({host->data(), static_cast<std::size_t>(kLaneBytes)}, round)) << "round " << round;
  }
}

// Another thread reads through windows of the lane while this one goes on giving work.
inline void expect_lane_windows_beside_work(device::Device& device) {
  constexpr std::int64_t kWindow = 3 << 20;
  const auto memory = device.allocate(kLaneBytes), other = device.allocate(kLaneBytes);
  const auto lane = device.make_lane();
  for (const int round : {1, 2}) {
    fill_often(device, *memory, round);
    lane->follow();
    int wrong = 0;
    std::thread reader([&] {
      const std::unique_ptr<device::TransferWindow> windows[] = {lane->make_window(kWindow),
                                                                 lane->make_window(kWindow)};
      const auto fetch = [&](std::int64_t i) {
        windows[i % 2]->fetch(windows[i % 2]->memory().data(), memory->data() + i * kWindow, kWindow);
      };
      fetch(0);
      for (std::int64_t i = 0; i < kLaneBytes / kWindow; ++i) {
        if ((i + 1) * kWindow < kLaneBytes) fetch(i + 1);
        windows[i % 2]->wait();
        wrong += !all_are(windows[i % 2]->memory(), round);
      }
    });
    fill_often(device, *other, 9);
    reader.join();
    EXPECT_EQ(wrong, 0) << "round " << round;
  }
}

// A copy within the device has what the work in front of it left, and not what comes later.
inline void expect_copies_within_in_order(device::Device& device) {
  const auto memory = device.allocate(kLaneBytes), copy = device.allocate(kLaneBytes);
  const auto host = std::make_unique<std::byte[]>(static_cast<std::size_t>(kLaneBytes));
  fill_often(device, *memory, 1);
  device.fill(copy->data(), 0xAB, kLaneBytes);
  device.copy_within(copy->data() + 3, memory->data(), kLaneBytes - 7);
  device.copy_within(copy->data(), memory->data(), 0);
  device.fill(memory->data(), 2, kLaneBytes);
  device.copy_out(host.get(), copy->data(), kLaneBytes);
  const std::span<const std::byte> read(host.get(), static_cast<std::size_t>(kLaneBytes));
  EXPECT_TRUE(all_are(read.subspan(3, read.size() - 7), 1));
  EXPECT_TRUE(all_are(read.first(3), 0xAB) && all_are(read.last(4), 0xAB));
  device.copy_out(host.get(), memory->data(), kLaneBytes);
  EXPECT_TRUE(all_are(read, 2));
}

// Memory that the host does not have is no error: whoever asked does without.
inline void expect_host_memory_or_nothing(device::Device& device) {
  EXPECT_EQ(device.try_allocate_host(std::int64_t{1} << 50), nullptr);
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{1}, kLaneBytes + 5}) {
    const auto host = device.try_allocate_host(bytes);
    ASSERT_TRUE(host) << bytes;
    EXPECT_EQ(host->bytes(), bytes);
    std::fill_n(host->data(), bytes, std::byte{3});
  }
}

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
