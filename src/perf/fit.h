// Finds the fastest way for a run to fit: what is computed again, of how many layers, and which arrays lie in the
// host's memory. Each way is lowered, so that its bytes are exact, and its step is expected node by node. No way
// changes a bit of the run, nor any type that it keeps; what coarser moments would buy is told, and not done.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "device/device.h"
#include "dist/sharing.h"
#include "perf/plan.h"
#include "perf/roofline.h"

namespace redline::perf {

// Bytes that the arenas of a rank may take. Ranks of one host share its memory, and on CPUs all of it.
struct Room {
  std::int64_t device = 0, host = 0;
  std::int64_t together = 0;  // where both are one memory, as on the CPU; 0: they are not
  bool holds(std::int64_t on_device, std::int64_t on_host) const {
    return on_device <= device && on_host <= host && (together == 0 || on_device + on_host <= together);
  }
};
// With memory.limit and memory.host_limit. A machine that is elsewhere has as much memory of the host as it takes,
// unless the latter says otherwise.
Room room_on(const config::Config& config, const device::Device& device, int ranks_here);
Room room_on(const config::Config& config, const Machine& machine);
Room least_of(std::span<const Room> rooms);  // of ranks that do the same, on several machines

struct FitWay {
  config::Placement placement;
  std::int64_t device = 0, host = 0;  // bytes of the arenas
  double seconds = 0;                 // of a step, expected
  std::int64_t persistent = 0;        // of the device's bytes: whatever is computed again takes them
};

struct Fit {
  Room room;
  FitWay asked;                   // as the configuration says; it fits where nothing was chosen
  bool fits = false;              // as asked
  std::vector<FitWay> ways = {};  // that fit otherwise, the fastest first; the second is another kind of way
  bool found() const { return fits || !ways.empty(); }
  double seconds() const { return fits || ways.empty() ? asked.seconds : ways[0].seconds; }  // of a step
};
// Whether a configuration leaves the choice: memory.fit, or what is computed again alone.
bool chooses(const config::Config& config);
// Where the run fits as it was asked for, no other way is looked at. Ranks have the bytes of the one that needs most.
Fit find_fit(const config::Config& config, const Machine& machine, const Room& room, const dist::Sharing& sharing = {},
             const Filling& filling = {});
Fit find_fit(const config::Config& config, const Machine& machine);  // on one that is planned for

// The run without the working copies that training does not read; nothing where it has none, or memory.fit moves
// nothing. Hardly a step is slower for it (of Muon, by 0.1%), so whoever looks for batches that fit by themselves takes
// those that fit so, too.
std::optional<config::Config> without_unread_copies(const config::Config& config, device::Kind kind);
// That, where the run does not fit otherwise.
config::Config as_it_fits_by_itself(const config::Config& config, const Machine& machine);

// The fastest of a few other cuts of the step into micro-batches that fit, with bytes elsewhere: for a step that fits
// in no other way. Nothing is measured.
struct MovedCut {
  Setting setting;
  Fit fit;
};
std::optional<MovedCut> cut_that_moves(const config::Config& config, const Machine& machine, const Room& room,
                                       const dist::Sharing& sharing = {}, const Filling& filling = {});

// For a step that fits in no way, as it is cut or otherwise: how much of the host's memory lets it fit, as it is cut if
// that helps, else as `setting`. Nothing: no amount of it does.
struct HostNeed {
  Setting setting;
  std::int64_t bytes = 0;  // the least of the ways that were found
};
std::optional<HostNeed> host_needed(const config::Config& config, const Machine& machine, const Room& room);
// "with 121.40 GiB of the host's memory it would fit (memory.host_limit is 64GiB)".
std::string in_words(const HostNeed& need, const config::Config& config, const Room& room);

// "moments lie in the host's memory, the first 3 layers are computed again": what a placement moves; empty: nothing.
std::string in_words(const config::Placement& placement, const config::Config& config);
// "moments lie in the host's memory (1.20 GiB), ...": what a placement moves, how large it is, and its cost.
inline constexpr std::string_view kAsAsked = "as asked the run", kCutSo = "cut so the run";
std::string in_words(const Fit& fit, const config::Config& config, std::string_view who = kAsAsked);

// What coarser moments, gradients or masters would buy where the run does not fit as asked, and all of them at once
// where that is faster than each alone:
// "optim.moments=8bit: 38.0 GiB less, 12% faster". Where it fits in no way, all that are told let it fit.
std::vector<std::string> gains_of_types(const Fit& fit, const config::Config& config, const Machine& machine,
                                        const Filling& filling = {});

// Puts the fastest way that fits into the configuration, as memory.fit says, and tells it; empty where nothing moves:
// since the run fits, memory.fit is "none", or no way fits and the run will be refused.
std::string place_to_fit(config::Config& config, device::Device& device, const Room& room,
                         const dist::Sharing& sharing = {});

}  // namespace redline::perf
