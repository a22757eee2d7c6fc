// How long a program should take on a machine before it has run there: each node the longer of its products and its
// bytes, at the rates that such nodes reach. The rates are shares of what a datasheet or a measurement promises, in one
// table.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "perf/cards.h"
#include "program/program.h"

namespace redline::perf {

// What a run is planned for.
struct Machine {
  std::string name;    // "H200 SXM", "CPU (2 threads, Neoverse-V1)"
  std::string source;  // where its rates come from: "datasheet", "measured ..."
  device::Kind kind = device::Kind::cuda;
  double peak_flops = 0;        // what MFU is held against, a second
  ProductRates tflops;          // by what products take; on the CPU fp32 alone
  double copy_rate = 0;         // bytes a second, read and written, of a large copy
  std::int64_t memory = 0;      // bytes that a process may take in all
  std::int64_t in_context = 0;  // of them, by the driver's context and the libraries' kernels
};

// A card of the table as redline would find it. What large copies reach of its bandwidth is the share measured on an
// H200.
Machine machine_of(const Card& card);

// The device that is there: a card of the table by its datasheet, anything else by what it is measured to do.
Machine machine_of(device::Device& device);

// What one kind of op reaches.
struct Efficiency {
  std::string_view op;
  double products = 0;  // of the rate of dense products, when all three extents are large
  double moving = 0;    // of the copy rate
  std::string_view measured;
};
std::span<const Efficiency> efficiencies(device::Kind kind);

// Of one run of a program on a batch of rows that are one document of `seq_len` tokens each.
double expected_seconds(const program::ProgramSet& set, std::string_view program, double rows, double seq_len,
                        const Machine& machine);
// Of those nodes of it that count.
double expected_seconds(const program::ProgramSet& set, std::string_view program, double rows, double seq_len,
                        const Machine& machine, const std::function<bool(const program::Node&)>& counts);
// Of each of its nodes, with what lies between it and the next.
std::vector<double> node_seconds(const program::ProgramSet& set, const program::Program& program, double rows,
                                 double seq_len, const Machine& machine);
double seconds_between_nodes(device::Kind kind);  // of a graph on a card; a CPU's are function calls

}  // namespace redline::perf
