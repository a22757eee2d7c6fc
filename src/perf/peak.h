// What the device can do at best, measured: the yardstick of MFU where no datasheet says it.
#pragma once

#include <string>

#include "device/device.h"

namespace redline::perf {

struct Peak {
  double flops = 0;    // a second
  std::string source;  // "measured: fp32 product of 1024 x 1024 x 1024"
};

// The best of several products within about 0.4 s, through the same kernel that training uses.
Peak measure_peak(device::Device& device);

// The library behind the CPU's products: "OpenBLAS 0.3.21", and the kind of core whose kernels it chose.
struct BlasLibrary {
  std::string version, core;
};
BlasLibrary blas_library();

}  // namespace redline::perf
