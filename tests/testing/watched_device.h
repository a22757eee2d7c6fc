// The CPU as a device whose steps a test can be in the middle of, and as one that runs ahead of the host.
#pragma once

#include <chrono>
#include <cstring>
#include <functional>
#include <span>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/step_state.h"
#include "device/device.h"

namespace redline::testing {

// Tells when the n-th micro-step or update is about to be given, counted from 1: each has its step state written first.
class WatchedDevice : public device::CpuDevice {
 public:
  using CpuDevice::CpuDevice;
  std::function<void(int n)> given = [](int) {};
  std::function<void(StepState&)> states = [](StepState&) {};  // may change what the program will read
  std::function<void(std::span<const std::byte>)> others = [](std::span<const std::byte>) {};  // what else is copied in
  void copy_in(void* to, const void* from, std::int64_t bytes) override {
    if (bytes != sizeof(StepState)) {
      others({static_cast<const std::byte*>(from), static_cast<std::size_t>(bytes)});
      return CpuDevice::copy_in(to, from, bytes);
    }
    given(++n_);
    StepState state;
    std::memcpy(&state, from, sizeof state);
    states(state);
    CpuDevice::copy_in(to, &state, bytes);
  }

 protected:
  int n_ = 0;
};

// Work is done when it is given, but by the device's clock each micro-step and update takes kProgram behind what was
// queued before it, and its results come then.
class AheadDevice final : public WatchedDevice {
 public:
  static constexpr double kProgram = 0.01;  // seconds
  using WatchedDevice::WatchedDevice;
  double stretch = 1;  // how many times as long its clock calls a span as it took
  bool runs_ahead() const override { return true; }
  void wait() override { sleep_until(free_); }
  std::unique_ptr<device::Spans> make_spans() override { return std::make_unique<OwnSpans>(*this); }

 private:
  class OwnSpans final : public device::Spans {
   public:
    explicit OwnSpans(AheadDevice& device) : device_(device) {}
    void begin(std::size_t span) override {
      if (span >= spans_.size()) spans_.resize(span + 1);
      device_.free_ = std::max(device_.free_, steady_seconds());
      spans_[span].first = device_.free_;
    }
    void end(std::size_t span) override {
      device_.free_ += kProgram * (device_.n_ - std::exchange(device_.done_, device_.n_));
      spans_[span].second = device_.free_;
    }
    void wait(std::size_t span) override { sleep_until(spans_[span].second); }
    double length(std::size_t span) const override {
      return device_.stretch * (spans_[span].second - spans_[span].first);
    }
    double between_ends(std::size_t first, std::size_t second) const override {
      return device_.stretch * (spans_[second].second - spans_[first].second);
    }

   private:
    AheadDevice& device_;
    std::vector<std::pair<double, double>> spans_;
  };

  static void sleep_until(double when) {
    std::this_thread::sleep_for(std::chrono::duration<double>(when - steady_seconds()));
  }

  double free_ = 0;  // when all that was queued is done, on steady_seconds()
  int done_ = 0;     // of what was given
};

}  // namespace redline::testing
