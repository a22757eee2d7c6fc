// Muon for the matrices of the layers, each Hugging Face tensor one matrix, and AdamW for all else: embedding, head and
// norms. Matrices of one shape are updated together, as many as their scratch has room for.
#include "optim/muon.h"

#include <algorithm>
#include <map>

#include "model/lowering.h"
#include "optim/adamw.h"

namespace redline::model {
namespace {

using optim::Matrices;
using optim::Range;

// Scratch of one group. On a card four layers' matrices of 2048 x 5632 fit, whose products fill it, and activations of a
// training step are larger; on the CPU matrices are multiplied one by one.
constexpr std::int64_t kCardScratch = std::int64_t{256} << 20, kCpuScratch = std::int64_t{8} << 20;

bool is_layer_matrix(const ParameterSpec& p) { return p.shape.rank() == 2 && p.name.starts_with("layer "); }

struct Matrix {
  std::int64_t offset, rows, columns;
  std::string_view layer, name;  // "layer 3", and the Hugging Face name
  Range range() const { return {offset, offset + rows * columns}; }
};

// In the order of the flat layout.
std::vector<Matrix> matrices_of(const ParameterTable& table, const FlatLayout& layout) {
  std::vector<Matrix> found;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (!is_layer_matrix(table[i])) continue;
    std::int64_t at = layout.offsets[i];
    const std::string_view name = table[i].name;
    for (const HfSlice& slice : table[i].slices) {
      REDLINE_CHECK(slice.shape.size() == 2, "{} is no matrix", slice.name);
      found.push_back({at, slice.shape[0], slice.shape[1], name.substr(0, name.find('/')), slice.name});
      at += slice.shape[0] * slice.shape[1];
    }
  }
  std::ranges::sort(found, {}, &Matrix::offset);
  return found;
}

std::vector<Stretch> whole(const ParameterTable& table, const FlatLayout& layout) {
  std::vector<Stretch> stretches;
  for (const Matrix& m : matrices_of(table, layout)) stretches.push_back({m.range().begin, m.range().end});
  return stretches;
}

// What a rank updates of a range; empty parts begin where the range does.
Range part_of(const Range& range, const Range& updated) {
  const Range part{std::max(range.begin, updated.begin), std::min(range.end, updated.end)};
  return part.begin < part.end ? part : Range{range.begin, range.begin};
}

std::vector<Range> ranges_of(const ParameterTable& table, const FlatLayout& layout, bool matrices) {
  return ranges_where(table, layout, [&](const ParameterSpec& p) { return is_layer_matrix(p) == matrices; });
}

optim::StateArray row_of(std::string_view name, const Range& range, const Range& updated, const FlatLayout& layout,
                         std::string stored_as) {
  return {.name = std::string(name),
          .range = part_of(range, updated),
          .file = optim::kOptimizerFile,
          .stored_as = std::move(stored_as),
          .shared = updated == layout.whole() ? Range{} : range};
}

optim::StateTable state(const ParameterTable& table, const FlatLayout& layout, const Range& updated) {
  optim::StateTable rows;
  const auto add = [&](bool matrices, std::string_view name, const char* prefix) {
    for (const Range& range : ranges_of(table, layout, matrices))
      rows.push_back(row_of(name, range, updated, layout, prefix));
  };
  add(true, optim::kMomentum, "momentum.");
  add(false, optim::kFirstMoments, "exp_avg.");
  add(false, optim::kSecondMoments, "exp_avg_sq.");
  return rows;
}

// One value a row of each matrix.
optim::StateTable state_of_rows(const ParameterTable& table, const FlatLayout& layout, const Range& updated) {
  optim::StateTable rows = state(table, layout, updated);
  for (const Matrix& m : matrices_of(table, layout)) {
    rows.push_back(row_of(optim::kRowMoments, m.range(), updated, layout, fmt::format("row_moments.{}", m.name)));
    rows.back().block = m.columns;
  }
  return rows;
}

std::int64_t scratch_of(const Matrix& m, DType type) {
  const std::int64_t side = std::min(m.rows, m.columns);
  return 2 * (m.rows * m.columns + side * side) * static_cast<std::int64_t>(size_of(type));
}

// Matrices of one shape with equal distances, of which the first begins at `first`, and where their rows' moments do.
struct Group {
  std::int64_t first = 0, first_row = 0;
  Matrices of;
};

// Groups of what lies in `updated`: first the equals within a layer, then the same of the layers behind it.
std::vector<Group> groups_of(const LoweredModel& m, std::int64_t scratch, DType type) {
  struct Found {
    std::int64_t offset, row;
  };
  struct Layer {
    std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Found>> by_shape;
  };
  std::vector<Layer> layers;
  std::int64_t row = 0;
  std::string_view last;
  std::vector<Matrix> mine = matrices_of(m.table, m.layout);
  std::erase_if(mine, [&](const Matrix& x) { return x.offset < m.updated.begin || x.range().end > m.updated.end; });
  for (const Matrix& x : mine) {
    if (layers.empty() || x.layer != last) layers.emplace_back();
    last = x.layer;
    layers.back().by_shape[{x.rows, x.columns}].push_back({x.offset, row});
    row += x.rows;
  }
  std::vector<Group> groups;
  // A group of layers goes on while the next layer has as many of that shape at the same distances.
  for (std::size_t begin = 0; begin < layers.size(); ++begin) {
    for (auto& [shape, found] : layers[begin].by_shape) {
      while (!found.empty()) {
        const std::int64_t room =
            std::max<std::int64_t>(1, scratch / scratch_of({0, shape.first, shape.second, {}, {}}, type));
        Group g{found[0].offset, found[0].row, {1, shape.first, shape.second, {}, {}}};
        optim::Spread &flat = g.of.flat, &by_row = g.of.by_row;
        if (found.size() > 1 && room > 1) {
          flat.inner_stride = found[1].offset - found[0].offset;
          by_row.inner_stride = found[1].row - found[0].row;
        }
        std::size_t taken = 1;
        while (taken < found.size() && static_cast<std::int64_t>(taken) < room && flat.inner_stride > 0 &&
               found[taken].offset == found[0].offset + static_cast<std::int64_t>(taken) * flat.inner_stride &&
               found[taken].row == found[0].row + static_cast<std::int64_t>(taken) * by_row.inner_stride)
          ++taken;
        flat.inner = by_row.inner = static_cast<std::int64_t>(taken);
        found.erase(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(taken));
        std::int64_t outer = 1;
        for (std::size_t next = begin + 1; next < layers.size() && (outer + 1) * flat.inner <= room; ++next, ++outer) {
          std::vector<Found>& there = layers[next].by_shape[shape];
          if (outer == 1 && there.size() >= taken) {
            flat.stride = there[0].offset - g.first;
            by_row.stride = there[0].row - g.first_row;
          }
          bool same = there.size() >= taken;
          for (std::size_t i = 0; same && i < taken; ++i) {
            const auto index = outer * flat.inner + static_cast<std::int64_t>(i);
            same = there[i].offset == g.first + flat.at(index) && there[i].row == g.first_row + by_row.at(index);
          }
          if (!same) break;
          there.erase(there.begin(), there.begin() + static_cast<std::ptrdiff_t>(taken));
        }
        g.of.count = outer * flat.inner;
        groups.push_back(g);
      }
    }
  }
  return groups;
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
  adamw_where(b, m, o, [](const ParameterSpec& p) { return !is_layer_matrix(p); });
}

}  // namespace

const Optimizer kMuon = {state, update, whole};
const Optimizer kNorMuon = {state_of_rows, update, whole};

}  // namespace redline::model
