// Where MPI was not built it says so; ranks on CPUs of several machines take TCP.
#include "base/error.h"
#include "dist/cpu_group.h"

namespace redline::dist {

EngineStatus mpi_status() { return {false, "", "this redline was built without MPI"}; }
bool started_by_mpi() { return false; }

std::unique_ptr<Group> open_mpi(Control&) {
  fail_user(
      "ranks on CPUs of several machines need MPI, and {}; install libopenmpi-dev and openmpi-bin and build again",
      mpi_status().problem);
}

}  // namespace redline::dist
