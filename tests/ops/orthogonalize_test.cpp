// Matrices become orthogonal: the rounds as they are written down, in doubles, for any shape and any number of
// matrices.
#include "ops/orthogonalize.h"

#include "ops/cpu/kernels.h"
#include "testing/op_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

const auto kRun = [](auto& op, auto& pool) { cpu::run(op, pool); };

// [rows, columns] = a * b, either of them turned over.
Values product(const Values& a, const Values& b, std::size_t rows, std::size_t inner, std::size_t columns, bool ta,
               bool tb) {
  Values c(rows * columns);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t k = 0; k < inner; ++k)
      for (std::size_t j = 0; j < columns; ++j)
        c[i * columns + j] += a[ta ? k * rows + i : i * inner + k] * b[tb ? j * inner + k : k * columns + j];
  return c;
}

// One matrix of the batch, always as X X^T with the short side first.
Values rounds_in_double(Values x, std::size_t rows, std::size_t columns, Polynomials which, std::int64_t rounds) {
  const std::size_t m = std::min(rows, columns), n = std::max(rows, columns);
  const auto turned = [](const Values& v, std::size_t r, std::size_t c) {
    Values t(v.size());
    for (std::size_t i = 0; i < r; ++i)
      for (std::size_t j = 0; j < c; ++j) t[j * r + i] = v[i * c + j];
    return t;
  };
  if (rows > columns) x = turned(x, rows, columns);
  for (std::int64_t round = 0; round < rounds; ++round) {
    const auto [a, b, c] = polynomial(which, round);
    const Values gram = product(x, x, m, n, m, false, true), square = product(gram, gram, m, m, m, false, false);
    Values both(m * m);
    for (std::size_t i = 0; i < both.size(); ++i)
      both[i] = static_cast<double>(b) * gram[i] + static_cast<double>(c) * square[i];
    Values next = product(both, x, m, m, n, false, false);
    for (std::size_t i = 0; i < x.size(); ++i) next[i] += static_cast<double>(a) * x[i];
    x = next;
  }
  return rows > columns ? turned(x, n == rows ? m : n, n == rows ? n : m) : x;
}

struct Case {
  std::int64_t count, rows, columns;
};

Orthogonalize<Tensor> op_of(Memory& memory, const Case& c, Polynomials which, std::int64_t rounds) {
  const std::int64_t side = std::min(c.rows, c.columns);
  const Tensor x = memory.uniform({c.count, c.rows, c.columns});
  for (std::int64_t i = 0; i < c.count; ++i) {
    double squares = 0;
    float* const matrix = x.f32() + i * c.rows * c.columns;
    for (std::int64_t j = 0; j < c.rows * c.columns; ++j) squares += static_cast<double>(matrix[j] * matrix[j]);
    for (std::int64_t j = 0; j < c.rows * c.columns; ++j) matrix[j] /= static_cast<float>(1.02 * std::sqrt(squares));
  }
  return {x,
          memory.zeros({c.count, c.rows, c.columns}),
          memory.zeros({c.count, side, side}),
          memory.zeros({c.count, side, side}),
          {},
          which,
          rounds};
}

TEST(Orthogonalize, MatchesDoublesForEveryShapeAndPolynomial) {
  for (const Case& c : {Case{1, 1, 1}, Case{2, 1, 9}, Case{3, 7, 1}, Case{2, 17, 17}, Case{1, 40, 13}, Case{3, 13, 40},
                        Case{1, 100, 70}})
    for (const Polynomials which : {Polynomials::quintic, Polynomials::polar_express})
      for (const std::int64_t rounds : {1, 5, 6}) {
        Memory memory;
        const Orthogonalize<Tensor> op = op_of(memory, c, which, rounds);
        const Values start = values_of(op.x);
        run_checked(memory, op, kRun);
        const auto elements = c.rows * c.columns;
        Values want;
        for (std::int64_t i = 0; i < c.count; ++i) {
          const Values one =
              rounds_in_double({start.begin() + i * elements, start.begin() + (i + 1) * elements},
                               static_cast<std::size_t>(c.rows), static_cast<std::size_t>(c.columns), which, rounds);
          want.insert(want.end(), one.begin(), one.end());
        }
        expect_close("result", op.result(), want, 2e-4);
      }
}

// Of a matrix that is not near singular the result times its own transpose is near the unit matrix.
TEST(Orthogonalize, FiveRoundsOfPolarExpressAreNearlyOrthogonal) {
  Memory memory;
  const Orthogonalize<Tensor> op = op_of(memory, {1, 16, 64}, Polynomials::polar_express, 5);
  run_checked(memory, op, kRun);
  const Values x = values_of(op.result()), gram = product(x, x, 16, 64, 16, false, true);
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 16; ++j) EXPECT_NEAR(gram[i * 16 + j], i == j ? 1 : 0, 0.2) << i << ", " << j;
}

TEST(Orthogonalize, LaterRoundsOfPolarExpressRepeatTheFifth) {
  EXPECT_EQ(polynomial(Polynomials::polar_express, 11).a, polynomial(Polynomials::polar_express, 4).a);
  EXPECT_NE(polynomial(Polynomials::polar_express, 3).a, polynomial(Polynomials::polar_express, 4).a);
  EXPECT_EQ(polynomial(Polynomials::quintic, 0).c, polynomial(Polynomials::quintic, 7).c);
}

TEST(Orthogonalize, ZerosStayZero) {
  Memory memory;
  const Orthogonalize<Tensor> op = op_of(memory, {2, 8, 12}, Polynomials::quintic, 5);
  std::fill_n(op.x.f32(), op.x.elements(), 0.0f);
  run_checked(memory, op, kRun);
  EXPECT_EQ(values_of(op.result()), Values(2 * 8 * 12));
}

TEST(Orthogonalize, CountsTheFlopsOfItsRounds) {
  Memory memory;
  EXPECT_EQ(op_of(memory, {3, 7, 20}, Polynomials::quintic, 5).flops(), 3 * 5 * (4.0 * 49 * 20 + 2 * 343));
  EXPECT_EQ(op_of(memory, {1, 20, 7}, Polynomials::quintic, 2).flops(), 2 * (4.0 * 49 * 20 + 2 * 343));
}

}  // namespace
}  // namespace redline::ops
