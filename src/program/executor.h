// Binds a set of programs to a device once (one arena, every address), then only runs them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/signals.h"
#include "device/device.h"
#include "ops/fp8.h"
#include "program/program_set.h"

namespace redline::dist {
class Group;
}

namespace redline::program {

// Hears the time of every node of a profiled run, in seconds on a steady clock.
class NodeTimer {
 public:
  virtual ~NodeTimer() = default;
  virtual void node(const Node& node, double begin, double end) = 0;
};

using NodeWatch = std::function<void(const Node& written)>;

class Executor {
 public:
  virtual ~Executor() = default;

  // Queues work in order; only read() and wait() wait for it. With a timer the run is over when this returns. Where
  // `stop` is set the run throws Interrupted, before it begins or, on the CPU, in the middle: its results are undefined
  // then.
  virtual void run(std::string_view program, NodeTimer* timer = nullptr, const StopFlag* stop = nullptr) = 0;
  // The same run node by node, with the same bits. After each node the watch may queue a look at its results.
  virtual void run_watched(std::string_view program, const NodeWatch& written, const StopFlag* stop = nullptr) = 0;
  // Queues a count over a value of eight bits, which adds to one of an array of ops::Fp8Count.
  virtual void count(ValueId copy, ValueId counts, std::int64_t index) = 0;
  // Waits until the pairs that the last run of a program started are done. Any thread may call it, one at a time with
  // runs of that program.
  virtual void wait(std::string_view program) = 0;
  // Sets the kind of the next batch: runs take the program's variant for it, where there is one.
  virtual void expect(ops::Documents documents) = 0;
  // Sets the number of the step that is under way: runs take the program's variant for it, where there is one.
  virtual void at_step(std::uint64_t step) = 0;
  virtual Tensor tensor(ValueId id) const = 0;  // its view in the arena of its memory

  virtual void write(ValueId id, const void* host, std::int64_t bytes) = 0;
  virtual void write(ValueId id, const void* host, std::int64_t bytes, std::int64_t offset) = 0;  // a part of it
  virtual void read(ValueId id, void* host, std::int64_t bytes) = 0;
  template <class T>
  void write(ValueId id, const std::vector<T>& all) {
    write(id, all.data(), static_cast<std::int64_t>(all.size() * sizeof(T)));
  }
  template <class T>
  void read(ValueId id, std::vector<T>& all) {
    read(id, all.data(), static_cast<std::int64_t>(all.size() * sizeof(T)));
  }
  virtual void clear(ValueId id) = 0;            // to zero
  virtual void poison_transients() = 0;          // to NaN: nothing may read what no node wrote
  virtual std::int64_t arena_bytes() const = 0;  // really allocated on the device, without snapshots
  // The host's memory for snapshots, where it comes late (ExecutorOptions). The first begins to make it, on a thread,
  // and returns. The other waits until it is made, and says whether there is any: programs over snapshots run only
  // then, and their tensors have addresses only then.
  virtual void begin_snapshots() = 0;
  virtual bool has_snapshots() = 0;
  // Steady seconds at which the parts of the executor were there, one after the other.
  struct Made {
    double memory = 0, host_memory = 0, products = 0;
  };
  virtual const Made& made() const = 0;
  virtual double choosing() const { return 0; }  // seconds in which a card chose kernels, in first runs
  // Seconds so far in which nodes waited for other ranks; empty where the device does not count them.
  virtual std::optional<double> waited_for_ranks() const { return {}; }
};

// How programs run, where a device leaves a choice.
struct ExecutorOptions {
  bool graphs = true;            // CUDA: replay a program as a captured graph; off: launch node by node
  dist::Group* group = nullptr;  // runs the collectives of programs that have any; it outlives the executor
  bool late_snapshots = false;   // the host's memory for snapshots is made when it is asked for, not at once
};

// The set must be planned, and outlive the executor.
std::unique_ptr<Executor> make_executor(const ProgramSet& set, device::Device& device,
                                        const ExecutorOptions& options = {});

// Begins to load the libraries that programs on a card use, on a thread: their files are large.
void load_libraries(device::Device& device);

// kernels.tuning ("off", "on" or "max"): how a device finds the algorithm of each product from here on. The setting
// belongs to the device, as the plans do, and not to a program, whose results stay the same. Only a card has a choice;
// without CUDA, program/no_cuda.cpp stands in. The seconds that measuring may take at a start begin anew, or go on
// where the last call began them: one start has them once.
enum class TuningTime { begins, goes_on };
void tune_products(device::Device& device, std::string_view tuning, TuningTime time = TuningTime::begins);

}  // namespace redline::program
