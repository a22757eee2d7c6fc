// Ranks that write a checkpoint together, as whoever connects them gives them to us. Every rank makes the same calls in
// the same order; a call that cannot be finished, since a rank is gone, throws.
#pragma once

#include <string>
#include <vector>

namespace redline::io {

class Together {
 public:
  virtual ~Together() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  virtual std::vector<std::string> gather(const std::string& mine) = 0;  // on rank 0 everybody's, by rank; else nothing
  virtual std::string from_first(const std::string& words) = 0;          // those of rank 0, on every rank
};

class Alone final : public Together {
 public:
  int rank() const override { return 0; }
  int ranks() const override { return 1; }
  std::vector<std::string> gather(const std::string& mine) override { return {mine}; }
  std::string from_first(const std::string& words) override { return words; }
};

}  // namespace redline::io
