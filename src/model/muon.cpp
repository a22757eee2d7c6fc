// Muon for the matrices of the layers, each Hugging Face tensor one matrix, and AdamW for all else: embedding, head and
// norms. Matrices of one shape are updated together, as many as their scratch has room for.
#include "optim/muon.h"

#include <algorithm>

#include "model/lowering.h"
#include "optim/adamw.h"
#include "program/builder.h"

namespace redline::model {
namespace {

using optim::Matrices;

// Scratch of one group. On a card four layers' matrices of 2048 x 5632 fit, whose products fill it, and activations of
// a training step are larger; on the CPU matrices are multiplied one by one.
constexpr std::int64_t kCardScratch = std::int64_t{256} << 20, kCpuScratch = std::int64_t{8} << 20;

struct Matrix {
  std::int64_t offset, rows, columns;
  std::int32_t layer;
  std::string_view name;  // the Hugging Face name
  Range range() const { return {offset, offset + rows * columns}; }
};

// In the order of the flat layout.
std::vector<Matrix> matrices_of(const ParameterTable& table, const FlatLayout& layout) {
  std::vector<Matrix> found;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (!table[i].by_matrix) continue;
    std::int64_t at = layout.offsets[i];
    for (const HfSlice& slice : table[i].slices) {
      REDLINE_CHECK(slice.shape.size() == 2, "{} is no matrix", slice.name);
      found.push_back({at, slice.shape[0], slice.shape[1], table[i].layer, slice.name});
      at += slice.shape[0] * slice.shape[1];
    }
  }
  std::ranges::sort(found, {}, &Matrix::offset);
  return found;
}

std::vector<Range> whole(const ParameterTable& table, const FlatLayout& layout) {
  std::vector<Range> ranges;
  for (const Matrix& m : matrices_of(table, layout)) ranges.push_back(m.range());
  return ranges;
}

optim::StateArray row_of(std::string_view name, const Range& range, const Range& updated, const FlatLayout& layout,
                         std::string stored_as) {
  return {.name = std::string(name),
          .range = intersection(range, updated),
          .file = optim::kOptimizerFile,
          .stored_as = std::move(stored_as),
          .shared = updated == layout.whole() ? Range{} : range};
}

bool is_by_matrix(const ParameterSpec& p) { return p.by_matrix; }
bool is_left_to_adamw(const ParameterSpec& p) { return !p.by_matrix; }

optim::StateTable state(const ParameterTable& table, const FlatLayout& layout, const Range& updated,
                        const config::Optim& settings) {
  optim::StateTable rows;
  for (const Range& range : ranges_where(table, layout, is_by_matrix))
    rows.push_back(row_of(optim::kMomentum, range, updated, layout, "momentum."));
  for (optim::StateArray& row : adamw_state_where(table, layout, updated, settings, is_left_to_adamw))
    rows.push_back(std::move(row));
  return rows;
}

// One value a row of each matrix.
optim::StateTable state_of_rows(const ParameterTable& table, const FlatLayout& layout, const Range& updated,
                                const config::Optim& settings) {
  optim::StateTable rows = state(table, layout, updated, settings);
  for (const Matrix& m : matrices_of(table, layout)) {
    rows.push_back(row_of(optim::kRowMoments, m.range(), updated, layout, fmt::format("row_moments.{}", m.name)));
    rows.back().block = m.columns;
    rows.back().origin = m.offset;
  }
  return rows;
}

std::int64_t scratch_of(std::int64_t rows, std::int64_t columns, DType type) {
  const std::int64_t side = std::min(rows, columns);
  return 2 * (rows * columns + side * side) * static_cast<std::int64_t>(size_of(type));
}

// Matrices of one shape with equal distances: where the first of them begins, and where the moments of its rows do.
struct Group {
  std::int64_t first = 0, first_row = 0;
  Matrices of;

  std::int64_t layers() const { return of.count / of.flat.inner; }
  bool like(const Group& g) const {
    const auto same = [](const optim::Spread& a, const optim::Spread& b) {
      return a.inner == b.inner && a.inner_stride == b.inner_stride;
    };
    return of.rows == g.of.rows && of.columns == g.of.columns && same(of.flat, g.of.flat) &&
           same(of.by_row, g.of.by_row);
  }
  // Takes one more matrix of the same layer, or the same matrices of a later layer, where distances stay equal.
  bool take_beside(const Group& one) {
    const std::int64_t count = of.count;
    optim::Spread &flat = of.flat, &by_row = of.by_row;
    if (of.rows != one.of.rows || of.columns != one.of.columns) return false;
    if (count == 1) {
      flat.inner_stride = one.first - first;
      by_row.inner_stride = one.first_row - first_row;
    }
    if (one.first != first + count * flat.inner_stride || one.first_row != first_row + count * by_row.inner_stride)
      return false;
    flat.inner = by_row.inner = of.count = count + 1;
    return true;
  }
  bool take_next(const Group& next) {
    if (!like(next)) return false;
    optim::Spread &flat = of.flat, &by_row = of.by_row;
    if (layers() == 1) {
      flat.stride = next.first - first;
      by_row.stride = next.first_row - first_row;
    }
    if (next.first != first + layers() * flat.stride || next.first_row != first_row + layers() * by_row.stride)
      return false;
    of.count += next.of.count;
    return true;
  }
  // As few as have room for so many matrices each, and as even as can be: products of one shape are tuned once.
  std::vector<Group> parts(std::int64_t room) const {
    const std::int64_t inner = of.flat.inner, most = std::max<std::int64_t>(1, room / inner);
    const std::int64_t count = (layers() + most - 1) / most, each = (layers() + count - 1) / count;
    std::vector<Group> parts;
    for (std::int64_t layer = 0; layer < layers(); layer += each) {
      Group& part = parts.emplace_back(*this);
      part.first += layer * of.flat.stride;
      part.first_row += layer * of.by_row.stride;
      part.of.count = std::min(each, layers() - layer) * inner;
    }
    return parts;
  }
};

// The groups in m.updated: matrices of one shape within a layer, joined with the same of later layers.
std::vector<Group> groups_of(const LoweredModel& m, std::int64_t scratch, DType type) {
  std::vector<Group> groups, of_layer;
  const auto room_of = [&](const Group& g) {
    return std::max<std::int64_t>(1, scratch / scratch_of(g.of.rows, g.of.columns, type));
  };
  const auto end_layer = [&] {
    for (const Group& g : of_layer)
      if (std::ranges::none_of(groups, [&](Group& earlier) { return earlier.take_next(g); })) groups.push_back(g);
    of_layer.clear();
  };
  std::int64_t row = 0;
  std::int32_t layer = program::kNoLayer;
  for (const Matrix& x : matrices_of(m.table, m.layout)) {
    if (x.offset < m.updated.begin || x.range().end > m.updated.end) continue;
    if (x.layer != layer) end_layer();
    layer = x.layer;
    const Group one{x.offset, row, {1, x.rows, x.columns, {}, {}}};
    row += x.rows;
    if (std::ranges::none_of(of_layer, [&](Group& g) { return g.of.count < room_of(g) && g.take_beside(one); }))
      of_layer.push_back(one);
  }
  end_layer();
  std::vector<Group> parts;
  for (const Group& g : groups)
    for (const Group& part : g.parts(room_of(g))) parts.push_back(part);
  return parts;
}

void update(program::Builder& b, const LoweredModel& m, const config::Optim& o) {
  const auto f = [](double x) { return static_cast<float>(x); };
  const DType type = b.muon_type();
  const auto polynomials =
      o.muon_coefficients == "polar_express" ? ops::Polynomials::polar_express : ops::Polynomials::quintic;
  const program::ValueId moments = m.at(optim::kRowMoments);
  for (const Group& g : groups_of(m, type == DType::bf16 ? kCardScratch : kCpuScratch, type)) {
    const Range range{g.first, g.first + g.of.span()};
    const auto part = [&](std::string_view array) { return m.view(b, array, range); };
    optim::MuonMomentum<program::ValueId> momentum{.gradients = part(optim::kGradients),
                                                   .momentum = part(optim::kMomentum),
                                                   .x = {},
                                                   .partial = {},
                                                   .state = m.step_state,
                                                   .result = m.update_result,
                                                   .matrices = g.of};
    optim::Muon<program::ValueId> apply{.x = {},
                                        .parameters = part(optim::kParameters),
                                        .working = part(optim::kWorking),
                                        .state = m.step_state,
                                        .result = m.update_result,
                                        .settings = {f(o.weight_decay), f(o.muon_beta2), o.cautious_decay}};
    if (moments.present())
      apply.row_moments = b.view(m.set.owner(moments), std::string(optim::kRowMoments), {g.of.row_span()},
                                 g.first_row * static_cast<std::int64_t>(sizeof(float)));
    ops::Orthogonalize<program::ValueId> rounds{.x = {}, .y = {}, .gram = {}, .square = {}};
    rounds.polynomials = polynomials;
    rounds.rounds = o.muon_rounds;
    b.muon(momentum, rounds, apply, fmt::format("muon {}x{}", g.of.rows, g.of.columns));
  }
  adamw_where(b, m, o, is_left_to_adamw);
}

}  // namespace

const Optimizer kMuon = {state, update, whole};
const Optimizer kNorMuon = {state_of_rows, update, whole};

}  // namespace redline::model
