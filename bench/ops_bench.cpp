// Times every CPU op at the shapes of the built-in quick model and prints GFLOP/s or GB/s. `gemm/openblas_...` lines
// are OpenBLAS's own threads on the same products: what gemm is measured against.
#include <benchmark/benchmark.h>
#include <cblas.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <vector>

#include "base/random.h"
#include "base/step_state.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "optim/cpu/kernels.h"

namespace redline {
namespace {

using ops::cpu::run;
using optim::cpu::run;

constexpr std::int64_t kTokens = 2048, kHidden = 256, kFfn = 704, kVocab = 267, kDocument = 200,
                       kParameters = 4'000'000;
constexpr ops::HeadLayout kLayout{.heads = 4, .kv_heads = 4, .head_dim = 64};

ThreadPool& pool() {
  static ThreadPool pool;
  return pool;
}

// Owns what the tensors of one benchmark point to.
class Arrays {
 public:
  Tensor floats(std::initializer_list<std::int64_t> shape) {
    const Shape s(shape);
    void* data = floats_.emplace_back(static_cast<std::size_t>(s.elements() + kAlignment)).data();
    std::size_t space = (static_cast<std::size_t>(s.elements()) + kAlignment) * sizeof(float);
    const Tensor t{std::align(kAlignment, space - kAlignment, data, space), DType::f32, s};
    const Random random(1, floats_.size());
    for (std::int64_t i = 0; i < t.elements(); ++i) {
      t.f32()[i] = static_cast<float>(random.uniform(static_cast<std::uint64_t>(i))) - 0.5f;
    }
    return t;
  }
  template <class F>
  Tensor ints(std::int64_t n, F value) {
    auto& storage = ints_.emplace_back(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) storage[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(value(i));
    return {storage.data(), DType::i32, {n}};
  }
  Tensor doubles(std::int64_t n) {
    return {doubles_.emplace_back(static_cast<std::size_t>(n)).data(), DType::f64, {n}};
  }

 private:
  static constexpr std::size_t kAlignment = 256;  // as a device's buffers have it
  std::deque<std::vector<float>> floats_;
  std::deque<std::vector<std::int32_t>> ints_;
  std::deque<std::vector<double>> doubles_;
};

template <class T>
Tensor view(T& object) {
  return {&object, DType::u8, {static_cast<std::int64_t>(sizeof(T))}};
}

// Documents of kDocument tokens, the last one shorter.
Tensor documents(Arrays& arrays) {
  const std::int64_t count = (kTokens + kDocument - 1) / kDocument;
  return arrays.ints(count + 1, [](std::int64_t i) { return std::min(kTokens, i * kDocument); });
}
double pairs() {
  double pairs = 0;
  for (std::int64_t i = 0; i < kTokens; ++i) pairs += static_cast<double>(i % kDocument + 1);
  return pairs;
}

void set_rates(benchmark::State& state, double flops, double bytes) {
  using benchmark::Counter;
  if (flops > 0) state.counters["GFLOP/s"] = Counter(flops * 1e-9, Counter::kIsIterationInvariantRate);
  if (bytes > 0) state.counters["GB/s"] = Counter(bytes * 1e-9, Counter::kIsIterationInvariantRate);
}

template <class Op>
void time_op(benchmark::State& state, const Op& op, double flops) {
  double bytes = 0;
  op.map([&](std::string_view, const Tensor& t, Access access) {
    if (t.present()) bytes += static_cast<double>(t.bytes()) * (access == Access::update ? 2 : 1);
    return 0;
  });
  for (auto _ : state) run(op, pool());
  set_rates(state, flops, flops > 0 ? 0 : bytes);
}

enum Library { ours, openblas };

void gemm(benchmark::State& state, Library library, ops::cpu::Transpose ta, ops::cpu::Transpose tb) {
  using ops::cpu::Transpose;
  const std::int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  Arrays arrays;
  const bool a_turned = ta == Transpose::yes, b_turned = tb == Transpose::yes;
  const Tensor a = arrays.floats({m, k}), b = arrays.floats({k, n}), c = arrays.floats({m, n});
  const ops::cpu::Gemm g{.ta = ta,
                         .tb = tb,
                         .m = m,
                         .n = n,
                         .k = k,
                         .a = a.f32(),
                         .lda = a_turned ? m : k,
                         .b = b.f32(),
                         .ldb = b_turned ? k : n,
                         .c = c.f32(),
                         .ldc = n};
  // OpenBLAS reads ahead in its packing buffers, and pages never touched made shallow products 15%
  // slower: one deep product.
  const Tensor deep = arrays.floats({2048, 256});
  ops::cpu::gemm({.ta = ops::cpu::Transpose::yes,
                  .m = 256,
                  .n = 256,
                  .k = 2048,
                  .a = deep.f32(),
                  .lda = 256,
                  .b = deep.f32(),
                  .ldb = 256,
                  .c = arrays.floats({256, 256}).f32(),
                  .ldc = 256},
                 pool());
  if (library == openblas) openblas_set_num_threads(pool().threads());
  for (auto _ : state) {
    if (library == ours) {
      ops::cpu::gemm(g, pool());
    } else {
      ops::cpu::gemm_tile(g);
    }
  }
  openblas_set_num_threads(1);
  set_rates(state, 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k), 0);
}

void forward_shapes(benchmark::internal::Benchmark* b) {
  b->Args({kTokens, 3 * kHidden, kHidden})->Args({kTokens, 2 * kFfn, kHidden})->Args({kTokens, kHidden, kFfn});
  b->Args({kTokens, kVocab, kHidden})->Args({kTokens, kHidden, kHidden})->UseRealTime();
}
void input_grad_shapes(benchmark::internal::Benchmark* b) {
  b->Args({kTokens, kHidden, 3 * kHidden})->Args({kTokens, kHidden, 2 * kFfn})->Args({kTokens, kFfn, kHidden});
  b->UseRealTime();
}
void weight_grad_shapes(benchmark::internal::Benchmark* b) {
  b->Args({3 * kHidden, kHidden, kTokens})->Args({2 * kFfn, kHidden, kTokens})->Args({kHidden, kFfn, kTokens});
  b->Args({kVocab, kHidden, kTokens})->UseRealTime();
}
constexpr auto kNo = ops::cpu::Transpose::no, kYes = ops::cpu::Transpose::yes;
BENCHMARK_CAPTURE(gemm, forward, ours, kNo, kYes)->Apply(forward_shapes);
BENCHMARK_CAPTURE(gemm, openblas_forward, openblas, kNo, kYes)->Apply(forward_shapes);
BENCHMARK_CAPTURE(gemm, input_grad, ours, kNo, kNo)->Apply(input_grad_shapes);
BENCHMARK_CAPTURE(gemm, openblas_input_grad, openblas, kNo, kNo)->Apply(input_grad_shapes);
BENCHMARK_CAPTURE(gemm, weight_grad, ours, kYes, kNo)->Apply(weight_grad_shapes);
BENCHMARK_CAPTURE(gemm, openblas_weight_grad, openblas, kYes, kNo)->Apply(weight_grad_shapes);

void embed(benchmark::State& state) {
  Arrays a;
  const Tensor tokens = a.ints(kTokens, [](std::int64_t i) { return i * 7919 % kVocab; });
  time_op(state, ops::Embed<Tensor>{tokens, a.floats({kVocab, kHidden}), a.floats({kTokens, kHidden})}, 0);
}
void embed_grad(benchmark::State& state) {
  Arrays a;
  const Tensor tokens = a.ints(kTokens, [](std::int64_t i) { return i * 7919 % kVocab; });
  time_op(state, ops::EmbedGrad<Tensor>{tokens, a.floats({kTokens, kHidden}), a.floats({kVocab, kHidden}), false}, 0);
}
void add_norm(benchmark::State& state) {
  Arrays a;
  const auto rows = [&] { return a.floats({kTokens, kHidden}); };
  time_op(state, ops::AddNorm<Tensor>{rows(), rows(), a.floats({kHidden}), rows(), rows(), a.floats({kTokens}), 1e-6f},
          0);
}
void add_norm_grad(benchmark::State& state) {
  Arrays a;
  const auto rows = [&] { return a.floats({kTokens, kHidden}); };
  time_op(state,
          ops::AddNormGrad<Tensor>{rows(), rows(), a.floats({kHidden}), a.floats({kTokens}), rows(),
                                   a.floats({kHidden}), a.floats({ops::kRowGroups, kHidden}), true, true},
          0);
}
void swiglu(benchmark::State& state) {
  Arrays a;
  time_op(state, ops::SwiGlu<Tensor>{a.floats({kTokens, 2 * kFfn}), a.floats({kTokens, kFfn})}, 0);
}
void swiglu_grad(benchmark::State& state) {
  Arrays a;
  const Tensor dgate_up = a.floats({kTokens, 2 * kFfn});
  time_op(state, ops::SwiGluGrad<Tensor>{a.floats({kTokens, 2 * kFfn}), a.floats({kTokens, kFfn}), dgate_up}, 0);
}
void rope(benchmark::State& state, bool norm) {
  Arrays a;
  const std::int64_t hd = kLayout.head_dim;
  const Tensor absent, weight = norm ? a.floats({hd}) : absent;
  const Tensor positions = a.ints(kTokens, [](std::int64_t i) { return i % kDocument; });
  time_op(
      state,
      ops::RopeQkNorm<Tensor>{a.floats({kTokens, kLayout.qkv_width()}), weight, weight, positions,
                              a.floats({kDocument, hd}), norm ? a.floats({kTokens, kLayout.qk_heads() * hd}) : absent,
                              norm ? a.floats({kTokens, kLayout.qk_heads()}) : absent, kLayout, 1e-6f},
      0);
}
void attention(benchmark::State& state) {
  Arrays a;
  const ops::Attention<Tensor> op{a.floats({kTokens, kLayout.qkv_width()}), documents(a), a.floats({kTokens, kHidden}),
                                  a.floats({kLayout.heads, kTokens}),       kLayout,      0.125f};
  time_op(state, op, flops_per_pair(op) * pairs());
}
void attention_grad(benchmark::State& state) {
  Arrays a;
  const Tensor qkv = a.floats({kTokens, kLayout.qkv_width()}), offsets = documents(a);
  const Tensor out = a.floats({kTokens, kHidden}), lse = a.floats({kLayout.heads, kTokens});
  run(ops::Attention<Tensor>{qkv, offsets, out, lse, kLayout, 0.125f}, pool());
  const ops::AttentionGrad<Tensor> op{qkv,
                                      offsets,
                                      out,
                                      lse,
                                      a.floats({kTokens, kHidden}),
                                      a.floats({kTokens, kLayout.qkv_width()}),
                                      a.floats({kLayout.heads, kTokens}),
                                      {},
                                      kLayout,
                                      0.125f};
  time_op(state, op, flops_per_pair(op) * pairs());
}
void lm_loss(benchmark::State& state) {
  Arrays a;
  const std::int64_t vocab = state.range(0), chunk = 512;
  const ops::LmLoss<Tensor> op{a.floats({kTokens, kHidden}),
                               a.floats({vocab, kHidden}),
                               a.ints(kTokens, [&](std::int64_t i) { return i * 7919 % vocab; }),
                               a.floats({kTokens}),
                               a.doubles(1),
                               a.floats({chunk, vocab}),
                               a.floats({kTokens, kHidden}),
                               a.floats({vocab, kHidden}),
                               false,
                               false};
  time_op(state, op, op.flops());
}
void dropout(benchmark::State& state) {
  Arrays a;
  StepState step;
  time_op(state, ops::Dropout<Tensor>{a.floats({kTokens, kHidden}), view(step), a.floats({kTokens, kHidden}), 0.1f, 3},
          0);
}
void sum_squares(benchmark::State& state) {
  Arrays a;
  StepState step{.counts = {.pairs = 1}};
  time_op(state,
          optim::SumSquares<Tensor>{a.floats({kParameters}), a.doubles(1), view(step), a.doubles(optim::kTotals), 0,
                                    kParameters},
          0);
}
void adamw(benchmark::State& state, DType moments) {
  Arrays a;
  StepState step{.lr = 1e-3f};
  UpdateResult result{.grad_norm = 1, .grad_scale = 1, .finite = 1};
  // Zero, as a run's first ones.
  std::vector<std::byte> bytes(2 * static_cast<std::size_t>(kParameters) * size_of(moments));
  const auto scales = [&] {
    const Tensor t = moments == DType::u8 ? a.floats({kParameters / kCutBlock}) : Tensor{};
    if (t.present()) std::fill_n(t.f32(), t.elements(), 0.0f);
    return t;
  };
  time_op(state,
          optim::AdamW<Tensor>{a.floats({kParameters}),
                               a.floats({kParameters}),
                               {bytes.data(), moments, {kParameters}},
                               {bytes.data() + bytes.size() / 2, moments, {kParameters}},
                               {},
                               view(step),
                               view(result),
                               {},
                               scales(),
                               scales()},
          0);
}
BENCHMARK(embed)->UseRealTime();
BENCHMARK(embed_grad)->UseRealTime();
BENCHMARK(add_norm)->UseRealTime();
BENCHMARK(add_norm_grad)->UseRealTime();
BENCHMARK(swiglu)->UseRealTime();
BENCHMARK(swiglu_grad)->UseRealTime();
BENCHMARK_CAPTURE(rope, plain, false)->UseRealTime();
BENCHMARK_CAPTURE(rope, qk_norm, true)->UseRealTime();
BENCHMARK(attention)->UseRealTime();
BENCHMARK(attention_grad)->UseRealTime();
BENCHMARK(lm_loss)->Arg(kVocab)->Arg(32000)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(dropout)->UseRealTime();
BENCHMARK(sum_squares)->UseRealTime();
BENCHMARK_CAPTURE(adamw, fp32, DType::f32)->UseRealTime();
BENCHMARK_CAPTURE(adamw, bf16, DType::bf16)->UseRealTime();
BENCHMARK_CAPTURE(adamw, 8bit, DType::u8)->UseRealTime();

}  // namespace
}  // namespace redline
