// The table of a model's parameters: names, shapes, how they start, and which Hugging Face tensors they are made of.
// Fused weights (QKV, gate/up) hold several Hugging Face tensors back to back, so those are plain views.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/shards.h"
#include "base/tensor.h"
#include "optim/state.h"
#include "program/program_set.h"

namespace redline::model {

enum class Init : std::uint8_t { normal, ones, zeros, minus_ones };

struct HfSlice {
  std::string name;  // "model.layers.3.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;
};

// What a parameter is in the model.
enum class ParameterKind : std::uint8_t {
  vector,     // a norm's weights, a bias: small
  embedding,  // its rows are looked up
  linear,     // of a layer: [out, in], or several of one shape
  head,       // of the logits; a table without one has a tied head, the embedding
};

// What a parameter travels with between ranks.
enum class Travels : std::uint8_t { with_small, with_layer, alone };

// A row: what the parameter is, how it starts, and how optimizers, products in eight bits and ranks treat it. The name
// is for people and for the draw of its start; nothing is decided by it.
struct ParameterSpec {
  std::string name;  // "layer 3/qkv"
  Shape shape;       // [out, in] or [d]
  Init init = Init::normal;
  double std = 0;        // of a normal start
  bool decayed = false;  // whether weight decay shrinks it
  std::vector<HfSlice> slices;
  ParameterKind kind = ParameterKind::vector;
  std::int32_t layer = program::kNoLayer;
  // Whether Muon updates its slices, each a matrix, and optim.moments = "8bit" keeps its moments in eight bits. Other
  // parameters are small, or, as the embedding's rows, seldom updated.
  bool by_matrix = false;
  std::string fp8 = {};  // "qkv" of precision.fp8_products; empty: its products never take operands in eight bits
  Travels travels = Travels::with_small;
  double active = 1;  // the share of it that one token's products take: of experts, those that it goes to
};

using ParameterTable = std::vector<ParameterSpec>;

// One Hugging Face tensor inside the flat arrays that hold all parameters (and gradients, and moments) back to back.
struct StoredParameter {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0, elements = 0;
  Range range() const { return {offset, offset + elements}; }
};

// Where each parameter of the table begins in the flat arrays: all that have weight decay first, then the rest.
struct FlatLayout {
  std::vector<std::int64_t> offsets;  // by row of the table, in elements, multiples of kFlatAlignment
  std::int64_t total = 0;             // elements, gaps included
  Range whole() const { return {0, total}; }
  std::vector<StoredParameter> stored;  // in the table's order
};
inline constexpr std::int64_t kFlatAlignment = 64;

FlatLayout lay_out(const ParameterTable& table);

// The parameters for which `holds` is true, as the fewest ranges of the flat arrays, in order. The gap after a
// parameter belongs to it, so that a property and its opposite cover everything.
std::vector<Range> ranges_where(const ParameterTable& table, const FlatLayout& layout,
                                const std::function<bool(const ParameterSpec&)>& holds);

std::int64_t parameter_count(const ParameterTable& table);
std::int64_t active_count(const ParameterTable& table);  // without the experts that a token does not go to

// The start of the parameters that lie in a range of the flat array, by (seed, name, index): the same on every machine
// and for any sharding. `draw` gets the numbers of each part of the range; gaps are left out.
using DrawPart = std::function<void(const Range& part, const Normals& from)>;
void initialise(const ParameterTable& table, const FlatLayout& layout, std::uint64_t seed, const Range& here,
                const DrawPart& draw);

}  // namespace redline::model
