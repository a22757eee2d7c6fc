// Collectives between CPUs. The sums are ours, of neighbours first, then of pairs of them, and so on: all_reduce and
// reduce_shards have the same bits, a sum within groups of 2, 4 or 8 ranks and then between them has those of the sum
// of all, and a run repeats, whatever moves the parts: memory that the ranks of one machine share, MPI between
// machines, or TCP where MPI did not start them. (MPI_Allreduce adds in an order of its own, and takes two to four
// times as long.)
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/shards.h"
#include "dist/group.h"

namespace redline::dist {

// Moves bytes between its members, which number themselves from 0 on: all ranks, or some. All of them make the same
// calls in the same order.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string name() const = 0;
  // One between some of its members, this one among them. All of them call it at a time, each for its own.
  virtual std::unique_ptr<Transport> between(const std::vector<std::size_t>& members) = 0;
  virtual std::size_t most_given() const = 0;  // bytes, to one rank in one exchange

  // Rank r gets gives[r]. Returns what this rank gets, so many bytes of each rank, at addresses that hold until the
  // next call; its own is where it was.
  virtual std::vector<const std::byte*> exchange(const std::vector<std::span<const std::byte>>& gives,
                                                 const std::vector<std::size_t>& bytes) = 0;
  // Everybody gets parts[r] of data from rank r, whose own stands at `own`. Parts are in elements of `size` bytes.
  virtual void share(std::byte* data, const std::byte* own, const std::vector<Range>& parts, std::size_t size) = 0;
};

// Over connections between every two ranks, for those of several machines that MPI did not start.
std::unique_ptr<Group> open_tcp(Control& control);
bool started_by_mpi();  // this process, by mpirun or srun --mpi

std::unique_ptr<Group> group_over(std::unique_ptr<Transport> transport, Control& control);

}  // namespace redline::dist
