// Times products of groups (ops/grouped.h) on the shapes of mixtures of experts against the dense product of the same
// size by cuBLASLt, tuned, and prints TFLOP/s. Rows are split evenly, by a skewed router (shares drawn from a Dirichlet
// distribution with all parameters 2), and all to one expert.
//   cuda_grouped_bench [SHAPE ...]      default: all of them
// Two floors stand beside each figure. "tiles" is the dense rate times the share of the rows of tiles that a group has:
// a tile of 128 rows is computed whole. "memory" is the rate at which every operand would have moved once at 4.2 TB/s;
// a product can be no faster than that. Wanted: even at least 0.95 of dense, skewed at most 6% slower than even.
// Each shape has a second part, of the same products in eight bits: SHAPE-fp8 names that alone.
// Then what stands around the products (ops/experts.h), in microseconds, with the share of that rate of memory that it
// reaches: "rows" names that part.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "device/cuda/device.h"
#include "device/cuda/handles.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/grouped_tiles.h"
#include "ops/cuda/kernels.h"

namespace redline {
namespace {

constexpr int kRuns = 10, kRounds = 3;
constexpr double kMemoryRate = 4.2e12, kTileRows = 128;

struct Experts {
  std::string name;
  std::int64_t groups, rows, k, m;
};
const std::vector<Experts> kShapes = {
    {"olmoe-gate_up", 64, 262144, 2048, 2048},      {"olmoe-down", 64, 262144, 1024, 2048},
    {"qwen3-30b-gate_up", 128, 131072, 2048, 1536}, {"qwen3-30b-down", 128, 131072, 768, 2048},
    {"mixtral-gate_up", 8, 32768, 4096, 28672},     {"mixtral-down", 8, 32768, 14336, 4096}};

enum class Split { even, skewed, one };
constexpr const char* kSplits[] = {"even", "skewed", "one"};

// Shares of a Dirichlet distribution with all parameters 2 are sums of two exponential draws over the sum of all.
std::vector<std::int32_t> offsets_of(Split split, const Experts& e) {
  const Random random(11, 2);
  std::vector<double> shares(static_cast<std::size_t>(e.groups));
  for (std::size_t g = 0; g < shares.size(); ++g)
    shares[g] = split == Split::even  ? 1
                : split == Split::one ? g == 0
                                      : -std::log(1 - random.uniform(2 * g)) - std::log(1 - random.uniform(2 * g + 1));
  double all = 0;
  for (const double share : shares) all += share;
  std::vector<std::int32_t> offsets{0};
  double sum = 0;
  for (const double share : shares) {
    sum += share / all;
    offsets.push_back(static_cast<std::int32_t>(std::llround(sum * static_cast<double>(e.rows))));
  }
  return offsets;
}
// The share of the rows of tiles that belong to a group.
double used_rows(const std::vector<std::int32_t>& offsets) {
  double computed = 0;
  for (std::size_t g = 0; g + 1 < offsets.size(); ++g)
    computed += std::ceil((offsets[g + 1] - offsets[g]) / kTileRows) * kTileRows;
  return offsets.back() / computed;
}

// Arrays on the card, filled with noise: zeros run faster than what is trained on.
class Arrays {
 public:
  explicit Arrays(device::CudaDevice& card) : card_(card) {}
  Tensor array(DType dtype, const Shape& shape) {
    Tensor t{nullptr, dtype, shape};
    t.data = buffers_.emplace_back(card_.allocate(t.bytes()))->data();
    return t;
  }
  Tensor noise(const Shape& shape) {
    const Tensor t = array(DType::bf16, shape);
    constexpr std::int64_t kBlock = 1 << 21;
    std::vector<std::uint16_t> block(kBlock / 2);
    const Random random(2, buffers_.size());
    for (std::size_t i = 0; i < block.size(); ++i) {
      const auto x = static_cast<float>(random.uniform(i) * 2 - 1);
      block[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
    }
    fill(t, block.data(), kBlock);
    return t;
  }
  // Numbers between 1/8 and 2 of either sign, in either format.
  Tensor codes(DType dtype, const Shape& shape) {
    const Tensor t = array(dtype, shape);
    std::vector<std::uint8_t> block(1 << 20);
    const Random random(2, buffers_.size());
    for (std::size_t i = 0; i < block.size(); ++i) {
      const auto bits = static_cast<std::uint8_t>(random.below(i, 32));
      block[i] = static_cast<std::uint8_t>(0x30 | (bits & 15) | (bits & 16) << 3);
    }
    fill(t, block.data(), std::ssize(block));
    return t;
  }
  Tensor scales(std::int64_t count) {
    const Tensor t = array(DType::f32, {count * ops::kScaleFloats});
    const std::vector<ops::Fp8Scale> ones(static_cast<std::size_t>(count),
                                          ops::Fp8Scale{.inverse = 1, .scale = 1, .next = 0, .amax = 1, .history = {}});
    card_.copy_in(t.data, ones.data(), t.bytes());
    return t;
  }

 private:
  void fill(const Tensor& t, const void* block, std::int64_t bytes) {
    for (std::int64_t at = 0; at < t.bytes(); at += bytes)
      card_.copy_in(t.as<std::byte>() + at, block, std::min(bytes, t.bytes() - at));
  }

  device::CudaDevice& card_;
  std::vector<std::unique_ptr<device::Buffer>> buffers_;
};

// The mean of many runs, the best of a few rounds.
template <class Op>
double seconds_of(const Op& op, const device::cuda::Launch& launch) {
  const device::cuda::Stopwatch watch(launch.stream);
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    ops::cuda::run(op, launch);
    watch.start();
    for (int i = 0; i < kRuns; ++i) ops::cuda::run(op, launch);
    best = std::min(best, watch.stop() / kRuns);
  }
  return best;
}
template <class Op>
double bytes_of(const Op& op) {
  double bytes = 0;
  op.map([&](std::string_view name, const Tensor& t, Access access) {
    if (t.present() && name != "workspace" && name != "temporary")
      bytes += static_cast<double>(t.bytes()) * (access == Access::update ? 2 : 1);
    return 0;
  });
  return bytes;
}

template <class Grouped, class Dense>
void compare(const char* name, const Experts& e, const Grouped& grouped, const Dense& dense, const Tensor& offsets,
             device::CudaDevice& card) {
  const double flops = 2.0 * static_cast<double>(e.rows) * static_cast<double>(e.k) * static_cast<double>(e.m);
  const auto tera = [&](double seconds) { return 1e-12 * flops / seconds; };
  const double of_dense = tera(seconds_of(dense, card.launch())), memory = tera(bytes_of(grouped) / kMemoryRate);
  const std::string slow = ops::cuda::hopper_why_not(grouped, card.launch());
  std::printf("  %-10s dense %6.1f  memory %7.1f%s%s\n", name, of_dense, memory,
              slow.empty() ? "" : "  plain kernel: ", slow.c_str());
  double even = 0;
  for (const Split split : {Split::even, Split::skewed, Split::one}) {
    const std::vector<std::int32_t> at = offsets_of(split, e);
    card.copy_in(offsets.data, at.data(), offsets.bytes());
    card.wait();
    const double rate = tera(seconds_of(grouped, card.launch()));
    if (split == Split::even) even = rate;
    std::printf("    %-8s %6.1f TFLOP/s  %.3f of dense  %.3f of even  tiles %6.1f\n", kSplits[static_cast<int>(split)],
                rate, rate / of_dense, rate / even, of_dense * used_rows(at));
  }
}

void bench(const Experts& e, device::CudaDevice& card) {
  std::printf("%s: %lld experts, %lld rows, [%lld -> %lld]\n", e.name.c_str(), static_cast<long long>(e.groups),
              static_cast<long long>(e.rows), static_cast<long long>(e.k), static_cast<long long>(e.m));
  Arrays arrays(card);
  const Tensor x = arrays.noise({e.rows, e.k}), dy = arrays.noise({e.rows, e.m});
  const Tensor y = arrays.array(DType::bf16, dy.shape), dx = arrays.array(DType::bf16, x.shape);
  const Tensor weight = arrays.noise({e.groups, e.m, e.k}), dweight = arrays.array(DType::f32, weight.shape);
  const Tensor offsets = arrays.array(DType::i32, {e.groups + 1});
  const Tensor workspace = arrays.array(DType::u8, {ops::kProductWorkspaceBytes});
  const Tensor one{weight.data, weight.dtype, {e.m, e.k}}, done{dweight.data, dweight.dtype, {e.m, e.k}};
  card.fill(dweight.data, 0, dweight.bytes());

  const ops::Linear<Tensor> dense_y{.x = x, .weight = one, .y = y, .workspace = workspace};
  const ops::LinearInputGrad<Tensor> dense_dx{.dy = dy, .weight = one, .dx = dx, .workspace = workspace};
  const ops::LinearWeightGrad<Tensor> dense_dw{
      .x = x, .dy = dy, .dweight = done, .accumulate = true, .workspace = workspace};
  compare("y", e, ops::GroupedLinear<Tensor>{x, weight, offsets, y}, dense_y, offsets, card);
  compare("dx", e, ops::GroupedLinearInputGrad<Tensor>{dy, weight, offsets, dx}, dense_dx, offsets, card);
  compare("dw", e, ops::GroupedLinearWeightGrad<Tensor>{x, dy, offsets, dweight}, dense_dw, offsets, card);
  compare("dw, added", e, ops::GroupedLinearWeightGrad<Tensor>{x, dy, offsets, dweight, true}, dense_dw, offsets, card);
}

constexpr const char* kFp8 = "-fp8";
void bench_fp8(const Experts& e, device::CudaDevice& card) {
  std::printf("%s%s\n", e.name.c_str(), kFp8);
  Arrays arrays(card);
  const Tensor x = arrays.codes(DType::e4m3, {e.rows, e.k}), dy = arrays.codes(DType::e5m2, {e.rows, e.m});
  const Tensor x_turned = arrays.codes(DType::e4m3, {e.k, e.rows}),
               dy_turned = arrays.codes(DType::e5m2, {e.m, e.rows});
  const Tensor y = arrays.array(DType::bf16, dy.shape), dx = arrays.array(DType::bf16, x.shape);
  const Tensor weight = arrays.codes(DType::e4m3, {e.groups, e.m, e.k});
  const Tensor weight_turned{weight.data, weight.dtype, {e.groups, e.k, e.m}};
  const Tensor dweight = arrays.array(DType::f32, weight.shape), offsets = arrays.array(DType::i32, {e.groups + 1});
  const Tensor scale = arrays.scales(1), scales = arrays.scales(e.groups);
  const Tensor workspace = arrays.array(DType::u8, {ops::kProductWorkspaceBytes});
  const Tensor one{weight.data, weight.dtype, {e.m, e.k}}, one_turned{weight.data, weight.dtype, {e.k, e.m}};
  const Tensor done{dweight.data, dweight.dtype, {e.m, e.k}};
  card.fill(dweight.data, 0, dweight.bytes());
  const auto dense = [&](const Tensor& a, const Tensor& b, const Tensor& c, bool accumulate, bool fast) {
    ops::Fp8Product<Tensor> op{.a = a, .b = b, .a_scale = scale, .b_scale = scale, .c = c, .accumulate = accumulate};
    op.workspace = workspace;
    op.how.fast_sums = fast;
    return op;
  };
  ops::GroupedFp8Product<Tensor> forward{x, weight, offsets, scale, scales, y};
  forward.how.fast_sums = true;
  compare("y", e, forward, dense(x, one, y, false, true), offsets, card);
  compare("dx", e, ops::GroupedFp8Product<Tensor>{dy, weight_turned, offsets, scale, scales, dx},
          dense(dy, one_turned, dx, false, false), offsets, card);
  const auto in_blocks = [&](const Tensor& t) {
    return Tensor{t.data, t.dtype, ops::columns_in_blocks(e.rows, t.shape[0])};
  };
  compare("dw, added", e,
          ops::GroupedFp8WeightGrad<Tensor>{in_blocks(dy_turned), in_blocks(x_turned), offsets, scale, scale, dweight,
                                            e.rows, true},
          dense(dy_turned, x_turned, done, true, false), offsets, card);
}

// Routes, sort, gather and sums of OLMoE: 32,768 tokens of 2048, 8 of 64 experts each.
constexpr const char* kRows = "rows";
void bench_rows(device::CudaDevice& card) {
  constexpr std::int64_t n = 32768, d = 2048, experts = 64, k = 8, m = n * k;
  Arrays arrays(card);
  const auto floats = [&](const Shape& shape) { return arrays.array(DType::f32, shape); };
  const auto integers = [&](const Shape& shape) { return arrays.array(DType::i32, shape); };
  const Tensor workspace = arrays.array(DType::u8, {ops::kProductWorkspaceBytes});
  const ops::Route<Tensor> route{.x = arrays.noise({n, d}),
                                 .weight = arrays.noise({experts, d}),
                                 .doc_offsets = {},
                                 .probs = floats({n, experts}),
                                 .lse = floats({n}),
                                 .choices = integers({n, k}),
                                 .weights = floats({n, k}),
                                 .workspace = workspace};
  const ops::SortByExpert<Tensor> sort{.choices = route.choices,
                                       .offsets = integers({experts + 1}),
                                       .rows = integers({m}),
                                       .places = integers({n, k}),
                                       .counts = integers({experts}),
                                       .temporary = arrays.array(DType::u8, {ops::sort_scratch_bytes(m, experts)})};
  const Tensor y = arrays.noise({m, d}), dy = arrays.array(DType::bf16, {m, d}), out = arrays.noise({n, d});
  const Tensor dweights = floats({n, k}), dx = arrays.array(DType::bf16, {n, d});
  const auto time = [&](const auto& op) {
    const double seconds = seconds_of(op, card.launch());
    std::printf("  %-16s %8.1f us  %.2f of memory's rate\n", std::string(op.kName).c_str(), 1e6 * seconds,
                bytes_of(op) / kMemoryRate / seconds);
  };
  std::printf("%s: %lld tokens of %lld, %lld of %lld experts\n", kRows, static_cast<long long>(n),
              static_cast<long long>(d), static_cast<long long>(k), static_cast<long long>(experts));
  time(route);
  time(sort);
  time(ops::GatherRows<Tensor>{route.x, sort.rows, sort.places, dy});
  time(ops::Combine<Tensor>{y, route.weights, sort.rows, sort.places, out});
  time(ops::CombineGrad<Tensor>{out, y, route.weights, sort.rows, sort.places, dy, dweights});
  time(ops::RouteGrad<Tensor>{.x = route.x,
                              .weight = route.weight,
                              .probs = route.probs,
                              .lse = route.lse,
                              .choices = route.choices,
                              .weights = route.weights,
                              .dweights = dweights,
                              .balance = {},
                              .dx = dx,
                              .dweight = floats({experts, d}),
                              .dlogits = floats({n, experts}),
                              .workspace = workspace});
  time(ops::RouterLoad<Tensor>{route.probs, route.lse, sort.counts,
                               arrays.array(DType::f64, {1, ops::load_columns(experts)}),
                               arrays.array(DType::f64, {ops::kRowGroups, experts + 2})});
}

int run(const std::vector<std::string>& words) {
  const auto asked = [&](const std::string& name) {
    return words.empty() || std::ranges::find(words, name) != words.end();
  };
  for (const std::string& word : words)
    if (word != kRows &&
        std::ranges::none_of(kShapes, [&](const Experts& e) { return e.name == word || e.name + kFp8 == word; }))
      fail_user(
          "{} is none of the shapes; the first is {}, {}{} has its products in eight bits, and {} is what stands "
          "around products",
          word, kShapes[0].name, kShapes[0].name, kFp8, kRows);
  if (device::cuda_status().cards.empty()) {
    std::puts("no GPU");
    return 0;
  }
  device::CudaDevice card;
  std::printf("%s, bf16 and fp8, sums in fp32\n", card.name().c_str());
  for (const Experts& e : kShapes) {
    if (asked(e.name)) bench(e, card);
    if (asked(e.name + kFp8)) bench_fp8(e, card);
  }
  if (asked(kRows)) bench_rows(card);
  return 0;
}

}  // namespace
}  // namespace redline

int main(int argc, char** argv) {
  try {
    return redline::run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "cuda_grouped_bench: %s\n", e.what());
    return 2;
  }
}
