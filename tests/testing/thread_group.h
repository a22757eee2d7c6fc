// Ranks as threads of one process: collectives by plain loops over everybody's arrays. What an engine's must give.
#pragma once

#include <barrier>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/small_floats.h"
#include "dist/group.h"

namespace redline::testing {

class ThreadGroup final : public dist::Group {
 public:
  // What the ranks of one run share.
  struct Common {
    explicit Common(int ranks) : everybody(ranks), arrays(static_cast<std::size_t>(ranks)) {}
    std::barrier<> everybody;
    std::vector<Tensor> arrays;
  };
  ThreadGroup(Common& common, int rank) : common_(common), rank_(rank) {}

  int rank() const override { return rank_; }
  int ranks() const override { return static_cast<int>(common_.arrays.size()); }
  std::string engine() const override { return "threads"; }

  void run(const dist::AllReduce<Tensor>& op, void*) override {
    show(op.data);
    const std::vector<Tensor> arrays = arrays_of(ranks() / op.apart, op.apart);
    if (!op.data.present()) {
      agree();
    } else if (op.largest) {
      std::vector<float> most(op.data.f32(), op.data.f32() + op.data.elements());
      for (const Tensor& theirs : arrays)
        for (std::size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], theirs.f32()[i]);
      agree();
      std::ranges::copy(most, op.data.f32());
    } else if (op.data.dtype == DType::f64) {
      const std::vector<double> sums = sum_of<double>(arrays, 0, op.data.elements(), false);
      agree();
      std::ranges::copy(sums, op.data.as<double>());
    } else {
      std::vector<float> sums = sum_of<float>(arrays, 0, op.data.elements(), op.wire.present());
      if (op.wire.present())
        for (float& x : sums) x = f32_from_bf16(bf16_from_f32(x));
      agree();
      std::ranges::copy(sums, op.data.f32());
    }
    agree();
  }
  void run(const dist::ReduceShards<Tensor>& op, void*) override {
    show(op.data);
    const Range own = owned_part(op.shards, rank_ % op.shards.ranks, op.begin, op.begin + op.data.elements());
    const std::vector<float> sums =
        sum_of<float>(arrays_of(op.shards.ranks), own.begin - op.begin, own.end - op.begin, op.wire.present());
    agree();
    // Whoever reads what is not its own finds nothing there; gaps between parameters stay zeros.
    for (std::int64_t i = 0; i < op.data.elements(); ++i)
      if (op.data.f32()[i] != 0) op.data.f32()[i] = std::numeric_limits<float>::quiet_NaN();
    float* to = op.in_place ? op.data.f32() + (own.begin - op.begin) : op.shard.f32();
    REDLINE_CHECK(op.in_place || op.shard.elements() == own.elements() || own.empty(), "a shard of another size");
    for (std::size_t i = 0; i < sums.size(); ++i) to[i] = op.accumulate ? to[i] + sums[i] : sums[i];
    agree();
  }
  void run(const dist::GatherShards<Tensor>& op, void*) override {
    show(op.in_place ? op.data : op.shard);
    const auto size = static_cast<std::int64_t>(size_of(op.data.dtype));
    const std::vector<Tensor> arrays = arrays_of(op.shards.ranks);
    for (int r = 0; r < op.shards.ranks; ++r) {
      const Range own = owned_part(op.shards, r, op.begin, op.begin + op.data.elements());
      if (own.empty() || (op.in_place && r == rank_ % op.shards.ranks)) continue;
      const std::byte* from = arrays[static_cast<std::size_t>(r)].as<std::byte>();
      if (op.in_place) from += (own.begin - op.begin) * size;
      std::memcpy(op.data.as<std::byte>() + (own.begin - op.begin) * size, from,
                  static_cast<std::size_t>(own.elements() * size));
    }
    agree();
  }

  void run(const dist::AllToAll<Tensor>& op, void*) override {
    show(op.from);
    const std::vector<Tensor> arrays = arrays_of(op.among);
    const std::int64_t block = op.from.bytes() / op.among;
    for (int r = 0; r < op.among; ++r)
      std::memcpy(op.to.as<std::byte>() + r * block,
                  arrays[static_cast<std::size_t>(r)].as<std::byte>() + rank_ % op.among * block,
                  static_cast<std::size_t>(block));
    agree();
  }

 private:
  void show(const Tensor& mine) {
    common_.arrays[static_cast<std::size_t>(rank_)] = mine;
    agree();
  }
  void agree() { common_.everybody.arrive_and_wait(); }

  // Those of so many ranks that are so far apart, this one among them.
  std::vector<Tensor> arrays_of(int many, int apart = 1) const {
    const int first = apart > 1 ? rank_ % apart : rank_ / many * many;
    std::vector<Tensor> arrays;
    for (int i = 0; i < many; ++i) arrays.push_back(common_.arrays[static_cast<std::size_t>(first + i * apart)]);
    return arrays;
  }

  // Of neighbours first, then of pairs of them, and so on; a last one that has no neighbour waits.
  template <class T>
  static std::vector<T> sum_of(const std::vector<Tensor>& arrays, std::int64_t begin, std::int64_t end, bool rounded) {
    std::vector<T> sums;
    for (std::int64_t i = begin; i < end; ++i) {
      std::vector<T> left;
      for (const Tensor& array : arrays) {
        left.push_back(array.as<T>()[i]);
        if constexpr (std::is_same_v<T, float>)
          if (rounded) left.back() = f32_from_bf16(bf16_from_f32(left.back()));
      }
      while (left.size() > 1) {
        std::vector<T> pairs;
        for (std::size_t r = 0; r < left.size(); r += 2)
          pairs.push_back(r + 1 < left.size() ? left[r] + left[r + 1] : left[r]);
        left = std::move(pairs);
      }
      sums.push_back(left[0]);
    }
    return sums;
  }

  Common& common_;
  int rank_;
};

// Runs body(group) once for each rank, all at a time. The first that throws is rethrown, and the others must not wait
// for it: a body throws on all ranks or on none.
inline void on_ranks(int ranks, const std::function<void(dist::Group&)>& body) {
  ThreadGroup::Common common(ranks);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      ThreadGroup group(common, r);
      try {
        body(group);
      } catch (...) {
        errors[static_cast<std::size_t>(r)] = std::current_exception();
      }
    });
  for (std::thread& t : threads) t.join();
  for (const std::exception_ptr& e : errors)
    if (e) std::rethrow_exception(e);
}

}  // namespace redline::testing
