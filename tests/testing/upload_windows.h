// What a device's upload windows must do, whatever the device; and a device on the host whose uploads happen as late as they
// may.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "device/device.h"

namespace redline::testing {

// Two windows in turn, each filled again as soon as it was waited for: every byte arrives where it was sent, in order with
// the device's other work.
inline void expect_uploads_arrive(device::Device& device) {
  constexpr std::int64_t kWindow = 3 << 20, kRounds = 9;
  const auto memory = device.allocate(kRounds * kWindow);
  std::vector<std::byte> expected(static_cast<std::size_t>(kRounds * kWindow));
  device.fill(memory->data(), 0xAB, memory->bytes());
  {
    const std::unique_ptr<device::UploadWindow> windows[] = {device.make_upload_window(kWindow),
                                                             device.make_upload_window(kWindow)};
    for (std::int64_t round = 0; round < kRounds; ++round) {
      device::UploadWindow& window = *windows[round % 2];
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

// The CPU as a device with memory of its own. What a window sends arrives when it is waited for or goes away, and not before:
// a window that is filled again too early sends what it holds then.
class LateDevice final : public device::CpuDevice {
 public:
  using CpuDevice::CpuDevice;
  bool shares_host_memory() const override { return false; }
  std::unique_ptr<device::UploadWindow> make_upload_window(std::int64_t bytes) override {
    window_bytes += bytes;
    return std::make_unique<Window>(*this, bytes);
  }

  std::int64_t window_bytes = 0;                            // of all windows that were made
  int windows_sent = 0, under_way = 0, most_under_way = 0;  // windows

 private:
  class Window final : public device::UploadWindow {
   public:
    Window(LateDevice& device, std::int64_t bytes) : device_(device), memory_(static_cast<std::size_t>(bytes)) {}
    ~Window() override { Window::wait(); }
    std::span<std::byte> memory() override { return memory_; }
    void send(void* to, const std::byte* from, std::int64_t bytes) override {
      if (sent_.empty()) {
        ++device_.windows_sent;
        device_.most_under_way = std::max(device_.most_under_way, ++device_.under_way);
      }
      sent_.push_back({static_cast<std::byte*>(to), from, bytes});
    }
    void wait() override {
      if (!sent_.empty()) --device_.under_way;
      for (const Copy& copy : sent_) std::copy_n(copy.from, copy.bytes, copy.to);
      sent_.clear();
    }

   private:
    struct Copy {
      std::byte* to;
      const std::byte* from;
      std::int64_t bytes;
    };
    LateDevice& device_;
    std::vector<std::byte> memory_;
    std::vector<Copy> sent_;
  };
};

}  // namespace redline::testing
