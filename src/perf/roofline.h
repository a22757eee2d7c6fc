// The roofline expects a program's time on a machine before it runs there. Each node takes the longer of its products
// and its bytes, at the rates that such nodes reach. One table has these rates, as shares of the machine's peaks.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "perf/cards.h"
#include "program/program_set.h"

namespace redline::perf {

// Copies from the host and to it at once.
struct BothWays {
  double share = 1;  // of the rate of one way at a time, that each of both has
  double slows = 0;  // nodes that compute meanwhile take longer by this share of that time
};

// The machine that a run is planned for.
struct Machine {
  std::string name;    // "H200 SXM", "CPU (2 threads, Neoverse-V1)"
  std::string source;  // where its rates come from: "datasheet", "measured ..."
  device::Kind kind = device::Kind::cuda;
  double peak_flops = 0;  // FLOP/s, the yardstick of MFU
  ProductRates tflops;    // by the type of operands; on the CPU fp32 alone
  double copy_rate = 0;   // bytes a second, read and written, of a large copy
  double host_rate = 0;   // bytes a second from the host's memory or to it, one way at a time
  BothWays both_ways = {};
  std::int64_t memory = 0;      // bytes that a process may take in all
  std::int64_t in_context = 0;  // of them, by the driver's context and the libraries' kernels
  // Of the host, what is free where the machine is this one; any other's has what a run takes.
  std::int64_t host_memory = std::numeric_limits<std::int64_t>::max();
};

// A card of the table. Large copies are taken to reach the share of its bandwidth that was measured on an H200.
Machine machine_of(const Card& card);

// The device at hand: a card of the table by its datasheet, any other by measurement.
Machine machine_of(device::Device& device);

// The rates that one kind of op reaches.
struct Efficiency {
  std::string_view op;
  double products = 0;  // of the rate of dense products, when all three extents are large
  double moving = 0;    // of the copy rate
  std::string_view measured;
};
std::span<const Efficiency> efficiencies(device::Kind kind);
// The row of an op. One that has none, as a new op may, is expected to reach half of what the machine can do.
const Efficiency& efficiency(device::Kind kind, std::string_view op);

// Seconds of each node, with the gap to the next, on a batch whose rows are one document of `seq_len` tokens each. Of a
// collective it is what the rank itself reads and writes: the network's time is perf/walk's.
std::vector<double> node_seconds(const program::ProgramSet& set, const program::Program& program, double rows,
                                 double seq_len, const Machine& machine);
double seconds_between_nodes(device::Kind kind);  // of a graph on a card; a CPU's are function calls

// The array that a collective sends, or receives; nothing for any other node.
struct Sent {
  Collective collective = Collective::all_reduce;
  double bytes = 0;
  int among = 0;  // ranks that follow each other; 0: all of them,
  int apart = 1;  // or every so-manieth
};
std::optional<Sent> sent_by(const program::Node& node, const program::ProgramSet& set);

}  // namespace redline::perf
