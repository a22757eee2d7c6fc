// What a device's transfer windows must do, whatever the device; and a device on the host whose copies happen as late
// as they may.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "device/device.h"

namespace redline::testing {

// Two windows in turn, each filled again as soon as it was waited for: every byte arrives where it was sent, in order
// with the device's other work.
inline void expect_uploads_arrive(device::Device& device) {
  constexpr std::int64_t kWindow = 3 << 20, kRounds = 9;
  const auto memory = device.allocate(kRounds * kWindow);
  std::vector<std::byte> expected(static_cast<std::size_t>(kRounds * kWindow));
  device.fill(memory->data(), 0xAB, memory->bytes());
  {
    const std::unique_ptr<device::TransferWindow> windows[] = {device.make_transfer_window(kWindow),
                                                               device.make_transfer_window(kWindow)};
    for (std::int64_t round = 0; round < kRounds; ++round) {
      device::TransferWindow& window = *windows[round % 2];
      window.wait();
      const std::span<std::byte> filled = window.memory();
      ASSERT_EQ(filled.size(), static_cast<std::size_t>(kWindow));
      for (std::size_t i = 0; i < filled.size(); ++i)
        filled[i] = static_cast<std::byte>((i * 31 + static_cast<std::size_t>(round) * 7) >> 3);
      std::byte* const to = memory->data() + round * kWindow;
      const std::int64_t first = kWindow / 3 + round;  // two pieces, of odd sizes
      window.send(to, filled.data(), first);
      window.send(to + first, filled.data() + first, kWindow - first);
      window.send(to, filled.data(), 0);
      std::copy(filled.begin(), filled.end(), expected.begin() + round * kWindow);
    }
  }  // windows that go wait for what they sent
  std::vector<std::byte> out(expected.size());
  device.copy_out(out.data(), memory->data(), memory->bytes());
  EXPECT_TRUE(out == expected);
}

// The same the other way: what a window holds after it was waited for is what the device had when it was fetched.
inline void expect_downloads_arrive(device::Device& device) {
  constexpr std::int64_t kWindow = 3 << 20, kRounds = 9;
  std::vector<std::byte> expected(static_cast<std::size_t>(kRounds * kWindow));
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<std::byte>((i * 2654435761u) >> 11);
  const auto memory = device.allocate(kRounds * kWindow);
  device.copy_in(memory->data(), expected.data(), memory->bytes());
  const std::unique_ptr<device::TransferWindow> windows[] = {device.make_transfer_window(kWindow),
                                                             device.make_transfer_window(kWindow)};
  const auto fetch = [&](std::int64_t round) {
    device::TransferWindow& window = *windows[round % 2];
    std::byte* const to = window.memory().data();
    const std::byte* const from = memory->data() + round * kWindow;
    const std::int64_t first = kWindow / 3 + round;  // two pieces, of odd sizes
    window.fetch(to, from, first);
    window.fetch(to + first, from + first, kWindow - first);
    window.fetch(to, from, 0);
  };
  fetch(0);
  for (std::int64_t round = 0; round < kRounds; ++round) {
    if (round + 1 < kRounds) fetch(round + 1);
    windows[round % 2]->wait();
    const std::span<std::byte> held = windows[round % 2]->memory();
    EXPECT_TRUE(std::equal(held.begin(), held.end(), expected.begin() + round * kWindow)) << "round " << round;
  }
  fetch(0);  // one without a wait ends with its window
}

// The CPU as a device with memory of its own. What a window sends or fetches arrives when it is waited for or goes
// away, and not before: a window that is used again too early moves what it holds then.
class LateDevice final : public device::CpuDevice {
 public:
  using CpuDevice::CpuDevice;
  bool shares_host_memory() const override { return false; }
  void copy_out(void* to, const void* from, std::int64_t bytes) override {
    most_copied_out = std::max(most_copied_out, bytes);
    CpuDevice::copy_out(to, from, bytes);
  }
  std::unique_ptr<device::TransferWindow> make_transfer_window(std::int64_t bytes) override {
    window_bytes += bytes;
    return std::make_unique<Window>(*this, bytes);
  }

  // Its copies arrive when they are waited for, or when work is held for them, whichever thread is first: the other
  // waits for it, as a card's work would.
  std::unique_ptr<device::CopyLane> make_lane() override { return std::make_unique<Lane>(*this); }
  std::unique_ptr<device::Buffer> try_allocate_host(std::int64_t bytes) override {
    return host_has_room ? CpuDevice::allocate(bytes) : nullptr;
  }
  std::int64_t available_bytes() const override { return has_room ? CpuDevice::available_bytes() : 0; }

  bool has_room = true, host_has_room = true;
  std::int64_t window_bytes = 0;                     // of all windows that were made
  std::int64_t held_bytes = 0, most_held_bytes = 0;  // of those that there are at a time
  std::int64_t most_copied_out = 0;                  // bytes at once, without a window
  int windows_sent = 0;
  int under_way = 0, most_under_way = 0;  // windows that were sent or fetched and not waited for

 private:
  class Window final : public device::TransferWindow {
   public:
    Window(LateDevice& device, std::int64_t bytes) : device_(device), memory_(static_cast<std::size_t>(bytes)) {
      device_.held_bytes += bytes;
      device_.most_held_bytes = std::max(device_.most_held_bytes, device_.held_bytes);
    }
    ~Window() override {
      Window::wait();
      device_.held_bytes -= static_cast<std::int64_t>(memory_.size());
    }
    std::span<std::byte> memory() override { return memory_; }
    void send(void* to, const std::byte* from, std::int64_t bytes) override {
      if (copies_.empty()) ++device_.windows_sent;
      copy_later({static_cast<std::byte*>(to), from, bytes});
    }
    void fetch(std::byte* to, const void* from, std::int64_t bytes) override {
      copy_later({to, static_cast<const std::byte*>(from), bytes});
    }
    void wait() override {
      if (!copies_.empty()) --device_.under_way;
      for (const Copy& copy : copies_) std::copy_n(copy.from, copy.bytes, copy.to);
      copies_.clear();
    }

   private:
    struct Copy {
      std::byte* to;
      const std::byte* from;
      std::int64_t bytes;
    };
    void copy_later(const Copy& copy) {
      if (copies_.empty()) device_.most_under_way = std::max(device_.most_under_way, ++device_.under_way);
      copies_.push_back(copy);
    }

    LateDevice& device_;
    std::vector<std::byte> memory_;
    std::vector<Copy> copies_;
  };

  class Lane final : public device::CopyLane {
   public:
    explicit Lane(LateDevice& device) : device_(device) {}
    void follow() override {}
    void hold_work() override { wait(); }
    void fetch(std::byte* to, const void* from, std::int64_t bytes) override {
      const std::lock_guard lock(mutex_);
      copies_.push_back({to, from, bytes});
    }
    void wait() override {
      const std::lock_guard lock(mutex_);
      for (const auto& [to, from, bytes] : std::exchange(copies_, {}))
        std::copy_n(static_cast<const std::byte*>(from), bytes, to);
    }
    std::unique_ptr<device::TransferWindow> make_window(std::int64_t bytes) override {
      return device_.make_transfer_window(bytes);
    }

   private:
    LateDevice& device_;
    std::mutex mutex_;
    std::vector<std::tuple<std::byte*, const void*, std::int64_t>> copies_;
  };
};

}  // namespace redline::testing
