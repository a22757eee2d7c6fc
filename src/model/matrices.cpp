// Finds the matrices of the layers in the flat layout, and those of one shape that lie at equal distances.
#include <algorithm>

#include "model/lowering.h"
#include "model/optimizer.h"

namespace redline::model {
namespace {

// Whether the next parts of every array lie `step` parts after the first, at the same distances; the first two of them
// decide the distances.
bool in_step(std::vector<MatrixGroup::Place>& places, const std::vector<MatrixGroup::Place>& next, std::int64_t step,
             std::int64_t optim::Spread::*distance) {
  std::vector<MatrixGroup::Place> taken = places;
  for (std::size_t i = 0; i < taken.size(); ++i) {
    if (step == 1) taken[i].spread.*distance = next[i].first - taken[i].first;
    if (next[i].first != taken[i].first + step * taken[i].spread.*distance) return false;
  }
  places = std::move(taken);
  return true;
}

std::int64_t layers_of(const MatrixGroup& g) { return g.count / g.flat().inner; }

// Takes one more matrix of the same layer, or the same matrices of a later layer, where distances stay equal.
bool take_beside(MatrixGroup& g, const MatrixGroup& one) {
  if (g.rows != one.rows || g.columns != one.columns) return false;
  if (!in_step(g.places, one.places, g.count, &optim::Spread::inner_stride)) return false;
  ++g.count;
  for (MatrixGroup::Place& place : g.places) place.spread.inner = g.count;
  return true;
}
bool take_next(MatrixGroup& g, const MatrixGroup& next) {
  if (g.rows != next.rows || g.columns != next.columns) return false;
  for (std::size_t i = 0; i < g.places.size(); ++i) {
    const optim::Spread &a = g.places[i].spread, &b = next.places[i].spread;
    if (a.inner != b.inner || a.inner_stride != b.inner_stride) return false;
  }
  if (!in_step(g.places, next.places, layers_of(g), &optim::Spread::stride)) return false;
  g.count += next.count;
  return true;
}

// As few as have room for so many matrices each, and as even as can be: products of one shape are tuned once.
std::vector<MatrixGroup> parts_of(const MatrixGroup& g, std::int64_t room) {
  const std::int64_t inner = g.flat().inner, layers = layers_of(g), most = std::max<std::int64_t>(1, room / inner);
  const std::int64_t count = (layers + most - 1) / most, each = (layers + count - 1) / count;
  std::vector<MatrixGroup> parts;
  for (std::int64_t layer = 0; layer < layers; layer += each) {
    MatrixGroup& part = parts.emplace_back(g);
    for (MatrixGroup::Place& place : part.places) place.first += layer * place.spread.stride;
    part.count = std::min(each, layers - layer) * inner;
  }
  return parts;
}

}  // namespace

std::vector<LayerMatrix> layer_matrices(const ParameterTable& table, const FlatLayout& layout) {
  std::vector<LayerMatrix> found;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (!table[i].by_matrix) continue;
    std::int64_t at = layout.offsets[i];
    for (const HfSlice& slice : table[i].slices) {
      REDLINE_CHECK(slice.shape.size() == 2, "{} is no matrix", slice.name);
      found.push_back({at, slice.shape[0], slice.shape[1], table[i].layer, slice.name});
      at += slice.shape[0] * slice.shape[1];
    }
  }
  std::ranges::sort(found, {}, &LayerMatrix::offset);
  return found;
}

std::vector<MatrixGroup> matrix_groups(const LoweredModel& m, const OfMatrix& room,
                                       const std::vector<OfMatrix>& state) {
  std::vector<MatrixGroup> groups, of_layer;
  const auto room_of = [&](const MatrixGroup& g) { return std::max<std::int64_t>(1, room(g.rows, g.columns)); };
  const auto end_layer = [&] {
    for (const MatrixGroup& g : of_layer)
      if (std::ranges::none_of(groups, [&](MatrixGroup& earlier) { return take_next(earlier, g); }))
        groups.push_back(g);
    of_layer.clear();
  };
  std::vector<MatrixGroup::Place> next(1 + state.size());
  std::int32_t layer = program::kNoLayer;
  for (const LayerMatrix& x : layer_matrices(m.table, m.layout)) {
    if (x.offset < m.updated.begin || x.range().end > m.updated.end) continue;
    if (x.layer != layer) end_layer();
    layer = x.layer;
    next[0].first = x.offset;
    const MatrixGroup one{1, x.rows, x.columns, next};
    for (std::size_t i = 0; i < state.size(); ++i) next[i + 1].first += state[i](x.rows, x.columns);
    if (std::ranges::none_of(of_layer, [&](MatrixGroup& g) { return g.count < room_of(g) && take_beside(g, one); }))
      of_layer.push_back(one);
  }
  end_layer();
  std::vector<MatrixGroup> parts;
  for (const MatrixGroup& g : groups)
    for (MatrixGroup& part : parts_of(g, room_of(g))) parts.push_back(std::move(part));
  return parts;
}

}  // namespace redline::model
