// The collectives of ranks, as ops of a program, and the group that runs them: shared memory between CPUs of one
// machine, MPI between those of several, NCCL between cards. An engine that needs a library is a folder that is built
// where it is found, and a file that says so where it is not (no_mpi.cpp, no_nccl.cpp). Membership and agreement are in
// dist/control.h.
//
// Arrays that are shared out stand in the order of the parameters' flat layout (base/shards.h): `begin` is where an
// operand begins there. Where fewer ranks hold one copy of such an array than there are, ranks that follow each other
// do, and a collective over shards is one among them. All ranks run the same collectives in the same order. Between
// CPUs neighbours are added first, then pairs of them, and so on, so that sums of 2, 4, 8 ranks that follow each other
// are part of the sum of all; a card's library has an order of its own.
#pragma once

#include <memory>
#include <string>

#include "base/shards.h"
#include "base/tensor.h"

namespace redline::device {
class Device;
}

namespace redline::dist {

class Control;

// data = sum over ranks, or the largest of theirs: over all, or over every `apart`-th, of which this rank is one.
template <class T>
struct AllReduce {
  static constexpr std::string_view kName = "all_reduce";
  T data;    // [N]  in place, or absent: this rank and those it would add up with have nothing of it
  T wire{};  // [N] bf16 scratch that is sent; absent: data is sent as it is
  bool largest{};
  int apart{1};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", data, Access::read));
    return AllReduce<U>{f("data", data, Access::update), f("wire", wire, Access::write), largest, apart};
  }
};

// Every rank gets the sum of its own part: elements of its shard that lie in [begin, begin + N).
template <class T>
struct ReduceShards {
  static constexpr std::string_view kName = "reduce_shards";
  T data;                // [N]  in place: the own part is the sum where there is no `shard`; the rest is undefined,
                         //     but zeros of all ranks stay zeros
  T shard{};             // [own part]  = or +=; absent: the sum stays in data, or there is no own part
  T wire{};              // [N] bf16 scratch, or absent
  Shards shards{};       // of the whole array
  std::int64_t begin{};  // of data
  bool accumulate{};     // shard +=
  bool in_place = true;  // shard is absent because the sum stays in data

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", data, Access::read));
    return ReduceShards<U>{f("data", data, Access::update),
                           f("shard", shard, written_or_added(accumulate)),
                           f("wire", wire, Access::write),
                           shards,
                           begin,
                           accumulate,
                           in_place};
  }
};

// Every rank gets all parts of [begin, begin + N), each from its owner.
template <class T>
struct GatherShards {
  static constexpr std::string_view kName = "gather_shards";
  T shard{};             // [own part]; absent: it stands in data already, or there is no own part
  T data;                // [N]  =, or in place
  Shards shards{};       // of the whole array
  std::int64_t begin{};  // of data
  bool in_place = true;  // the own part stands in data already

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", data, Access::read));
    return GatherShards<U>{f("shard", shard, Access::read), f("data", data, in_place ? Access::update : Access::write),
                           shards, begin, in_place};
  }
};

// Ranks change places of blocks within groups of `among` ranks that follow each other: block r of `to` is the one that
// rank r of the group has for this rank in its `from`.
template <class T>
struct AllToAll {
  static constexpr std::string_view kName = "all_to_all";
  T from;  // [among, ...]
  T to;    // [among, ...]  =
  int among{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", from, Access::read));
    return AllToAll<U>{f("from", from, Access::read), f("to", to, Access::write), among};
  }
};

class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  virtual std::string engine() const = 0;  // "shared memory", "Open MPI 4.1.4", "NCCL 2.28.9"

  // All ranks call the same ones in the same order, each rank from one thread at a time. On a card the work is queued
  // on `stream`; on the CPU it is done when the call returns, and `stream` is null.
  virtual void run(const AllReduce<Tensor>& op, void* stream) = 0;
  virtual void run(const ReduceShards<Tensor>& op, void* stream) = 0;
  virtual void run(const GatherShards<Tensor>& op, void* stream) = 0;
  virtual void run(const AllToAll<Tensor>& op, void* stream) = 0;
};

// The line of `redline info` about an engine.
struct EngineStatus {
  bool built = false;
  std::string name;     // "Open MPI 4.1.4", "NCCL 2.28.9"; empty: not known
  std::string problem;  // why it cannot be used; empty: it can
};
EngineStatus mpi_status();
EngineStatus nccl_status();

// All ranks open one group each at the same time, and close it once all are done with it, after their goodbye for
// instance. Its collectives are counted for `control`, which outlives it. A combination that cannot work, such as CPU
// ranks of several machines that MPI did not start, is a UserError.
std::unique_ptr<Group> open_cpu(Control& control);  // one of the next two
std::unique_ptr<Group> open_shared_memory(Control& control);
std::unique_ptr<Group> open_mpi(Control& control);
std::unique_ptr<Group> open_nccl(device::Device& card, Control& control);

}  // namespace redline::dist
