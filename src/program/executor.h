// Binds a set of programs to a device once (one arena, every address), then only runs them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "device/device.h"
#include "program/program.h"

namespace redline::program {

// Told the time of every node when a run is being profiled; seconds on a steady clock.
class NodeTimer {
 public:
  virtual ~NodeTimer() = default;
  virtual void node(const Node& node, double begin, double end) = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;

  // Work is queued in order; only read() and take() wait for it. With a timer the run is over when it returns.
  virtual void run(std::string_view program, NodeTimer* timer = nullptr) = 0;
  // Whether every document of the batch that comes next is as long as a row, and no token is left over: a device may have
  // a faster way for that, and keeps the runs of both kinds apart.
  virtual void expect_full_rows(bool /*full*/) {}
  virtual Tensor tensor(ValueId id) const = 0;  // its view in the arena; device memory

  virtual void write(ValueId id, const void* host, std::int64_t bytes) = 0;
  virtual void write(ValueId id, const void* host, std::int64_t bytes, std::int64_t offset) = 0;  // a part of it
  virtual void read(ValueId id, void* host, std::int64_t bytes) = 0;
  // Sends the values to the host behind the queued work; take() waits for the oldest that were sent, and for no more.
  // All letters hold the same values.
  virtual void post(std::span<const ValueId> ids) = 0;
  virtual void take(void* host) = 0;
  virtual void clear(ValueId id) = 0;            // to zero
  virtual void poison_transients() = 0;          // to NaN: nothing may read what no node wrote
  virtual std::int64_t arena_bytes() const = 0;  // really allocated
};

// How programs run, where a device leaves a choice. The CPU leaves none.
struct ExecutorOptions {
  bool graphs = true;              // CUDA: replay a program as a captured graph; off: launch node by node
  bool tf32 = false;               // CUDA: products of fp32 values round them to tf32
  std::string attention = "auto";  // CUDA: who computes it
  bool deterministic = false;      // CUDA: runs repeat bit for bit
};

// The set must be planned, and outlive the executor.
std::unique_ptr<Executor> make_executor(const ProgramSet& set, device::Device& device,
                                        const ExecutorOptions& options = {});

}  // namespace redline::program
