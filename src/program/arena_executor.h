// The common part of executors: it allocates an arena for each memory by the plan, binds every op to its addresses, and
// moves values in and out. A backend adds how a program runs.
#pragma once

#include <future>
#include <memory>
#include <span>
#include <vector>

#include "program/executor.h"
#include "program/program.h"

namespace redline::program {

class ArenaExecutor : public Executor {
 public:
  ArenaExecutor(const ProgramSet& set, device::Device& device, bool late_snapshots);  // begin() is still to be called

  void run_watched(std::string_view program, const NodeWatch& written, const StopFlag* stop) final;
  void count(ValueId copy, ValueId counts, std::int64_t index) final;
  void expect(ops::Documents documents) final { documents_ = documents; }
  void at_step(std::uint64_t step) final { step_ = step; }
  Tensor tensor(ValueId id) const final;
  void write(ValueId id, const void* host, std::int64_t bytes) final;
  void write(ValueId id, const void* host, std::int64_t bytes, std::int64_t offset) final;
  void read(ValueId id, void* host, std::int64_t bytes) final;
  void clear(ValueId id) final;
  void poison_transients() final;
  std::int64_t arena_bytes() const final { return arena_->bytes() - set_.memory.device.snapshot; }
  void begin_snapshots() final;
  bool has_snapshots() final;
  const Made& made() const final { return made_; }

 protected:
  // Gives persistent values their first contents: zeros and constants. A backend's constructor calls it at its end, and
  // may use the whole arena for anything before.
  void begin();
  std::span<std::byte> arena() const { return {arena_->data(), static_cast<std::size_t>(arena_->bytes())}; }
  const ProgramSet& set() const { return set_; }
  std::size_t index_of(std::string_view program) const;  // in set().programs, of the variant for the batch
  const std::vector<BoundOp>& ops(std::size_t program) const { return bound_[program]; }
  std::size_t pairs() const;                            // one more than the largest number of a pair in any program
  bool within_host(const ops::Copy<Tensor>& op) const;  // it copies from the host's memory to the host's
  virtual void run_one(const BoundOp& op) = 0;          // after what is queued
  virtual void count_in(const ops::CountFp8<Tensor>& op) = 0;
  Made made_;  // `products` is the backend's

 private:
  BoundOp bind(const Op& op) const;
  void bind_programs();  // those that were not, and have all their memory
  bool has_memory(const Program& program) const;
  bool in_snapshots(std::size_t value) const;  // in those of the host's memory
  void check_size(ValueId id, std::int64_t bytes) const;

  const ProgramSet& set_;
  device::Device& device_;
  std::unique_ptr<device::Buffer> arena_, host_arena_;             // the latter where a value lies in the host's memory
  std::unique_ptr<device::Buffer> snapshots_;                      // of the host's memory, behind its arena by the plan
  std::future<std::unique_ptr<device::Buffer>> coming_snapshots_;  // while they are made
  bool asked_for_snapshots_ = false;
  std::vector<std::vector<BoundOp>> bound_;  // by program
  ops::Documents documents_ = ops::Documents::packed;
  std::uint64_t step_ = kAnyStep;
};

// One maker of executors a backend; make_executor chooses among them.
std::unique_ptr<Executor> make_cpu_executor(const ProgramSet& set, device::CpuDevice& device,
                                            const ExecutorOptions& options);

// Without CUDA, program/no_cuda.cpp stands in.
std::unique_ptr<Executor> make_cuda_executor(const ProgramSet& set, device::Device& device,
                                             const ExecutorOptions& options);

}  // namespace redline::program
