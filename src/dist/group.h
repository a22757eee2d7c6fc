// The ranks of a run as an engine connects them: MPI between CPUs, NCCL between cards. It moves tensors; membership and
// agreement are in dist/control.h.
#pragma once

#include <memory>
#include <string>

#include "base/tensor.h"
#include "device/device.h"
#include "dist/collectives.h"

namespace redline::dist {

class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  virtual std::string engine() const = 0;  // "OpenMPI 4.1.4", "NCCL 2.28.9"

  // All ranks call the same ones in the same order, each rank from one thread at a time. On a card the work is queued
  // on `stream`; on the CPU it is done when the call returns, and `stream` is null.
  virtual void run(const AllReduce<Tensor>& op, void* stream) = 0;
  virtual void run(const ReduceShards<Tensor>& op, void* stream) = 0;
  virtual void run(const GatherShards<Tensor>& op, void* stream) = 0;
};

}  // namespace redline::dist
