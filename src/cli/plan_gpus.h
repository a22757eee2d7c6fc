// redline plan --gpus N: the same configuration on many cards.
#pragma once

#include <cstdint>
#include <string>

#include "cli/stop_at_once.h"
#include "config/config.h"
#include "perf/choose.h"

namespace redline::cli {

struct GpusAsked {
  std::int64_t gpus = 0;      // 0: nobody asked
  std::int64_t per_node = 0;  // connected by NVLink or PCIe; 0: 8
  std::int64_t nics = 0;      // of a node; 0: one for each GPU
  std::string network;        // empty: ndr
};

// The progress line of a choice of micro-batches that takes long.
perf::ChooseProgress plan_progress();

// Prints the plan, and holds signals back meanwhile. `card` is an id of the table of cards. An empty one, for a machine
// that is not in it, is a UserError.
void plan_gpus(const std::string& name, const config::Config& config, const perf::Machine& machine,
               const std::string& card, const GpusAsked& asked, bool json, StopAtOnce& stopping);

}  // namespace redline::cli
