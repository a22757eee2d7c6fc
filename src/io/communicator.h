// Ranks that exchange small texts: how they agree on a checkpoint that they write together. cli/ implements it over
// dist/, which is on a higher floor. Every rank makes the same calls in the same order. A call throws when a rank is
// gone.
#pragma once

#include <string>
#include <vector>

namespace redline::io {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  virtual std::string host() const { return ""; }  // this rank's machine; empty: nobody asks for its name
  virtual std::vector<std::string> gather(const std::string& mine) = 0;  // on rank 0 everybody's, by rank; else nothing
  virtual std::string broadcast(const std::string& from_rank_0) = 0;     // rank 0's, on every rank
};

}  // namespace redline::io
