// What copies of a lane must do, whatever the device; and a device on the host whose copies happen as late as they may.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "device/device.h"

namespace redline::testing {

inline std::span<std::byte> bytes_of(const device::Buffer& buffer) {
  return {buffer.data(), static_cast<std::size_t>(buffer.bytes())};
}

// Two windows in turn, each filled again as soon as it was waited for: every byte arrives where it was sent, after the
// device's work.
inline void expect_uploads_arrive(device::Device& device) {
  constexpr std::int64_t kWindow = 3 << 20, kRounds = 9;
  const auto memory = device.allocate(kRounds * kWindow);
  std::vector<std::byte> expected(static_cast<std::size_t>(kRounds * kWindow));
  device.fill(memory->data(), 0xAB, memory->bytes());
  {
    const std::unique_ptr<device::Buffer> windows[] = {device.try_allocate_host(kWindow),
                                                       device.try_allocate_host(kWindow)};
    const auto lane = device.make_lane();
    lane->follow();
    for (int round = 0; round < kRounds; ++round) {
      lane->wait(round % 2);
      const std::span<std::byte> filled = bytes_of(*windows[round % 2]);
      for (std::size_t i = 0; i < filled.size(); ++i)
        filled[i] = static_cast<std::byte>((i * 31 + static_cast<std::size_t>(round) * 7) >> 3);
      std::byte* const to = memory->data() + round * kWindow;
      const std::int64_t first = kWindow / 3 + round;  // two pieces, of odd sizes
      lane->copy(to, filled.data(), first);
      lane->copy(to + first, filled.data() + first, kWindow - first);
      lane->copy(to, filled.data(), 0);
      lane->mark(round % 2);
      std::copy(filled.begin(), filled.end(), expected.begin() + round * kWindow);
    }
  }  // a lane that goes waits for what it was given
  std::vector<std::byte> out(expected.size());
  device.copy_out(out.data(), memory->data(), memory->bytes());
  EXPECT_TRUE(out == expected);
}

// The same the other way: what a window holds after it was waited for is what the device had.
inline void expect_downloads_arrive(device::Device& device) {
  constexpr std::int64_t kWindow = 3 << 20;
  constexpr int kRounds = 9;
  std::vector<std::byte> expected(static_cast<std::size_t>(kRounds * kWindow));
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<std::byte>((i * 2654435761u) >> 11);
  const auto memory = device.allocate(kRounds * kWindow);
  device.copy_in(memory->data(), expected.data(), memory->bytes());
  const std::unique_ptr<device::Buffer> windows[] = {device.try_allocate_host(kWindow),
                                                     device.try_allocate_host(kWindow)};
  const auto lane = device.make_lane();
  lane->follow();
  const auto fetch = [&](int round) {
    std::byte* const to = windows[round % 2]->data();
    const std::byte* const from = memory->data() + round * kWindow;
    const std::int64_t first = kWindow / 3 + round;  // two pieces, of odd sizes
    lane->copy(to, from, first);
    lane->copy(to + first, from + first, kWindow - first);
    lane->copy(to, from, 0);
    lane->mark(round % 2);
  };
  fetch(0);
  for (int round = 0; round < kRounds; ++round) {
    if (round + 1 < kRounds) fetch(round + 1);
    lane->wait(round % 2);
    const std::span<std::byte> held = bytes_of(*windows[round % 2]);
    EXPECT_TRUE(std::equal(held.begin(), held.end(), expected.begin() + round * kWindow)) << "round " << round;
  }
  fetch(0);  // one without a wait ends with its lane
}

// The CPU as a device with memory of its own. What a lane copies arrives when it is waited for or goes away, and not
// before: a window that is used again too early moves what it holds then.
class LateDevice final : public device::CpuDevice {
 public:
  using CpuDevice::CpuDevice;
  bool shares_host_memory() const override { return false; }
  void copy_out(void* to, const void* from, std::int64_t bytes) override {
    most_copied_out = std::max(most_copied_out, bytes);
    CpuDevice::copy_out(to, from, bytes);
  }
  std::unique_ptr<device::CopyLane> make_lane() override { return std::make_unique<Lane>(*this); }
  std::unique_ptr<device::Buffer> try_allocate_host(std::int64_t bytes) override {
    if (bytes > most_on_host) return nullptr;
    const std::lock_guard lock(mutex_);
    return std::make_unique<HostBuffer>(*this, CpuDevice::allocate(bytes));
  }
  // Of the device's own memory. A thread may be making some of the host's.
  std::int64_t own_bytes() const {
    const std::lock_guard lock(mutex_);
    return allocated_bytes() - held_bytes;
  }
  std::int64_t available_bytes() const override { return std::min(room, CpuDevice::available_bytes()); }

  std::int64_t room = std::int64_t{1} << 50;          // of the device, whatever is allocated
  std::int64_t most_on_host = std::int64_t{1} << 50;  // bytes of one buffer
  std::int64_t host_bytes = 0;                        // of all buffers that were made
  std::int64_t held_bytes = 0, most_held_bytes = 0;   // of those that there are at a time
  std::int64_t most_copied_out = 0;                   // bytes at once, without a lane
  int windows_sent = 0;                               // marks of copies to the device
  int under_way = 0, most_under_way = 0;              // marks that were not waited for

 private:
  class HostBuffer final : public device::Buffer {
   public:
    HostBuffer(LateDevice& device, std::unique_ptr<device::Buffer> memory)
        : device_(device), memory_(std::move(memory)) {  // the mutex is held
      device_.host_bytes += bytes();
      device_.held_bytes += bytes();
      device_.most_held_bytes = std::max(device_.most_held_bytes, device_.held_bytes);
      device_.on_host_[data()] = bytes();
    }
    ~HostBuffer() override {
      const std::lock_guard lock(device_.mutex_);
      device_.held_bytes -= bytes();
      device_.on_host_.erase(data());
    }
    std::byte* data() const override { return memory_->data(); }
    std::int64_t bytes() const override { return memory_->bytes(); }

   private:
    LateDevice& device_;
    std::unique_ptr<device::Buffer> memory_;
  };

  bool lies_on_host(const std::byte* at) const {
    const auto after = on_host_.upper_bound(const_cast<std::byte*>(at));
    return after != on_host_.begin() && at < std::prev(after)->first + std::prev(after)->second;
  }

  class Lane final : public device::CopyLane {
   public:
    explicit Lane(LateDevice& device) : device_(device) {}
    ~Lane() override {
      for (int number = 0; number < kMarks; ++number) Lane::wait(number);
      arrive(given_);
    }
    void follow() override {}
    void copy(void* to, const void* from, std::int64_t bytes) override {
      copies_.push_back({static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes});
      ++given_;
    }
    void mark(int number) override {
      Lane::wait(number);
      marks_[static_cast<std::size_t>(number)] = given_;
      const std::lock_guard lock(device_.mutex_);
      device_.windows_sent += !copies_.empty() && !device_.lies_on_host(copies_.back().to);
      device_.most_under_way = std::max(device_.most_under_way, ++device_.under_way);
    }
    void wait(int number) override {
      const std::int64_t mark = std::exchange(marks_[static_cast<std::size_t>(number)], 0);
      if (mark == 0) return;
      arrive(mark);
      const std::lock_guard lock(device_.mutex_);
      --device_.under_way;
    }

   private:
    struct Copy {
      std::byte* to;
      const std::byte* from;
      std::int64_t bytes;
    };
    void arrive(std::int64_t number) {
      for (; arrived_ < number; ++arrived_) {
        std::copy_n(copies_.front().from, copies_.front().bytes, copies_.front().to);
        copies_.pop_front();
      }
    }

    LateDevice& device_;
    std::deque<Copy> copies_;  // that have not arrived
    std::int64_t given_ = 0, arrived_ = 0;
    std::array<std::int64_t, kMarks> marks_ = {};  // copies given before each; 0: not marked, or waited for
  };

  mutable std::mutex mutex_;
  std::map<std::byte*, std::int64_t> on_host_;
};

}  // namespace redline::testing
