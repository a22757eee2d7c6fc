// Muon around its products, against doubles: momentum and its norm, the step, NorMuon's rows, cautious decay; and what
// lies between the matrices is left alone.
#include "optim/muon.h"

#include "optim/cpu/kernels.h"
#include "optim/muon_matrices.h"
#include "testing/op_check.h"

namespace redline::optim {
namespace {

using namespace redline::testing;

double wide(float x) { return static_cast<double>(x); }

const StepState kState{.lr = 0.01f, .momentum = 0.9f};
const UpdateResult kFinite{.grad_norm = 1, .grad_scale = 0.125f, .finite = 1};

TEST(MuonMomentum, MatchesDoublesAndTouchesNothingBetween) {
  for (const Matrices& m : kMatrices) {
    Memory memory;
    const MuonMomentum<Tensor> op = momentum_of(memory, m, kState, kFinite);
    const Values g = values_of(op.gradients), before = values_of(op.momentum);
    run_checked(memory, op);
    Values want = before, x;
    for (std::int64_t i = 0; i < m.count; ++i) {
      double squares = 0;
      Values u;
      for (std::int64_t j = m.flat.at(i); j < m.flat.at(i) + m.elements(); ++j) {
        const auto at = static_cast<std::size_t>(j);
        want[at] = wide(kState.momentum) * before[at] + 0.125 * g[at];
        u.push_back(0.125 * g[at] + wide(kState.momentum) * want[at]);
        squares += u.back() * u.back();
      }
      for (const double value : u) x.push_back(value / (1.02 * std::sqrt(squares) + 1e-30));
    }
    expect_close("momentum", op.momentum, want, 3e-7);
    expect_close("x", op.x, x, 1e-6);
  }
}

TEST(MuonMomentum, ZeroGradientsGiveZero) {
  Memory memory;
  const MuonMomentum<Tensor> op = momentum_of(memory, kMatrices[0], kState, kFinite);
  std::fill_n(op.gradients.f32(), op.gradients.elements(), 0.0f);
  std::fill_n(op.momentum.f32(), op.momentum.elements(), 0.0f);
  run_checked(memory, op);
  EXPECT_EQ(values_of(op.x), Values(static_cast<std::size_t>(op.x.elements())));
}

// NaN stands in gradients and in x, as it would.
TEST(Muon, TouchesNothingWhenNotFinite) {
  const Matrices& m = kMatrices[1];
  const UpdateResult skipped{.grad_scale = 0, .finite = 0};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Memory memory;
  const MuonMomentum<Tensor> momentum = momentum_of(memory, m, kState, skipped);
  momentum.gradients.f32()[0] = nan;
  const Values before = values_of(momentum.momentum);
  run_checked(memory, momentum);
  EXPECT_EQ(values_of(momentum.momentum), before);
  EXPECT_EQ(values_of(momentum.x), Values(static_cast<std::size_t>(momentum.x.elements())));

  const Muon<Tensor> update = update_of(memory, m, kState, skipped, {.beta2 = 0.9f}, true);
  update.x.f32()[0] = nan;
  const Values p = values_of(update.parameters), working = values_of(update.working),
               rows = values_of(update.row_moments);
  run_checked(memory, update);
  EXPECT_EQ(values_of(update.parameters), p);
  EXPECT_EQ(values_of(update.working), working);
  EXPECT_EQ(values_of(update.row_moments), rows);
}

TEST(Muon, MatchesDoublesWithRowsAndCautionAndWithout) {
  for (const Matrices& m : kMatrices)
    for (const bool cautious : {false, true})
      for (const float beta2 : {0.0f, 0.9f}) {
        Memory memory;
        const MuonSettings settings{.weight_decay = 0.3f, .beta2 = beta2, .cautious = cautious};
        const Muon<Tensor> op = update_of(memory, m, kState, kFinite, settings, true);
        Values p = values_of(op.parameters), working = values_of(op.working), rows;
        if (beta2 > 0) rows = values_of(op.row_moments);
        const Values x = values_of(op.x);
        run_checked(memory, op);
        const double lr = wide(kState.lr),
                     scale = lr * 0.2 * std::sqrt(static_cast<double>(std::max(m.rows, m.columns)));
        for (std::int64_t i = 0; i < m.count; ++i) {
          Values u(x.begin() + i * m.elements(), x.begin() + (i + 1) * m.elements());
          if (beta2 > 0) {
            double before = 0, after = 0;
            for (std::int64_t r = 0; r < m.rows; ++r) {
              double square = 0;
              for (std::int64_t j = r * m.columns; j < (r + 1) * m.columns; ++j)
                square += u[static_cast<std::size_t>(j)] * u[static_cast<std::size_t>(j)];
              double& moment = rows[static_cast<std::size_t>(m.by_row.at(i) + r)];
              moment = wide(beta2) * moment + (1 - wide(beta2)) * square / static_cast<double>(m.columns);
              before += square;
              for (std::int64_t j = r * m.columns; j < (r + 1) * m.columns; ++j) {
                double& value = u[static_cast<std::size_t>(j)];
                value /= std::sqrt(moment) + 1e-8;
                after += value * value;
              }
            }
            for (double& value : u) value *= std::sqrt(before / after);
          }
          for (std::int64_t j = 0; j < m.elements(); ++j) {
            double& weight = p[static_cast<std::size_t>(m.flat.at(i) + j)];
            const double step = u[static_cast<std::size_t>(j)], decay = !cautious || step * weight > 0 ? 0.3 : 0;
            weight = weight - lr * decay * weight - scale * step;
            working[static_cast<std::size_t>(m.flat.at(i) + j)] = weight;
          }
        }
        expect_close("parameters", op.parameters, p, 2e-6);
        expect_close("working", op.working, working, 2e-6);
        if (beta2 > 0) expect_close("row_moments", op.row_moments, rows, 1e-6);
      }
}

// A row that never moves has no second moment: nothing is divided by zero.
TEST(Muon, RowsOfZerosStay) {
  Memory memory;
  const Matrices& m = kMatrices[0];
  const Muon<Tensor> op = update_of(memory, m, kState, kFinite, {.weight_decay = 0, .beta2 = 0.9f}, false);
  std::fill_n(op.x.f32(), op.x.elements(), 0.0f);
  std::fill_n(op.row_moments.f32(), op.row_moments.elements(), 0.0f);
  const Values before = values_of(op.parameters);
  run_checked(memory, op);
  EXPECT_EQ(values_of(op.parameters), before);
}

TEST(Muon, BytesAreThoseOfItsMatrices) {
  Memory memory;
  const Matrices& m = kMatrices[1];
  const double elements = static_cast<double>(m.count * m.elements());
  EXPECT_EQ(cost(momentum_of(memory, m, kState, kFinite)).bytes, 16 * elements);
  EXPECT_EQ(cost(update_of(memory, m, kState, kFinite, {}, true)).bytes, 16 * elements);
  EXPECT_EQ(cost(update_of(memory, m, kState, kFinite, {}, false)).bytes, 12 * elements);
}

}  // namespace
}  // namespace redline::optim
