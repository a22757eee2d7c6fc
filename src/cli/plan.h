// What the plans of `redline plan` share: for one card (plan.cpp), for each card of the table (plan_cards.cpp) and for
// many of one card (plan_gpus.cpp).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cli/signals.h"
#include "config/config.h"
#include "io/json_fwd.h"
#include "perf/plan.h"
#include "perf/search.h"

namespace redline::cli {

// The kinds of a device's memory. `ranks`: only several have them.
using perf::MemoryKinds;
struct MemoryKind {
  std::string_view name;
  std::int64_t MemoryKinds::*bytes;
  bool ranks = false;
};
inline constexpr MemoryKind kMemoryKinds[] = {{"masters", &MemoryKinds::masters},
                                              {"working copies", &MemoryKinds::working_copies},
                                              {"gradients", &MemoryKinds::gradients},
                                              {"moments", &MemoryKinds::moments},
                                              {"averages", &MemoryKinds::averages},
                                              {"gathered", &MemoryKinds::gathered, true},
                                              {"activations", &MemoryKinds::activations},
                                              {"workspace", &MemoryKinds::workspace},
                                              {"communication", &MemoryKinds::communication, true},
                                              {"inputs", &MemoryKinds::inputs},
                                              {"context", &MemoryKinds::context}};
io::Json memory_json(const MemoryKinds& m, bool ranks);

std::string size(std::int64_t bytes);
std::string hours_in_words(double hours);
// "6.92B parameters, 1.28B active": a token's products take fewer where it goes to some experts of many.
std::string parameters_of(const perf::Plan& plan);
// Why the steps of a run are not known.
std::string no_end(const config::Config& config);
// The progress line. A preset takes a moment; a deep model on many cards takes longer.
perf::SearchOptions plan_progress();

// What rows hold: which setting pads them, and how much; as JSON null where they are full.
std::string padding_in_words(const config::Config& config, const perf::Filled& filled);
io::Json filling_json(const config::Config& config, const std::optional<perf::Filled>& filled);
// "real token" where rows are planned with padding.
std::string_view token_name(const std::optional<perf::Filled>& filled);

// Says where a picture of a planned step lies, and of what.
void print_trace(const std::string& file, std::string_view of);

// `redline plan --cards` prints its table, and holds signals back meanwhile.
void plan_cards(const std::string& name, const config::Config& config, const std::optional<perf::Filled>& filled,
                bool json, StopAtOnce& stopping);

// `redline plan --gpus N` prints its plan, and holds signals back meanwhile. `card` is an id of the table of cards. An
// empty one, for a machine that is not in it, is a UserError.
struct GpusWanted {
  std::int64_t gpus = 0;      // 0: a plan for one
  std::int64_t per_node = 0;  // connected by NVLink or PCIe; 0: 8
  std::int64_t nics = 0;      // of a node; 0: one for each GPU
  std::string network;        // empty: parallel.network
  std::string trace;          // a file for a picture of a step, of several that of the choice; empty: none
};
void plan_gpus(const std::string& name, const config::Config& config, const perf::Machine& machine,
               const std::string& card, const std::optional<perf::Filled>& filled, const GpusWanted& wanted, bool json,
               StopAtOnce& stopping);

}  // namespace redline::cli
