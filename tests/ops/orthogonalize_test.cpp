// Matrices become orthogonal: the rounds as they are written down, in doubles, for any shape and any number of
// matrices.
#include "ops/orthogonalize.h"

#include "ops/cpu/kernels.h"
#include "testing/op_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

// One matrix of the batch, always as X X^T with the short side first.
Values rounds_in_double(Values x, std::int64_t rows, std::int64_t columns, Polynomials which, std::int64_t rounds) {
  const std::int64_t m = std::min(rows, columns), n = std::max(rows, columns);
  const auto turned = [](const Values& v, std::int64_t r, std::int64_t c) {
    Values t(v.size());
    for (std::int64_t i = 0; i < r; ++i)
      for (std::int64_t j = 0; j < c; ++j)
        t[static_cast<std::size_t>(j * r + i)] = v[static_cast<std::size_t>(i * c + j)];
    return t;
  };
  if (rows > columns) x = turned(x, rows, columns);
  for (std::int64_t round = 0; round < rounds; ++round) {
    const auto [a, b, c] = polynomial(which, round);
    const Values gram = product_of_doubles(x, false, x, true, m, m, n),
                 square = product_of_doubles(gram, false, gram, false, m, m, m);
    Values both(gram.size());
    for (std::size_t i = 0; i < both.size(); ++i)
      both[i] = static_cast<double>(b) * gram[i] + static_cast<double>(c) * square[i];
    Values next = product_of_doubles(both, false, x, false, m, n, m);
    for (std::size_t i = 0; i < x.size(); ++i) next[i] += static_cast<double>(a) * x[i];
    x = next;
  }
  return rows > columns ? turned(x, n == rows ? m : n, n == rows ? n : m) : x;
}

struct MatricesCase {
  std::int64_t count, rows, columns;
};

Orthogonalize<Tensor> op_of(Memory& memory, const MatricesCase& c, Polynomials which, std::int64_t rounds) {
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
  for (const MatricesCase& c :
       {MatricesCase{1, 1, 1}, MatricesCase{2, 1, 9}, MatricesCase{3, 7, 1}, MatricesCase{2, 17, 17},
        MatricesCase{1, 40, 13}, MatricesCase{3, 13, 40}, MatricesCase{1, 100, 70}})
    for (const Polynomials which : {Polynomials::quintic, Polynomials::polar_express})
      for (const std::int64_t rounds : {1, 5, 6}) {
        Memory memory;
        const Orthogonalize<Tensor> op = op_of(memory, c, which, rounds);
        const Values start = values_of(op.x);
        run_checked(memory, op);
        const auto elements = c.rows * c.columns;
        Values want;
        for (std::int64_t i = 0; i < c.count; ++i) {
          const Values one = rounds_in_double({start.begin() + i * elements, start.begin() + (i + 1) * elements},
                                              c.rows, c.columns, which, rounds);
          want.insert(want.end(), one.begin(), one.end());
        }
        expect_close("result", op.result(), want, 2e-4);
      }
}

// Where a matrix is not near singular, the result times its own transpose is near the unit matrix.
TEST(Orthogonalize, FiveRoundsOfPolarExpressAreNearlyOrthogonal) {
  Memory memory;
  const Orthogonalize<Tensor> op = op_of(memory, {1, 16, 64}, Polynomials::polar_express, 5);
  run_checked(memory, op);
  const Values x = values_of(op.result()), gram = product_of_doubles(x, false, x, true, 16, 16, 64);
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
  run_checked(memory, op);
  EXPECT_EQ(values_of(op.result()), Values(2 * 8 * 12));
}

TEST(Orthogonalize, CountsTheFlopsOfItsRounds) {
  Memory memory;
  EXPECT_EQ(op_of(memory, {3, 7, 20}, Polynomials::quintic, 5).flops(), 3 * 5 * (4.0 * 49 * 20 + 2 * 343));
  EXPECT_EQ(op_of(memory, {1, 20, 7}, Polynomials::quintic, 2).flops(), 2 * (4.0 * 49 * 20 + 2 * 343));
}

}  // namespace
}  // namespace redline::ops
