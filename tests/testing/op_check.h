// What every op's test needs: arrays with guards around them, a run that holds the op to its contract (the same bits on
// any number of threads, what it reads left alone, what it writes written whole), and gradients by finite differences
// of a reference in double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "base/small_floats.h"
#include "base/tensor.h"
#include "base/thread_pool.h"
#include "ops/cpu/kernels.h"
#include "optim/cpu/kernels.h"

namespace redline::testing {

using Values = std::vector<double>;

// Owns the arrays of a test; each lies between guard bytes that no op may touch.
class Memory {
 public:
  Tensor array(DType dtype, const Shape& shape) {
    Tensor t{nullptr, dtype, shape};
    auto& bytes = arrays_.emplace_back(static_cast<std::size_t>(t.bytes()) + 2 * kGuard, kGuardByte);
    t.data = bytes.data() + kGuard;
    std::memset(t.data, 0, static_cast<std::size_t>(t.bytes()));
    return t;
  }
  Tensor zeros(const Shape& shape) { return array(DType::f32, shape); }
  Tensor doubles(std::int64_t n) { return array(DType::f64, {n}); }
  // Uniform in [low, high); every array of a Memory gets other numbers.
  Tensor uniform(const Shape& shape, double low = -1, double high = 1) {
    const Tensor t = zeros(shape);
    const Random random(seed_, arrays_.size());
    for (std::int64_t i = 0; i < t.elements(); ++i) {
      t.f32()[i] = static_cast<float>(low + (high - low) * random.uniform(static_cast<std::uint64_t>(i)));
    }
    return t;
  }
  Tensor integers(const std::vector<std::int64_t>& values) {
    const Tensor t = array(DType::i32, {static_cast<std::int64_t>(values.size())});
    for (std::size_t i = 0; i < values.size(); ++i) t.i32()[i] = static_cast<std::int32_t>(values[i]);
    return t;
  }
  template <class T>
  Tensor object(const T& value) {
    const Tensor t = array(DType::u8, {static_cast<std::int64_t>(sizeof(T))});
    std::memcpy(t.data, &value, sizeof(T));
    return t;
  }
  bool guards_whole() const {
    const auto whole = [](std::uint8_t byte) { return byte == kGuardByte; };
    return std::all_of(arrays_.begin(), arrays_.end(), [&](const auto& bytes) {
      return std::all_of(bytes.begin(), bytes.begin() + kGuard, whole) &&
             std::all_of(bytes.end() - kGuard, bytes.end(), whole);
    });
  }
  std::deque<std::vector<std::uint8_t>>& arrays() { return arrays_; }
  void set_seed(std::uint64_t seed) { seed_ = seed; }

 private:
  static constexpr std::ptrdiff_t kGuard = 64;
  static constexpr std::uint8_t kGuardByte = 0xA5;
  std::deque<std::vector<std::uint8_t>> arrays_;
  std::uint64_t seed_ = 1;
};

// The pools of 1, 2 and 3 threads on which everything is run.
inline std::vector<ThreadPool*> all_pools() {
  static ThreadPool one(1), two(2), three(3);
  return {&one, &two, &three};
}

// An op on the CPU, whether it is of ops or of optim.
template <class Op>
void run_on_cpu(const Op& op, ThreadPool& pool) {
  using ops::cpu::run;
  using optim::cpu::run;
  run(op, pool);
}

// Runs the op on each pool from the same start. What it only reads must stay, what it writes starts as NaN (all bits
// set), the guards hold, and all of memory comes out with the same bits.
template <class Op>
void run_checked(Memory& memory, const Op& op) {
  struct Operand {
    std::string name;
    Tensor tensor;
    Access access;
  };
  std::vector<Operand> operands;
  op.map([&](std::string_view name, const Tensor& t, Access access) {
    if (t.present()) operands.push_back({std::string(name), t, access});
    return 0;
  });
  const auto count = [&](const void* data, auto of) {
    return std::count_if(operands.begin(), operands.end(),
                         [&](const Operand& o) { return o.tensor.data == data && of(o.access); });
  };
  for (const Operand& o : operands) {
    const bool read_too = count(o.tensor.data, [](Access a) { return a != Access::write; }) > 0;
    if (o.access == Access::write && !read_too)
      std::memset(o.tensor.data, 0xFF, static_cast<std::size_t>(o.tensor.bytes()));
  }
  const auto bytes_of = [](const Tensor& t) {
    const auto* data = t.as<std::uint8_t>();
    return std::vector<std::uint8_t>(data, data + t.bytes());
  };
  std::vector<std::vector<std::uint8_t>> before, first;
  for (const Operand& o : operands) before.push_back(bytes_of(o.tensor));
  for (ThreadPool* pool : all_pools()) {
    for (std::size_t i = 0; i < operands.size(); ++i) {
      std::memcpy(operands[i].tensor.data, before[i].data(), before[i].size());
    }
    run_on_cpu(op, *pool);
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const Operand& o = operands[i];
      const bool written = count(o.tensor.data, [](Access a) { return a != Access::read; }) > 0;
      EXPECT_TRUE(written || bytes_of(o.tensor) == before[i]) << Op::kName << " changed " << o.name;
      if (pool == all_pools().front()) {
        first.push_back(bytes_of(o.tensor));
      } else {
        EXPECT_TRUE(bytes_of(o.tensor) == first[i])
            << o.name << " differs between 1 and " << pool->threads() << " threads";
      }
    }
  }
  EXPECT_TRUE(memory.guards_whole()) << Op::kName << " wrote outside its arrays";
}

inline Values values_of(const Tensor& t) {
  Values v(static_cast<std::size_t>(t.elements()));
  for (std::size_t i = 0; i < v.size(); ++i) {
    if (is_fp8(t.dtype))
      v[i] = static_cast<double>(f32_from_fp8(t.as<std::uint8_t>()[i], fp8_format(t.dtype)));
    else
      v[i] = t.dtype == DType::f64   ? t.as<double>()[i]
             : t.dtype == DType::i32 ? static_cast<double>(t.i32()[i])
                                     : static_cast<double>(t.f32()[i]);
  }
  return v;
}

// The usual size of an entry: what absolute errors are measured in.
inline double typical(const Values& v) {
  double squares = 0;
  for (double x : v) squares += x * x;
  return v.empty() ? 0 : std::sqrt(squares / static_cast<double>(v.size()));
}

// got == want + base, to `tolerance` of the entry or of a usual entry. base: what an accumulating output held before.
inline void expect_close(std::string_view name, const Tensor& got, const Values& want, double tolerance,
                         const Values& base = {}) {
  const Values g = values_of(got);
  ASSERT_EQ(g.size(), want.size()) << name;
  const double usual = typical(want) + typical(base);
  for (std::size_t i = 0; i < g.size(); ++i) {
    const double expected = want[i] + (base.empty() ? 0 : base[i]);
    ASSERT_LE(std::abs(g[i] - expected), tolerance * (usual + std::abs(expected)) + 1e-12)
        << name << "[" << i << "] is " << g[i] << ", expected " << expected;
  }
}

// The gradient of a loss over doubles: `loss()` reads `input`, which is moved a little at a time. At most kSampled
// entries are looked at, spread over the array.
template <class Loss>
void expect_gradient(std::string_view name, const Tensor& got, Values& input, const Loss& loss, double tolerance,
                     const Values& base = {}) {
  constexpr std::size_t kSampled = 24;
  constexpr double kStep = 1e-4;
  const Values g = values_of(got);
  ASSERT_EQ(g.size(), input.size()) << name;
  const double usual = typical(g);
  const Random random(99, g.size());
  for (std::size_t s = 0; s < std::min(kSampled, g.size()); ++s) {
    const std::size_t i = g.size() <= kSampled ? s : random.below(s, g.size());
    const double kept = input[i];
    input[i] = kept + kStep;
    const double above = loss();
    input[i] = kept - kStep;
    const double below = loss();
    input[i] = kept;
    const double expected = (above - below) / (2 * kStep) + (base.empty() ? 0 : base[i]);
    ASSERT_LE(std::abs(g[i] - expected), tolerance * (usual + std::abs(expected)) + 1e-6)
        << name << "[" << i << "] is " << g[i] << ", expected " << expected;
  }
}

inline double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// [m, n] = a b over k, either of them stored turned over.
inline Values product_of_doubles(const Values& a, bool turned_a, const Values& b, bool turned_b, std::int64_t m,
                                 std::int64_t n, std::int64_t k) {
  Values c(static_cast<std::size_t>(m * n));
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t l = 0; l < k; ++l) {
      const double x = a[static_cast<std::size_t>(turned_a ? l * m + i : i * k + l)];
      for (std::int64_t j = 0; j < n; ++j)
        c[static_cast<std::size_t>(i * n + j)] += x * b[static_cast<std::size_t>(turned_b ? j * k + l : l * n + j)];
    }
  }
  return c;
}

inline std::vector<std::int64_t> random_integers(std::int64_t n, std::int64_t limit, std::uint64_t seed) {
  std::vector<std::int64_t> v(static_cast<std::size_t>(n));
  const Random random(seed, 5);
  for (std::size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<std::int64_t>(random.below(i, static_cast<std::uint64_t>(limit)));
  return v;
}

}  // namespace redline::testing
