// Attention on the GPU against the CPU's in fp32: every backend, forward and backward, over documents of awkward
// lengths; documents that neither see nor shift each other by a single bit.
#include <fmt/format.h>

#include "ops/cuda/attention_run.h"

namespace redline::ops {
namespace {

struct GpuCase {
  std::string_view backend;
  DType dtype;
  HeadLayout layout;
  bool tf32 = false;

  std::string_view math() const { return tf32 ? "tf32" : name_of(dtype); }
};
std::ostream& operator<<(std::ostream& to, const GpuCase& c) {
  return to << c.backend << " " << c.math() << " " << c.layout.heads << "/" << c.layout.kv_heads << "x"
            << c.layout.head_dim;
}

class CudaAttentionCases : public CudaAttention, public ::testing::WithParamInterface<GpuCase> {
 protected:
  void SetUp() override {
    CudaAttention::SetUp();
    if (IsSkipped()) return;
    const GpuCase& c = GetParam();
    const cuda::AttentionCase on_this_card{.dtype = c.dtype, .layout = c.layout, .major = gpu().launch().major};
    const std::string why_not = c.backend == "cudnn"    ? cuda::cudnn_problem()
                                : c.backend == "hopper" ? cuda::hopper_why_not(on_this_card)
                                                        : "";
    if (!why_not.empty()) GTEST_SKIP() << c.backend << ": " << why_not;
  }
  // cuDNN's backward pass adds in the order in which blocks finish.
  bool gradients_repeat() const { return GetParam().backend != "cudnn"; }
  static Batch batch(const std::vector<std::int64_t>& lengths, std::int64_t tail, int unused) {
    Batch b(GetParam().layout, GetParam().dtype, lengths, tail, unused);
    b.tf32 = GetParam().tf32;
    return b;
  }
  static void expect_agreement(const Batch& b) {
    GpuRun run(b);
    run.run(GetParam().backend, GetParam().backend);
    expect_agrees_with_cpu(run);
  }
};

TEST_P(CudaAttentionCases, AgreesWithTheCpuAndRepeatsItsBits) {
  const GpuCase& c = GetParam();
  Batch b = batch(kAwkward, 37, 5);
  GpuRun run(b);
  run.run(c.backend, c.backend);
  expect_agrees_with_cpu(run);
  const Bytes out = run.out.bytes(), lse = run.lse.bytes(), dqkv = run.dqkv.bytes();
  run.run(c.backend, c.backend);
  EXPECT_TRUE(out == run.out.bytes() && lse == run.lse.bytes()) << "bits differ";
  if (gradients_repeat()) {
    EXPECT_TRUE(dqkv == run.dqkv.bytes()) << "bits differ";
  }
}

TEST_P(CudaAttentionCases, TakesBatchesOfEveryShape) {
  const std::vector<std::vector<std::int64_t>> batches{{},        {1},        {300},        {1, 1, 1, 1},
                                                       {0, 0, 5}, {128, 128}, {33, 97, 200}};
  for (std::size_t i = 0; i < batches.size(); ++i) {
    // Two of them leave no entry of doc_offsets unused.
    Batch b = batch(batches[i], i % 2 == 0 ? 3 : 0, static_cast<int>(i + 1) % 3);
    expect_agreement(b);
    if (HasFatalFailure()) return;
  }
}

TEST_P(CudaAttentionCases, AgreesOverRandomDocuments) {
  for (std::uint64_t i = 0; i < 4; ++i) {
    const Random random(23, i);
    std::vector<std::int64_t> lengths(1 + random.below(0, 12));
    for (std::size_t d = 0; d < lengths.size(); ++d)  // short ones as likely as long ones
      lengths[d] = static_cast<std::int64_t>(std::pow(400.0, random.uniform(10 + d)));
    Batch b = batch(lengths, static_cast<std::int64_t>(random.below(1, 70)), static_cast<int>(random.below(2, 4)));
    expect_agreement(b);
    if (HasFatalFailure()) return;
  }
}

// A document of NaNs, and NaNs in the tail, leave the bits of all other documents; where gradients do not repeat to the
// bit, their values.
TEST_P(CudaAttentionCases, LeavesNeighboursAlone) {
  const GpuCase& c = GetParam();
  const std::vector<std::int64_t> lengths{70, 300, 1, 129};
  Batch plain = batch(lengths, 5, 2);
  GpuRun plain_run(plain);
  plain_run.run(c.backend, c.backend);
  for (std::size_t changed = 0; changed < lengths.size(); ++changed) {
    Batch other = batch(lengths, 5, 2);
    for (const Tensor& t : {other.qkv, other.dout}) {
      std::vector<float> rows = other.rows(t, changed);
      std::fill(rows.begin(), rows.end(), std::numeric_limits<float>::quiet_NaN());
      other.set_rows(t, changed, rows);
      std::fill(t.f32() + other.offsets.back() * t.columns(), t.f32() + t.elements(), std::nanf(""));
    }
    GpuRun run(other);
    run.run(c.backend, c.backend);
    for (std::size_t d = 0; d < lengths.size(); ++d) {
      EXPECT_EQ(plain_run.rows(plain_run.out, d) == run.rows(run.out, d), d != changed) << d;
      if (gradients_repeat()) {
        EXPECT_EQ(plain_run.rows(plain_run.dqkv, d) == run.rows(run.dqkv, d), d != changed) << d;
      } else if (d != changed) {
        expect_rows_close("dqkv", run.values(run.dqkv, d), plain_run.values(plain_run.dqkv, d), c.layout.head_dim,
                          1e-2);
      }
    }
  }
}

TEST_P(CudaAttentionCases, KeepsADocumentsBitsWhereverItStands) {
  const GpuCase& c = GetParam();
  const std::vector<std::int64_t> lengths{70, 300, 131, 1};
  const std::vector<std::size_t> order{3, 2, 0, 1};
  std::vector<std::int64_t> moved_lengths;
  for (std::size_t d : order) moved_lengths.push_back(lengths[d]);
  Batch plain = batch(lengths, 0, 0), moved = batch(moved_lengths, 9, 4);
  for (std::size_t to = 0; to < order.size(); ++to) {
    moved.set_rows(moved.qkv, to, plain.rows(plain.qkv, order[to]));
    moved.set_rows(moved.dout, to, plain.rows(plain.dout, order[to]));
  }
  GpuRun plain_run(plain), moved_run(moved);
  plain_run.run(c.backend, c.backend), moved_run.run(c.backend, c.backend);
  for (std::size_t to = 0; to < order.size(); ++to) {
    EXPECT_TRUE(plain_run.rows(plain_run.out, order[to]) == moved_run.rows(moved_run.out, to)) << to;
    if (gradients_repeat()) {
      EXPECT_TRUE(plain_run.rows(plain_run.dqkv, order[to]) == moved_run.rows(moved_run.dqkv, to)) << to;
    }
  }
}

TEST_P(CudaAttentionCases, HoldsWithScoresThatExpWouldOverflow) {
  const GpuCase& c = GetParam();
  Batch b = batch({300}, 0, 0);
  b.scale = 40;
  GpuRun run(b);
  run.run(c.backend, c.backend);
  for (const DeviceArray* a : {&run.out, &run.lse, &run.dqkv}) {
    for (double v : a->values()) ASSERT_TRUE(std::isfinite(v));
  }
}

constexpr GpuCase kCases[] = {
    {"hopper", DType::bf16, {2, 2, 64}},      {"hopper", DType::bf16, {3, 1, 64}},
    {"hopper", DType::bf16, {8, 2, 64}},      {"hopper", DType::bf16, {2, 2, 128}},
    {"hopper", DType::bf16, {6, 2, 128}},     {"hopper", DType::bf16, {4, 1, 128}},
    {"flash", DType::bf16, {2, 2, 64}},       {"flash", DType::bf16, {3, 1, 64}},
    {"flash", DType::bf16, {8, 2, 64}},       {"flash", DType::bf16, {2, 2, 128}},
    {"flash", DType::bf16, {6, 2, 128}},      {"flash", DType::bf16, {4, 1, 128}},
    {"flash", DType::f32, {2, 2, 64}},        {"flash", DType::f32, {3, 1, 64}},
    {"flash", DType::f32, {6, 2, 128}},       {"flash", DType::f32, {2, 2, 64}, true},
    {"flash", DType::f32, {4, 1, 128}, true}, {"reference", DType::f32, {2, 2, 16}},
    {"reference", DType::f32, {3, 1, 64}},    {"reference", DType::f32, {4, 1, 80}},
    {"reference", DType::f32, {2, 1, 256}},   {"reference", DType::bf16, {3, 1, 16}},
    {"reference", DType::bf16, {2, 2, 80}},   {"reference", DType::bf16, {4, 1, 128}},
    {"cudnn", DType::bf16, {2, 2, 64}},       {"cudnn", DType::bf16, {8, 2, 64}},
    {"cudnn", DType::bf16, {6, 2, 128}},
};
INSTANTIATE_TEST_SUITE_P(Backends, CudaAttentionCases, ::testing::ValuesIn(kCases), [](const auto& instance) {
  const GpuCase& c = instance.param;
  return fmt::format("{}_{}_{}_{}_x{}", c.backend, c.math(), c.layout.heads, c.layout.kv_heads, c.layout.head_dim);
});

// Rows that are one document each, as the kernels are told beforehand.
TEST_P(CudaAttentionCases, TakesFullRows) {
  for (const std::int64_t length : {64, 192, 1024}) {
    Batch b = batch({length, length, length}, 0, 0);
    b.full_rows = true;
    expect_agreement(b);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaAttention, RoundsToTf32OnlyWhereItMay) {
  Batch b({2, 1, 64}, DType::f32, {200, 65}, 3, 1);
  GpuRun exact(b);
  exact.run("flash", "flash");
  b.tf32 = true;
  GpuRun rounded(b);
  rounded.run("flash", "flash");
  EXPECT_FALSE(exact.out.bytes() == rounded.out.bytes());
  EXPECT_FALSE(exact.dqkv.bytes() == rounded.dqkv.bytes());
}

// One backend's forward serves another's backward.
TEST_F(CudaAttention, BackendsReadEachOther) {
  Batch b({4, 2, 64}, DType::bf16, {200, 65}, 3, 1);
  std::vector<std::pair<std::string_view, std::string_view>> pairs{{"flash", "reference"}, {"reference", "flash"}};
  if (cuda::hopper_why_not({.layout = b.layout, .major = gpu().launch().major}).empty())
    pairs.insert(pairs.end(), {{"flash", "hopper"}, {"hopper", "flash"}});
  if (cuda::cudnn_problem().empty()) pairs.insert(pairs.end(), {{"flash", "cudnn"}, {"cudnn", "flash"}});
  for (const auto& [forward, backward] : pairs) {
    GpuRun run(b);
    run.run(forward, backward);
    expect_agrees_with_cpu(run);
  }
}

}  // namespace
}  // namespace redline::ops
