// Matrices made orthogonal, many of one shape at once: all singular values of X, which must not be above 1, are brought
// near 1 and its singular vectors stay. A round, with X [m, n], m <= n (a taller one is taken as its transpose):
//   A = X X^T;  B = b A + c A^2;  X = a X + B X
// quintic: the same polynomial in each round, fast at small singular values; they end between 0.7 and 1.2 (Muon's).
// polar_express: each round its own, the best of its degree for what the rounds before leave; those after the fifth
// repeat it (arXiv 2505.16932).
#pragma once

#include <algorithm>

#include "base/tensor.h"
#include "ops/how.h"

namespace redline::ops {

enum class Polynomials : std::uint8_t { quintic, polar_express };

struct Polynomial {
  float a, b, c;
};
// The polynomial of a round, counted from 0.
constexpr Polynomial polynomial(Polynomials which, std::int64_t round) {
  constexpr Polynomial kPolarExpress[] = {
      {8.156554524902461f, -22.48329292557795f, 15.878769915207462f},
      {4.042929935166739f, -2.808917465908714f, 0.5000178451051316f},
      {3.8916678022926607f, -2.772484153217685f, 0.5060648178503393f},
      {3.285753657755655f, -2.3681294933425376f, 0.46449024233003106f},
      {2.3465413258596377f, -1.7097828382687081f, 0.42323551169305323f},
  };
  if (which == Polynomials::quintic) return {3.4445f, -4.7750f, 2.0315f};
  return kPolarExpress[std::min<std::int64_t>(round, std::size(kPolarExpress) - 1)];
}

// The result is in y after an odd number of rounds and in x after an even one; the other holds the round before.
template <class T>
struct Orthogonalize {
  static constexpr std::string_view kName = "orthogonalize";
  T x;            // [count, rows, columns]  in place
  T y;            // the same  =
  T gram;         // [count, m, m]  =   scratch, m the shorter side
  T square;       // [count, m, m]  =   scratch
  T workspace{};  // bytes of scratch for a library; absent: it does without
  Polynomials polynomials{};
  std::int64_t rounds = 5;
  ProductHow how{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", x, Access::read));
    return Orthogonalize<U>{f("x", x, Access::update),
                            f("y", y, Access::write),
                            f("gram", gram, Access::write),
                            f("square", square, Access::write),
                            f("workspace", workspace, Access::write),
                            polynomials,
                            rounds,
                            how};
  }
  const T& result() const { return rounds % 2 == 0 ? x : y; }
  double flops() const {
    const auto extent = [&](int i) { return static_cast<double>(x.shape[i]); };
    const double m = std::min(extent(1), extent(2)), n = std::max(extent(1), extent(2));
    return extent(0) * static_cast<double>(rounds) * (4 * m * m * n + 2 * m * m * m);
  }
};

}  // namespace redline::ops
