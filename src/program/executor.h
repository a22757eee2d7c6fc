// Binds a set of programs to a device once (one arena, every address), then only runs them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/interrupt.h"
#include "device/device.h"
#include "dist/group.h"
#include "ops/count_fp8.h"
#include "program/program.h"

namespace redline::program {

// Told the time of every node when a run is being profiled; seconds on a steady clock.
class NodeTimer {
 public:
  virtual ~NodeTimer() = default;
  virtual void node(const Node& node, double begin, double end) = 0;
};

using NodeWatch = std::function<void(const Node& written)>;

class Executor {
 public:
  virtual ~Executor() = default;

  // Work is queued in order; only read() and take() wait for it. With a timer the run is over when it returns. Where
  // `stop` is set the run ends with an Interrupted, before it begins or, on the CPU, wherever it is: what it writes is
  // undefined then.
  virtual void run(std::string_view program, NodeTimer* timer = nullptr, const StopFlag* stop = nullptr) = 0;
  // The same run node by node, with the same bits; behind each one the watch may queue a look at what it wrote.
  virtual void run_watched(std::string_view program, const NodeWatch& written, const StopFlag* stop = nullptr) = 0;
  // Counts in a value of eight bits, behind the queued work; counted() waits, and has one for each since the last time.
  virtual void count(ValueId copy) = 0;
  virtual std::vector<ops::Fp8Count> counted() = 0;
  // The kind of the batch that comes next: runs take the program's variant for it, where there is one.
  virtual void expect(ops::Documents documents) = 0;
  virtual Tensor tensor(ValueId id) const = 0;  // its view in the arena; device memory

  virtual void write(ValueId id, const void* host, std::int64_t bytes) = 0;
  virtual void write(ValueId id, const void* host, std::int64_t bytes, std::int64_t offset) = 0;  // a part of it
  virtual void read(ValueId id, void* host, std::int64_t bytes) = 0;
  // Sends the values to the host behind the queued work; take() waits for the oldest that were sent, and for no more.
  // All results hold the same values.
  virtual void post(std::span<const ValueId> ids) = 0;
  virtual void take(void* host) = 0;
  virtual void clear(ValueId id) = 0;            // to zero
  virtual void poison_transients() = 0;          // to NaN: nothing may read what no node wrote
  virtual std::int64_t arena_bytes() const = 0;  // really allocated
  // Seconds so far in which nodes waited for other ranks; nothing where the device does not tell.
  virtual std::optional<double> waited_for_ranks() const { return {}; }
};

// How programs run, where a device leaves a choice.
struct ExecutorOptions {
  bool graphs = true;            // CUDA: replay a program as a captured graph; off: launch node by node
  dist::Group* group = nullptr;  // runs the collectives of programs that have any; it outlives the executor
};

// The set must be planned, and outlive the executor.
std::unique_ptr<Executor> make_executor(const ProgramSet& set, device::Device& device,
                                        const ExecutorOptions& options = {});

}  // namespace redline::program
