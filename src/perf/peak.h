// The peak rate of a device, the yardstick of MFU. It comes from a card's datasheet; any other device is measured.
#pragma once

#include <string>
#include <vector>

#include "device/device.h"

namespace redline::perf {

struct Peak {
  double flops = 0;    // a second
  std::string source;  // "datasheet, dense bf16", "measured: fp32 product of 1024 x 1024 x 1024"
  bool measured = false;
  double usual = 0;  // half of the timed products reached no more; far below `flops` where others use the machine
};

// The datasheet's peak for a card of the table (perf/cards.h). Any other device is measured: the best of several
// products within about 0.4 s, by the kernel that training uses, in fp32 on the CPU and bf16 on a card. A CPU's is what
// neighbours leave of it in that time: `source` says so where the products differ much.
Peak find_peak(device::Device& device);
Peak measure_peak(device::Device& device);  // even where there is a datasheet

// A product that was timed several times, in FLOPs a second each.
struct TimedProduct {
  std::string what;  // "fp32 product of 1024 x 1024 x 1024"
  std::vector<double> rates;
};
// The best rate of all; `source` says "noisy" where the same product was usually much slower.
Peak peak_of(const std::vector<TimedProduct>& products);

// What to say of a peak that was measured at the start of a run and again at its end; empty where they agree. MFU is
// held against the first.
std::string peaks_differ(const Peak& first, const Peak& last);

// Bytes a second of a large copy, read and written together: the yardstick of kernels that only move memory.
double measure_copy_rate(device::Device& device);
double measure_cuda_copy_rate(device::Device& device);  // without CUDA, perf/no_cuda.cpp stands in

// The measured peak of a card. Without CUDA, perf/no_cuda.cpp stands in.
Peak measure_cuda_peak(device::Device& device);

// The library that computes the CPU's products: "OpenBLAS 0.3.21", and the kind of core whose kernels it chose.
struct BlasLibrary {
  std::string version, core;
};
BlasLibrary blas_library();

// The libraries that compute a card's products and attention. Without CUDA (perf/no_cuda.cpp) both are empty.
struct CardLibraries {
  std::string cublaslt, cudnn;                  // versions; empty: not built in, or not found
  std::string cublaslt_problem, cudnn_problem;  // why one is not used; empty where it is
};
CardLibraries card_libraries();

}  // namespace redline::perf
