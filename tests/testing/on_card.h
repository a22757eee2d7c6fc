// Tests that need a CUDA card: on a machine without one they are skipped, with the reason.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "device/cuda/device.h"

namespace redline::testing {

// Base: what the fixture would derive from otherwise.
template <class Base = ::testing::Test>
class OnCard : public Base {
 protected:
  void SetUp() override {
    if (const std::string problem = device::cuda_status().problem; !problem.empty()) GTEST_SKIP() << problem;
    card_ = std::make_unique<device::CudaDevice>();
  }
  device::CudaDevice& card() { return *card_; }

 private:
  std::unique_ptr<device::CudaDevice> card_;
};

}  // namespace redline::testing
