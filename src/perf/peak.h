// What the device can do at best: the yardstick of MFU. A card's datasheet says it, anything else is measured.
#pragma once

#include <string>

#include "device/device.h"

namespace redline::perf {

struct Peak {
  double flops = 0;    // a second
  std::string source;  // "datasheet, dense bf16", "measured: fp32 product of 1024 x 1024 x 1024"
  bool measured = false;
};

// A card of the table (perf/cards.h) by its datasheet. Otherwise the best of several products within about 0.4 s,
// through the same kernel that training uses: fp32 on the CPU, bf16 on a card.
Peak find_peak(device::Device& device);
Peak measure_peak(device::Device& device);  // whatever a datasheet says

// Bytes a second of a large copy, read and written bytes together: what kernels that only move memory are held against.
double measure_copy_rate(device::Device& device);
double measure_cuda_copy_rate(device::Device& device);  // without CUDA, perf/no_cuda.cpp

// Of a card that no datasheet is known for. Without CUDA, perf/no_cuda.cpp.
Peak measure_cuda_peak(device::Device& device);

// The library behind the CPU's products: "OpenBLAS 0.3.21", and the kind of core whose kernels it chose.
struct BlasLibrary {
  std::string version, core;
};
BlasLibrary blas_library();

// The libraries behind a card's products and attention. Without CUDA, perf/no_cuda.cpp: nothing.
struct CardLibraries {
  std::string cublaslt, cudnn;                  // versions; empty: not built in, or not to be had
  std::string cublaslt_problem, cudnn_problem;  // why one is not used; empty where it is
};
CardLibraries card_libraries();

}  // namespace redline::perf
