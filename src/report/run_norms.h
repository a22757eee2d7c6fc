// Norms by tensor of a run, from norms.jsonl: the median over the layers for each kind of tensor at each look, and all
// tensors at the last look.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/files.h"
#include "io/json_fwd.h"

namespace redline::report {

// "qkv" of "layer 3/qkv": medians over the layers at each look; NaN: not known.
struct KindNorms {
  std::string kind;
  std::vector<double> gradient, weight, change;  // change: norm of the update over that of the weight
};

struct LastNorms {
  std::string name;
  double gradient = 0, weight = 0, update = 0;  // NaN: not known
  double change() const { return weight > 0 ? update / weight : 0; }
};

struct RunNorms {
  std::vector<std::int64_t> steps;  // of the looks
  std::vector<KindNorms> kinds;     // in the order in which they were first seen
  std::vector<LastNorms> last;
};

// Empty where there is no such file. Each line that cannot be read adds a sentence to `problems`.
RunNorms read_norms(FileSystem& files, const Path& path, std::vector<std::string>& problems);

// The norms for the page. Of many looks it keeps at most `most`, the last of each stretch, and puts their numbers into
// `looks`. Of the tensors it keeps those with the largest updates relative to their weights.
io::Json norms_json(const RunNorms& norms, std::size_t most, std::vector<std::size_t>& looks);

}  // namespace redline::report
