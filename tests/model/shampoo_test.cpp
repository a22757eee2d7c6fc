// Shampoo of small blocks, an optimizer that lives here alone: what an optimizer can ask for without a line of src.
// For every matrix of a layer it keeps state of other shapes than the matrix's, makes roots of it every third step, and
// moves all matrices of one shape in one node. g = grad_scale * gradient:
//   L = L + g g^T;  R = R + g^T g;  s = s + sum of g^2
//   every third step:  A = (L + eps)^(-1/4);  B = (R + eps)^(-1/4)
//   p = p - lr * A g B / (1 + sqrt(s))
// Embedding, head and norms are AdamW's.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "base/files.h"
#include "model/engine.h"
#include "model/state_files.h"
#include "model/tiny.h"
#include "program/builder.h"
#include "testing/check_plan.h"
#include "testing/op_check.h"
#include "testing/temp_folder.h"
#include "testing/thread_group.h"

namespace redline::model {
namespace {

using namespace redline::testing;
using program::ValueId;

constexpr std::int64_t kRootsEvery = 3;
constexpr double kRootEps = 1e-3;
constexpr double kShampooLr = 0.05;

// A square matrix in doubles, or any by rows.
using Square = std::vector<double>;

// Eigenvectors by Jacobi's rotations, and from them the power: the node's way.
Square power_by_rotations(Square a, std::size_t n, double power) {
  Square vectors(n * n);
  for (std::size_t i = 0; i < n; ++i) vectors[i * n + i] = 1;
  for (int sweep = 0; sweep < 30; ++sweep) {
    for (std::size_t p = 0; p < n; ++p)
      for (std::size_t q = p + 1; q < n; ++q) {
        if (std::abs(a[p * n + q]) < 1e-300) continue;
        const double theta = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
        const double t = std::copysign(1.0, theta) / (std::abs(theta) + std::sqrt(theta * theta + 1));
        const double c = 1 / std::sqrt(t * t + 1), s = t * c;
        const auto rotate = [&](double& x, double& y) {
          const double before = x;
          x = c * before - s * y;
          y = s * before + c * y;
        };
        for (std::size_t k = 0; k < n; ++k) rotate(a[k * n + p], a[k * n + q]);
        for (std::size_t k = 0; k < n; ++k) rotate(a[p * n + k], a[q * n + k]);
        for (std::size_t k = 0; k < n; ++k) rotate(vectors[k * n + p], vectors[k * n + q]);
      }
  }
  Square result(n * n);
  for (std::size_t k = 0; k < n; ++k) {
    const double value = std::pow(std::max(a[k * n + k], 1e-30), power);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j) result[i * n + j] += value * vectors[i * n + k] * vectors[j * n + k];
  }
  return result;
}

// Newton's iteration: the reference's way to the inverse fourth root.
Square inverse_fourth_root(Square a, std::size_t n) {
  const auto times = [&](const Square& x, const Square& y) {
    return product_of_doubles(x, false, y, false, static_cast<std::int64_t>(n), static_cast<std::int64_t>(n),
                              static_cast<std::int64_t>(n));
  };
  double trace = 0;
  for (std::size_t i = 0; i < n; ++i) trace += a[i * n + i];
  for (double& v : a) v /= trace;
  Square x(n * n);
  for (std::size_t i = 0; i < n; ++i) x[i * n + i] = std::pow(trace, -0.25);
  for (int round = 0; round < 80; ++round) {
    Square t = a;
    for (double& v : t) v *= -0.25;
    for (std::size_t i = 0; i < n; ++i) t[i * n + i] += 1.25;
    x = times(x, t);
    const Square t2 = times(t, t);
    a = times(times(t2, t2), a);
  }
  return x;
}

// One of the matrices of a group in an array.
const float* part(const Tensor& t, const optim::Spread& spread, std::int64_t i) { return t.f32() + spread.at(i); }
Square doubles_of(const float* from, std::int64_t count) { return {from, from + count}; }

std::int64_t squared_rows(std::int64_t rows, std::int64_t) { return rows * rows; }
std::int64_t squared_columns(std::int64_t, std::int64_t columns) { return columns * columns; }
std::int64_t one_number(std::int64_t, std::int64_t) { return 1; }
constexpr const char* kShampooRows[] = {"left", "right", "left root", "right root", "squares"};
const std::vector<OfMatrix> kShampooSizes = {squared_rows, squared_columns, squared_rows, squared_columns, one_number};

optim::StateTable shampoo_state(const ParameterTable& table, const FlatLayout& layout, const Range& updated,
                                const config::Optim& settings) {
  optim::StateTable rows;
  for (std::size_t kind = 0; kind < std::size(kShampooRows); ++kind)
    for (const LayerMatrix& m : layer_matrices(table, layout)) {
      const Shape shape = kind == 4 ? Shape{1} : kind % 2 == 0 ? Shape{m.rows, m.rows} : Shape{m.columns, m.columns};
      rows.push_back({.name = kShampooRows[kind],
                      .range = intersection(m.range(), updated),
                      .shape = shape,
                      .file = optim::kOptimizerFile,
                      .stored_as = fmt::format("{}.{}", kShampooRows[kind], m.name),
                      .shared = updated == layout.whole() ? Range{} : m.range()});
    }
  for (optim::StateArray& row :
       adamw_state_where(table, layout, updated, settings, [](const ParameterSpec& p) { return !p.by_matrix; }))
    rows.push_back(std::move(row));
  return rows;
}

bool is_made(const Tensor& result) { return result.as<UpdateResult>()->finite == 1.0f; }

std::shared_ptr<const ops::CustomKind> statistics_of(const MatrixGroup& g) {
  return std::make_shared<ops::CustomKind>(
      ops::CustomKind{{{"gradients", Access::read},
                       {"left", Access::update},
                       {"right", Access::update},
                       {"squares", Access::update},
                       {"result", Access::read}},
                      [g](std::span<const Tensor> t, ThreadPool&) {
                        if (!is_made(t[4])) return;
                        const double scale = static_cast<double>(t[4].as<UpdateResult>()->grad_scale);
                        for (std::int64_t i = 0; i < g.count; ++i) {
                          Square x = doubles_of(part(t[0], g.flat(), i), g.rows * g.columns);
                          for (double& v : x) v *= scale;
                          const Square left = product_of_doubles(x, false, x, true, g.rows, g.rows, g.columns);
                          const Square right = product_of_doubles(x, true, x, false, g.columns, g.columns, g.rows);
                          const auto add = [&](const Tensor& to, const optim::Spread& spread, const Square& what) {
                            float* const at = to.f32() + spread.at(i);
                            for (std::size_t j = 0; j < what.size(); ++j)
                              at[j] = static_cast<float>(static_cast<double>(at[j]) + what[j]);
                          };
                          add(t[1], g.places[1].spread, left);
                          add(t[2], g.places[2].spread, right);
                          add(t[3], g.places[5].spread, {dot(x, x)});
                        }
                      }});
}

std::shared_ptr<const ops::CustomKind> roots_of(const MatrixGroup& g) {
  return std::make_shared<ops::CustomKind>(ops::CustomKind{
      {{"left", Access::read}, {"right", Access::read}, {"left root", Access::update}, {"right root", Access::update}},
      [g](std::span<const Tensor> t, ThreadPool&) {
        for (std::int64_t i = 0; i < g.count; ++i)
          for (const std::size_t side : {0, 1}) {
            const std::int64_t n = side == 0 ? g.rows : g.columns;
            Square a = doubles_of(part(t[side], g.places[1 + side].spread, i), n * n);
            for (std::int64_t j = 0; j < n; ++j) a[static_cast<std::size_t>(j * n + j)] += kRootEps;
            const Square root = power_by_rotations(a, static_cast<std::size_t>(n), -0.25);
            std::ranges::transform(root, t[2 + side].f32() + g.places[3 + side].spread.at(i),
                                   [](double v) { return static_cast<float>(v); });
          }
      }});
}

std::shared_ptr<const ops::CustomKind> moves_of(const MatrixGroup& g) {
  return std::make_shared<ops::CustomKind>(ops::CustomKind{
      {{"gradients", Access::read},
       {"left root", Access::read},
       {"right root", Access::read},
       {"squares", Access::read},
       {"parameters", Access::update},
       {"state", Access::read},
       {"result", Access::read}},
      [g](std::span<const Tensor> t, ThreadPool&) {
        if (!is_made(t[6])) return;
        for (std::int64_t i = 0; i < g.count; ++i) {
          const Square x = doubles_of(part(t[0], g.flat(), i), g.rows * g.columns);
          const Square a = doubles_of(part(t[1], g.places[3].spread, i), g.rows * g.rows);
          const Square b = doubles_of(part(t[2], g.places[4].spread, i), g.columns * g.columns);
          const Square ax = product_of_doubles(a, false, x, false, g.rows, g.columns, g.rows);
          const Square u = product_of_doubles(ax, false, b, false, g.rows, g.columns, g.columns);
          const double squares = static_cast<double>(*part(t[3], g.places[5].spread, i));
          const double step = static_cast<double>(t[5].as<StepState>()->lr) *
                              static_cast<double>(t[6].as<UpdateResult>()->grad_scale) / (1 + std::sqrt(squares));
          float* const p = t[4].f32() + g.flat().at(i);
          for (std::size_t j = 0; j < u.size(); ++j) p[j] = static_cast<float>(static_cast<double>(p[j]) - step * u[j]);
        }
      }});
}

void shampoo_update(program::Builder& b, const LoweredModel& m, const config::Optim& settings) {
  const auto room = [](std::int64_t, std::int64_t) { return std::int64_t{6}; };
  for (const MatrixGroup& g : matrix_groups(m, room, kShampooSizes)) {
    const auto flat = [&](std::string_view array) {
      return m.view(b, array, {g.first(), g.first() + g.flat().at(g.count - 1) + g.rows * g.columns});
    };
    const auto kept = [&](std::size_t kind) {
      const MatrixGroup::Place& at = g.places[kind + 1];
      return b.view(m.set.owner(m.at(kShampooRows[kind])), kShampooRows[kind],
                    {at.spread.at(g.count - 1) + kShampooSizes[kind](g.rows, g.columns)}, 4 * at.first);
    };
    const ValueId gradients = flat(optim::kGradients), left = kept(0), right = kept(1), left_root = kept(2),
                  right_root = kept(3), squares = kept(4);
    const std::string name = fmt::format("shampoo {}x{}", g.rows, g.columns);
    b.custom({statistics_of(g), {gradients, left, right, squares, m.update_result}}, name + " statistics");
    b.every(kRootsEvery);
    b.custom({roots_of(g), {left, right, left_root, right_root}}, name + " roots");
    b.every(1);
    b.custom({moves_of(g),
              {gradients, left_root, right_root, squares, flat(optim::kParameters), m.step_state, m.update_result}},
             name);
  }
  adamw_where(b, m, settings, [](const ParameterSpec& p) { return !p.by_matrix; });
}

std::vector<Range> shampoo_whole(const ParameterTable& table, const FlatLayout& layout) {
  std::vector<Range> ranges;
  for (const LayerMatrix& m : layer_matrices(table, layout)) ranges.push_back(m.range());
  return ranges;
}

const Optimizer kShampoo = {shampoo_state, shampoo_update, shampoo_whole, true};

config::Model shampoo_model() {
  config::Model m = tiny_model("llama");
  m.layers = 3;
  m.hidden = 12;
  m.heads = 2;
  m.kv_heads = 1;
  m.head_dim = 6;
  m.ffn = 10;
  return m;
}
LoweringOptions shampoo_options() {
  LoweringOptions o;
  o.batch = kTinyShape;
  o.accumulate = false;
  o.optimizer = &kShampoo;
  return o;
}

TEST(Shampoo, MovesMatricesAsDoublesSay) {
  const config::Model model = shampoo_model();
  device::CpuDevice device(2);
  TinyEngine engine(model, shampoo_options(), device);
  EXPECT_EQ(program::check_plan(engine.programs()), std::vector<std::string>{});
  struct Kept {
    Square left, right, left_root, right_root;
    double squares = 0;
  };
  const std::vector<LayerMatrix> matrices = layer_matrices(engine.table(), engine.layout());
  ASSERT_EQ(matrices.size(), 7u * 3);
  std::vector<Kept> kept(matrices.size());
  std::vector<float> roots;
  for (int step = 0; step < 5; ++step) {
    const std::vector<float> before = array_of(engine, optim::kParameters);
    step_on(engine, tiny_batch(model.vocab, static_cast<std::uint64_t>(step)), step, kShampooLr);
    const std::vector<float> after = array_of(engine, optim::kParameters),
                             gradients = array_of(engine, optim::kGradients);
    UpdateResult result;
    engine.executor().read(engine.lowered().update_result, &result, sizeof result);
    for (std::size_t k = 0; k < matrices.size(); ++k) {
      const LayerMatrix& m = matrices[k];
      Square g = doubles_of(gradients.data() + m.offset, m.rows * m.columns);
      for (double& v : g) v *= static_cast<double>(result.grad_scale);
      const auto add = [](Square& to, const Square& what) {
        to.resize(what.size());
        for (std::size_t i = 0; i < what.size(); ++i) to[i] += what[i];
      };
      Kept& s = kept[k];
      add(s.left, product_of_doubles(g, false, g, true, m.rows, m.rows, m.columns));
      add(s.right, product_of_doubles(g, true, g, false, m.columns, m.columns, m.rows));
      s.squares += dot(g, g);
      if (step % kRootsEvery == 0) {
        const auto root = [](Square a, std::int64_t n) {
          for (std::int64_t i = 0; i < n; ++i) a[static_cast<std::size_t>(i * n + i)] += kRootEps;
          return inverse_fourth_root(std::move(a), static_cast<std::size_t>(n));
        };
        s.left_root = root(s.left, m.rows);
        s.right_root = root(s.right, m.columns);
      }
      const Square ax = product_of_doubles(s.left_root, false, g, false, m.rows, m.columns, m.rows);
      const Square u = product_of_doubles(ax, false, s.right_root, false, m.rows, m.columns, m.columns);
      double largest = 0;
      for (const double v : u) largest = std::max(largest, std::abs(v));
      for (std::size_t i = 0; i < u.size(); ++i) {
        const std::size_t at = static_cast<std::size_t>(m.offset) + i;
        const double move = -kShampooLr * u[i] / (1 + std::sqrt(s.squares));
        ASSERT_NEAR(static_cast<double>(after[at]) - static_cast<double>(before[at]), move,
                    1e-4 * kShampooLr * largest + 1e-7)
            << m.name << ", step " << step;
      }
    }
    // Roots stay as they are between two of their steps.
    const program::ValueId all_roots = engine.programs().owner(engine.lowered().at("left root"));
    std::vector<float> now(static_cast<std::size_t>(engine.programs().at(all_roots).shape.elements()));
    engine.executor().read(all_roots, now);
    EXPECT_EQ(now == roots, step % kRootsEvery != 0) << step;
    roots = now;
  }
}

TEST(Shampoo, SeldomNodesAreInTheVariantOfTheirStepsAlone) {
  LoweringOptions o = shampoo_options();
  o.norms = true;
  const LoweredModel m = lower(shampoo_model(), o);
  for (const std::string_view name : {kUpdate, kUpdateWithNorms}) {
    const auto nodes_at = [&](std::uint64_t step) {
      std::int64_t roots = 0, others = 0;
      for (const program::Node& node : m.set.find(name, ops::Documents::packed, step).nodes)
        (node.every > 1 ? roots : others) += 1;
      return std::pair{roots, others};
    };
    const auto [roots, others] = nodes_at(0);
    EXPECT_GT(roots, 0) << name;
    EXPECT_EQ(nodes_at(3), std::pair(roots, others)) << name;
    for (const std::uint64_t step : {1, 2, 4, 5}) EXPECT_EQ(nodes_at(step), std::pair(std::int64_t{0}, others)) << step;
    EXPECT_EQ(&m.set.find(name), &m.set.find(name, ops::Documents::packed, 1)) << "plans count the usual step";
  }
}

// A value that only a seldom node makes would be anything at other steps.
TEST(Shampoo, WhatASeldomNodeLeavesBehindMustBeState) {
  program::ProgramSet set;
  program::Builder b(set);
  const auto kind = std::make_shared<ops::CustomKind>(ops::CustomKind{{{"x", Access::read}, {"y", Access::write}}, {}});
  const ValueId x = b.declare("x", {4}, DType::f32, program::Role::input);
  b.begin("update", {});
  const ValueId y = b.scratch("y", {4}), z = b.scratch("z", {4});
  b.every(2);
  b.custom({kind, {x, y}}, "seldom");
  b.every(1);
  b.custom({kind, {y, z}}, "always");
  b.end();
  EXPECT_THROW(set.split_by_step(), MachineError);
}

// Matrices of one shape are one node's, within a layer and over layers, and every matrix is in one group.
TEST(Shampoo, GroupsHoldEveryMatrixOnce) {
  const LoweredModel m = lower(shampoo_model(), shampoo_options());
  for (const std::int64_t room : {1, 4, 100}) {
    std::map<std::int64_t, int> seen;
    std::size_t groups = 0;
    for (const MatrixGroup& g : matrix_groups(m, [&](auto, auto) { return room; }, {squared_rows})) {
      ++groups;
      EXPECT_LE(g.count, std::max<std::int64_t>(room, 1));
      for (std::int64_t i = 0; i < g.count; ++i) ++seen[g.first() + g.flat().at(i)];
    }
    const std::vector<LayerMatrix> all = layer_matrices(m.table, m.layout);
    EXPECT_EQ(seen.size(), all.size());
    for (const LayerMatrix& x : all) EXPECT_EQ(seen[x.offset], 1) << x.name;
    if (room == 1) {
      EXPECT_EQ(groups, all.size());
    } else {
      EXPECT_LT(groups, all.size());
    }
  }
}

// Saved with its own shapes, and loaded it goes on with the same bits.
TEST(Shampoo, GoesOnFromItsFilesWithTheSameBits) {
  const config::Model model = shampoo_model();
  device::CpuDevice device(1);
  const auto train = [&](Engine& engine, int from, int to) {
    for (int step = from; step < to; ++step)
      step_on(engine, tiny_batch(model.vocab, static_cast<std::uint64_t>(step)), step, kShampooLr);
  };
  TinyEngine engine(model, shampoo_options(), device);
  train(engine, 0, 2);
  const TempFolder folder;
  const optim::StateTable& table = engine.lowered().state;
  for (const std::string& file : state_files(table))
    write_state(
        state_tensors(table, engine.layout(), file),
        [&](std::span<const StateTensor> tensors, const TakeBytes& take) {
          read_state(tensors, engine.state(), engine.device(), take);
        },
        real_files(), folder.path() / file);
  const io::SafetensorsReader saved(folder.path() / optim::kOptimizerFile);
  EXPECT_EQ(saved.at("left.model.layers.1.mlp.gate_proj.weight").shape, (std::vector<std::int64_t>{10, 10}));
  EXPECT_EQ(saved.at("right root.model.layers.1.mlp.gate_proj.weight").shape, (std::vector<std::int64_t>{12, 12}));
  EXPECT_EQ(saved.at("squares.model.layers.2.self_attn.q_proj.weight").shape, (std::vector<std::int64_t>{1}));
  train(engine, 2, 5);

  TinyEngine again(model, shampoo_options(), device);
  std::vector<io::WeightFiles> files;
  for (const std::string& file : state_files(table)) files.emplace_back(real_files(), folder.path(), file);
  std::vector<Engine::FileToLoad> loads;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string file = state_files(table)[i];
    if (file == io::kWeightsFile)
      loads = weights_to_load(again, files[i]);
    else
      loads.push_back(state_to_load(again, files[i].files()[0], file));
  }
  again.load(loads);
  train(again, 2, 5);
  const auto bytes = [](Engine& e) {
    return all_bytes(e, [&](std::span<const StateTensor> tensors, const TakeBytes& take) {
      read_state(tensors, e.state(), e.device(), take);
    });
  };
  EXPECT_EQ(bytes(again), bytes(engine));
}

// Ranks have whole matrices, and what is kept for them: together the same state as one, and the same steps.
TEST(Shampoo, IsTheSameOnSeveralRanks) {
  const config::Model model = shampoo_model();
  const data::Batch batch = tiny_batch(model.vocab);
  const auto parameters_on = [&](int ranks) {
    std::vector<float> all;
    std::mutex mutex;
    on_ranks(ranks, [&](dist::Group& group) {
      LoweringOptions o = shampoo_options();
      if (ranks > 1) o.sharing = {.rank = group.rank(), .ranks = ranks, .mode = dist::Mode::zero1};
      if (ranks > 1) o.execution.group = &group;
      device::CpuDevice device(1);
      TinyEngine engine(model, o, device);
      for (int step = 0; step < 4; ++step) step_on(engine, batch, step, kShampooLr);
      const Range own = engine.lowered().own;
      const Range here = engine.lowered().state[engine.lowered().row(optim::kParameters)].range;
      const std::vector<float> parameters = array_of(engine, optim::kParameters);
      std::int64_t held = 0, of = 0;
      for (const optim::StateArray& a : engine.lowered().state)
        if (a.name == kShampooRows[0]) held += a.elements(), of += a.shape.elements();
      EXPECT_EQ(held<of, ranks> 1) << "a rank keeps what is about its own matrices";
      const std::scoped_lock lock(mutex);
      all.resize(static_cast<std::size_t>(engine.layout().total));
      std::copy(parameters.begin() + (own.begin - here.begin), parameters.begin() + (own.end - here.begin),
                all.begin() + own.begin);
    });
    return all;
  };
  const std::vector<float> alone = parameters_on(1);
  for (const int ranks : {2, 3}) {
    const std::vector<float> shared = parameters_on(ranks);
    ASSERT_EQ(shared.size(), alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i) ASSERT_NEAR(shared[i], alone[i], 1e-4f) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace redline::model
