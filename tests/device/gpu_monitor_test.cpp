// A card is watched through whatever library answers to NVML's names; without one there is no monitor and no error.
#include "device/gpu_monitor.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

namespace redline::device {
namespace {

GpuSample first_sample(const GpuMonitor& monitor) {
  for (int i = 0; i < 500; ++i) {
    if (const std::optional<GpuSample> sample = monitor.latest()) return *sample;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ADD_FAILURE() << "no sample within 5 s";
  return {};
}

TEST(GpuMonitor, TellsWhatTheCardSays) {
  const auto monitor = GpuMonitor::open("0000:1B:00.0", REDLINE_FAKE_NVML);
  ASSERT_TRUE(monitor);
  const GpuSample s = first_sample(*monitor);
  EXPECT_EQ(s.utilisation, 0.97);
  EXPECT_EQ(s.memory, 0.9);
  EXPECT_EQ(s.temperature_c, 71);
  EXPECT_DOUBLE_EQ(s.power_w.value(), 650.5);
  EXPECT_EQ(s.clock_mhz, 1410);
  EXPECT_EQ(s.max_clock_mhz, 1980);
  EXPECT_EQ(s.throttle, "power cap, heat");
  EXPECT_FALSE(s.power_limit_w);  // a call that the library lacks
}

TEST(GpuMonitor, WithoutAnIdItIsTheFirstCardAndWhatFailsIsEmpty) {
  const auto monitor = GpuMonitor::open("", REDLINE_FAKE_NVML);
  ASSERT_TRUE(monitor);
  const GpuSample s = first_sample(*monitor);
  EXPECT_FALSE(s.temperature_c);
  EXPECT_FALSE(s.energy_j);
  EXPECT_EQ(s.utilisation, 0.97);
}

// The counter began with the driver, at some gigajoule.
TEST(GpuMonitor, EnergyCountsFromItsOpening) {
  const auto monitor = GpuMonitor::open("0000:1B:00.0", REDLINE_FAKE_NVML, std::chrono::milliseconds(1));
  ASSERT_TRUE(monitor);
  const double first = first_sample(*monitor).energy_j.value();
  EXPECT_GE(first, 0);
  EXPECT_LT(first, 1000);
  double later = first;
  for (int i = 0; i < 500 && later < first + 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    later = monitor->latest()->energy_j.value();
  }
  EXPECT_GE(later, first + 3);
  EXPECT_NEAR(std::remainder(later, 1.5), 0, 1e-6);
}

TEST(GpuMonitor, EndsAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  GpuMonitor::open("", REDLINE_FAKE_NVML).reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(900));  // not the interval
}

TEST(GpuMonitor, IsNotThereWithoutTheLibraryOrTheCard) {
  EXPECT_FALSE(GpuMonitor::open("", "libno-such-library.so.1"));
  EXPECT_FALSE(GpuMonitor::open("0000:FF:00.0", REDLINE_FAKE_NVML));
  EXPECT_FALSE(GpuMonitor::open("", "libc.so.6"));  // a library without the names
}

TEST(GpuMonitor, OnlyReasonsThatSlowWorkDownAreToldOf) {
  EXPECT_EQ(throttle_in_words(0x1 | 0x2 | 0x10 | 0x100), "");
  EXPECT_EQ(throttle_in_words(0x40), "heat (hardware)");
  EXPECT_EQ(throttle_in_words(0x8 | 0x80), "hardware slowdown, power brake");
}

}  // namespace
}  // namespace redline::device
