// kernels.tuning: how a device finds the algorithm of each product from here on. The setting belongs to the device, as
// the plans do, and not to a program, whose results stay the same.
#pragma once

#include <string_view>

#include "device/device.h"

namespace redline::program {

// `tuning`: "off", "on" or "max". Only a card has a choice; without CUDA, program/no_cuda.cpp stands in.
void tune_products(device::Device& device, std::string_view tuning);

}  // namespace redline::program
