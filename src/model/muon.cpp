// Muon for the matrices of the layers, each Hugging Face tensor one matrix, and AdamW for all else: embedding, head and
// norms. Matrices of one shape are updated together, as many as their scratch has room for.
#include "optim/muon.h"

#include <algorithm>

#include "model/lowering.h"
#include "optim/adamw.h"
#include "program/builder.h"

namespace redline::model {
namespace {

// Scratch of one group. On a card four layers' matrices of 2048 x 5632 fit, whose products fill it, and activations of
// a training step are larger; on the CPU matrices are multiplied one by one.
constexpr std::int64_t kCardScratch = std::int64_t{256} << 20, kCpuScratch = std::int64_t{8} << 20;

std::vector<Range> whole(const ParameterTable& table, const FlatLayout& layout) {
  std::vector<Range> ranges;
  for (const LayerMatrix& m : layer_matrices(table, layout)) ranges.push_back(m.range());
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
  for (const LayerMatrix& m : layer_matrices(table, layout)) {
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

void update(program::Builder& b, const LoweredModel& m, const config::Optim& o) {
  const auto f = [](double x) { return static_cast<float>(x); };
  const DType type = b.muon_type();
  const auto polynomials =
      o.muon_coefficients == "polar_express" ? ops::Polynomials::polar_express : ops::Polynomials::quintic;
  const program::ValueId moments = m.at(optim::kRowMoments);
  const std::int64_t scratch = type == DType::bf16 ? kCardScratch : kCpuScratch;
  const auto room = [&](std::int64_t rows, std::int64_t columns) { return scratch / scratch_of(rows, columns, type); };
  const auto one_a_row = [](std::int64_t rows, std::int64_t) { return rows; };
  for (const MatrixGroup& g : matrix_groups(m, room, {one_a_row})) {
    const optim::Matrices of{g.count, g.rows, g.columns, g.flat(), g.places[1].spread};
    const Range range{g.first(), g.first() + of.span()};
    const auto part = [&](std::string_view array) { return m.view(b, array, range); };
    optim::MuonMomentum<program::ValueId> momentum{.gradients = m.gradients(b, range),
                                                   .momentum = part(optim::kMomentum),
                                                   .x = {},
                                                   .partial = {},
                                                   .state = m.step_state,
                                                   .result = m.update_result,
                                                   .matrices = of};
    optim::Muon<program::ValueId> apply{.x = {},
                                        .parameters = m.masters(b, range),
                                        .working = part(optim::kWorking),
                                        .state = m.step_state,
                                        .result = m.update_result,
                                        .settings = {f(o.weight_decay), f(o.muon_beta2), o.cautious_decay}};
    if (moments.present())
      apply.row_moments = b.view(m.set.owner(moments), std::string(optim::kRowMoments), {of.row_span()},
                                 g.places[1].first * static_cast<std::int64_t>(sizeof(float)));
    ops::Orthogonalize<program::ValueId> rounds{.x = {}, .y = {}, .gram = {}, .square = {}};
    rounds.polynomials = polynomials;
    rounds.rounds = o.muon_rounds;
    b.muon(momentum, rounds, apply, fmt::format("muon {}x{}", g.rows, g.columns));
    m.keep_masters(b, apply.parameters, range);
  }
  adamw_where(b, m, o, is_left_to_adamw);
}

}  // namespace

const Optimizer kMuon = {state, update, whole};
const Optimizer kNorMuon = {state_of_rows, update, whole};

}  // namespace redline::model
