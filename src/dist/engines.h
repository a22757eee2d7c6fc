// The engines that move tensors between ranks: MPI between CPUs, NCCL between cards. Each is a folder that is built
// where its library is found, and a file that says so where it is not (no_mpi.cpp, no_nccl.cpp).
#pragma once

#include <memory>
#include <string>

#include "device/device.h"
#include "dist/control.h"
#include "dist/group.h"

namespace redline::dist {

// The line of `redline info` about an engine.
struct EngineStatus {
  bool built = false;
  std::string name;     // "Open MPI 4.1.4", "NCCL 2.28.9"; empty: not known
  std::string problem;  // why it cannot be used; empty: it can
};
EngineStatus mpi_status();
EngineStatus nccl_status();

// All ranks open one group each at the same time, and close it once all are done with it, behind their goodbye for
// instance. Its collectives are counted for `control`, which outlives it. A combination that cannot work, such as CPU
// ranks that mpirun did not start, is a UserError.
std::unique_ptr<Group> open_mpi(Control& control);
std::unique_ptr<Group> open_nccl(device::Device& card, Control& control);

// The one for the device.
std::unique_ptr<Group> open_group(device::Device& device, Control& control);

}  // namespace redline::dist
