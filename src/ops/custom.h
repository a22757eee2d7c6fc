// An op that is not one of the set: what it reads and writes, and a function that computes it, on the CPU alone. It is
// for what is tried out, as an optimizer of the tests: what stays becomes an op of its own (docs/tour.md).
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "base/thread_pool.h"

namespace redline::ops {

inline constexpr std::size_t kMostCustomOperands = 12;

struct CustomKind {
  struct Operand {
    std::string name;
    Access access = Access::read;
  };
  std::vector<Operand> operands;
  std::function<void(std::span<const Tensor> operands, ThreadPool& pool)> run;
};

template <class T>
struct Custom {
  static constexpr std::string_view kName = "custom";
  std::shared_ptr<const CustomKind> kind;
  std::array<T, kMostCustomOperands> operands{};  // as many as the kind has

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", operands[0], Access::read));
    Custom<U> mapped{kind, {}};
    for (std::size_t i = 0; i < kind->operands.size(); ++i)
      mapped.operands[i] = f(kind->operands[i].name, operands[i], kind->operands[i].access);
    return mapped;
  }
};

}  // namespace redline::ops
