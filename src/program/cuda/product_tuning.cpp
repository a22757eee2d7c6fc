// The word of kernels.tuning for the plans of a card's products.
#include "program/product_tuning.h"

#include "device/cuda/device.h"
#include "ops/cuda/gemm.h"

namespace redline::program {

void tune_products(device::Device& device, std::string_view tuning) {
  if (device.kind() != device::Kind::cuda) return;
  using enum ops::cuda::Tuning;
  ops::cuda::set_tuning(tuning == "off"   ? off
                        : tuning == "max" ? max
                                          : on,
                        static_cast<device::CudaDevice&>(device).launch());
}

}  // namespace redline::program
