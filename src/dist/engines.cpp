// The choice of an engine by the device.
#include "dist/engines.h"

#include "base/error.h"

namespace redline::dist {

std::unique_ptr<Group> open_group(device::Device& device, Control& control) {
  switch (device.kind()) {
    case device::Kind::cpu: return open_mpi(control);
    case device::Kind::cuda: return open_nccl(device, control);
  }
  fail_machine("open_group: a device of an unknown kind");
}

}  // namespace redline::dist
