// Norms by tensor of a run, as norms.jsonl has them: of each kind of tensor its middle over the layers, look by look,
// and every tensor at the last look.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/files.h"
#include "io/json.h"

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

// Nothing where there is no such file; a sentence of `problems` for what cannot be read.
RunNorms read_norms(FileSystem& files, const Path& path, std::vector<std::string>& problems);

// For the page: of many looks at most `most`, the last of each stretch; `looks` gets their numbers. Of the tensors
// those whose updates are largest beside their weights.
io::Json norms_json(const RunNorms& norms, std::size_t most, std::vector<std::size_t>& looks);

}  // namespace redline::report
