// Ranks on cards where NCCL was not built: it says so.
#include "base/error.h"
#include "dist/group.h"

namespace redline::dist {

EngineStatus nccl_status() { return {false, "", "this redline was built without NCCL"}; }

std::unique_ptr<Group> open_nccl(device::Device&, Control&) {
  fail_user("several ranks on cards need NCCL, and {}; install its header and build again", nccl_status().problem);
}

}  // namespace redline::dist
