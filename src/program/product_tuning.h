// kernels.tuning: how a device finds the algorithm of each product from here on. It belongs to the device, as the plans
// that come of it do, and not to a program: what is computed stays the same.
#pragma once

#include <string_view>

#include "device/device.h"

namespace redline::program {

// `tuning`: "off", "on" or "max". Only a card has a choice; without CUDA, program/no_cuda.cpp.
void tune_products(device::Device& device, std::string_view tuning);

}  // namespace redline::program
