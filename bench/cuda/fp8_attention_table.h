// What the benchmark of attention in eight bits prints: a row a precision, and a sentence a model.
#pragma once

#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"

namespace redline::fp8_attention {

inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

inline constexpr const char* kMixed = "fp8 forward, bf16 backward";

struct Errors {
  double out = kNone, dq = kNone, dk = kNone, dv = kNone;
  double of_gradients() const { return dq + dk + dv; }
};
inline bool better(double error, double than) { return std::isnan(than) || error < than; }

struct Row {
  std::string model, precision;
  double forward = kNone, backward = kNone, casts = 0;  // ms
  double flops = 0;
  Errors errors = {};
  double sum() const { return forward + backward + casts; }
  // Whether results are those of attention at all: half of a tensor's size is no rounding any more. Gradients of a pass
  // in bf16 are not looked at.
  bool believable() const {
    return errors.out < 0.5 && (precision == kMixed || (errors.dq < 0.5 && errors.dk < 0.5 && errors.dv < 0.5));
  }
};

inline std::string number(double x, int digits) { return std::isnan(x) ? "-" : fmt::format("{:.{}f}", x, digits); }
inline std::string percent(double x) { return std::isnan(x) ? "-" : fmt::format("{:.2f}%", 100 * x); }

inline void print_table(const std::vector<Row>& rows) {
  std::puts(
      "| model | precision | forward, ms | backward, ms | casts, ms | sum, ms | TFLOP/s | error of O | of dQ | of dK | "
      "of dV |\n|---|---|---|---|---|---|---|---|---|---|---|");
  for (const Row& r : rows) {
    const Errors& e = r.errors;
    const std::string line =
        fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |", r.model, r.precision,
                    number(r.forward, 3), number(r.backward, 3), number(r.casts, 3), number(r.sum(), 3),
                    number(1e-9 * r.flops / r.sum(), 0), percent(e.out), percent(e.dq), percent(e.dk), percent(e.dv));
    std::puts(line.c_str());
  }
}

// Whether the best of fp8 wins, with its casts.
inline std::string verdict(const std::string& model, const std::vector<Row>& rows) {
  const Row* bf16 = nullptr;
  const Row* fp8 = nullptr;
  for (const Row& r : rows) {
    if (r.model != model || !std::isfinite(r.sum())) continue;
    if (r.precision == "bf16")
      bf16 = &r;
    else if (r.believable() && (!fp8 || r.sum() < fp8->sum()))
      fp8 = &r;
  }
  if (!bf16) return fmt::format("{}: bf16 was not measured.", model);
  if (!fp8)
    return fmt::format("{}: fp8 gave no result to believe, so bf16 with its {:.3f} ms stays.", model, bf16->sum());
  const double gain = 1 - fp8->sum() / bf16->sum();
  return fmt::format("{}: the best of fp8 ({}) takes {:.3f} ms with its casts and bf16 {:.3f} ms, so fp8 {} {:.1f}%.",
                     model, fp8->precision, fp8->sum(), bf16->sum(), gain > 0 ? "wins" : "loses", 100 * std::abs(gain));
}

}  // namespace redline::fp8_attention
