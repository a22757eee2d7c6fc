// Measurements on a card, in a build without CUDA: each throws, since there is no card to ask.
#include "base/error.h"
#include "perf/fp8_choice.h"
#include "perf/peak.h"

namespace redline::perf {

Peak measure_cuda_peak(device::Device&) { fail_machine("measure_cuda_peak: this redline was built without CUDA"); }
double measure_cuda_copy_rate(device::Device&) {
  fail_machine("measure_cuda_copy_rate: this redline was built without CUDA");
}

TimeNodes time_on_card(device::Device&) { fail_machine("time_on_card: this redline was built without CUDA"); }

CardLibraries card_libraries() { return {}; }

}  // namespace redline::perf
