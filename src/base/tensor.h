// A view of a dense row-major array: its address, element type and shape. It owns nothing.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

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

}  // namespace redline
