// A tensor is a view of a dense row-major array (its address, element type and shape) that owns nothing. Ops declare
// which tensors they touch.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/error.h"

namespace redline {

// Up to four extents. A scalar has rank 1 and extent 1; there is no rank 0.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents) {
    REDLINE_CHECK(extents.size() <= kMaxRank, "a shape has at most {} dimensions", kMaxRank);
    for (std::int64_t e : extents) extents_[static_cast<std::size_t>(rank_++)] = e;
  }

  int rank() const { return rank_; }
  std::int64_t operator[](int i) const { return extents_[static_cast<std::size_t>(i < 0 ? rank_ + i : i)]; }
  std::int64_t elements() const {
    std::int64_t n = rank_ == 0 ? 0 : 1;
    for (int i = 0; i < rank_; ++i) n *= extents_[static_cast<std::size_t>(i)];
    return n;
  }
  bool operator==(const Shape&) const = default;
  std::string str() const {
    std::string s = "[";
    for (int i = 0; i < rank_; ++i) s += fmt::format("{}{}", i ? ", " : "", (*this)[i]);
    return s + "]";
  }

 private:
  std::array<std::int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;

  bool present() const { return shape.rank() > 0; }  // optional operands of an op are absent
  std::int64_t elements() const { return shape.elements(); }
  std::int64_t bytes() const { return elements() * static_cast<std::int64_t>(size_of(dtype)); }
  // The product of all extents but the last, and the last: how kernels that work row by row see any tensor.
  std::int64_t rows() const { return shape.rank() <= 1 ? 1 : elements() / shape[-1]; }
  std::int64_t columns() const { return shape[-1]; }

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  float* f32() const { return as<float>(); }
  std::int32_t* i32() const { return as<std::int32_t>(); }
};

// How an op declares its operands. Every op is a struct template over its operand type T: ValueId while a program
// is being built, Tensor when it is bound. Its one member map(f) calls f(name, operand, access) for each operand
// in order and returns the same op over f's results, attributes kept. Lifetimes, binding, checks and byte counts
// all come from it.
enum class Access : std::uint8_t {
  read,
  write,   // =   every element is written, nothing is read
  update,  // +=  or in place: read and written
};

// Attention's mask keeps the pairs of a query with itself and with every earlier token of its document, or with a
// window only with the last of these, itself included.
inline constexpr std::int64_t kNoWindow = 0;
constexpr double kept_pairs(double tokens, std::int64_t window = kNoWindow) {
  const double w = static_cast<double>(window);
  return window == kNoWindow || w >= tokens ? tokens * (tokens + 1) / 2 : w * (w + 1) / 2 + (tokens - w) * w;
}

// The least work of a node: floating point operations of matrix products (element-wise arithmetic is not
// counted) and bytes moved once. Attention depends on the documents of a batch: flops_per_pair counts per
// (query, key) pair that its own mask keeps.
struct Cost {
  double flops = 0;
  double flops_per_pair = 0;
  double bytes = 0;
  std::int64_t window = kNoWindow;  // of the pairs
};

// The access of an output that is written by the first contribution and added to by later ones.
constexpr Access written_or_added(bool accumulate) { return accumulate ? Access::update : Access::write; }

}  // namespace redline
