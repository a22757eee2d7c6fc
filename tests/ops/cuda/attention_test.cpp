// Attention on the GPU against the CPU's in fp32: every backend, forward and backward, over documents of awkward
// lengths; documents that neither see nor shift each other by a single bit.
#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <memory>

#include "device/cuda/device.h"
#include "ops/cpu/kernels.h"
#include "ops/cuda/attention_backends.h"
#include "testing/op_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;
using Bytes = std::vector<std::uint8_t>;

float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
std::uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

device::CudaDevice& gpu() {
  static device::CudaDevice device;
  return device;
}

// An array on the card between guard bytes that nobody may touch.
class DeviceArray {
 public:
  DeviceArray(DType dtype, const Shape& shape) : tensor_{nullptr, dtype, shape} {
    buffer_ = gpu().allocate(tensor_.bytes() + 2 * kGuard);
    tensor_.data = buffer_->data() + kGuard;
    gpu().fill(buffer_->data(), kGuardByte, buffer_->bytes());
    poison();
  }
  const Tensor& tensor() const { return tensor_; }
  void poison() { gpu().fill(tensor_.data, 0xFF, tensor_.bytes()); }  // NaN in every dtype
  void set(const Tensor& host) {
    if (tensor_.dtype != DType::bf16) return gpu().copy_in(tensor_.data, host.data, tensor_.bytes());
    std::vector<std::uint16_t> rounded(static_cast<std::size_t>(host.elements()));
    for (std::size_t i = 0; i < rounded.size(); ++i) rounded[i] = to_bf16(host.f32()[i]);
    gpu().copy_in(tensor_.data, rounded.data(), tensor_.bytes());
  }
  Bytes bytes() const {
    Bytes all(static_cast<std::size_t>(buffer_->bytes()));
    gpu().copy_out(all.data(), buffer_->data(), buffer_->bytes());
    const auto whole = [](std::uint8_t byte) { return byte == kGuardByte; };
    EXPECT_TRUE(std::all_of(all.begin(), all.begin() + kGuard, whole) &&
                std::all_of(all.end() - kGuard, all.end(), whole))
        << "written outside an array of shape " << tensor_.shape.str();
    return {all.begin() + kGuard, all.end() - kGuard};
  }
  Values values() const {
    const Bytes raw = bytes();
    Values v(static_cast<std::size_t>(tensor_.elements()));
    for (std::size_t i = 0; i < v.size(); ++i) {
      if (tensor_.dtype == DType::bf16) {
        std::uint16_t bits;
        std::memcpy(&bits, raw.data() + 2 * i, 2);
        v[i] = static_cast<double>(from_bf16(bits));
      } else {
        float x;
        std::memcpy(&x, raw.data() + 4 * i, 4);
        v[i] = static_cast<double>(x);
      }
    }
    return v;
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 256;
  static constexpr std::uint8_t kGuardByte = 0xA5;
  Tensor tensor_;
  std::unique_ptr<device::Buffer> buffer_;
};

// A batch of documents with `tail` tokens after them and unused entries of doc_offsets behind. The host's arrays are
// fp32 holding what the card's dtype can hold.
struct Batch {
  Memory memory;
  HeadLayout layout;
  DType dtype;
  std::vector<std::int64_t> offsets{0};
  std::int64_t n, longest = 1;
  float scale;
  bool full_rows = false;  // told to the kernels, where it is true
  Tensor qkv, dout, doc_offsets;

  Batch(const HeadLayout& l, DType type, const std::vector<std::int64_t>& lengths, std::int64_t tail, int unused)
      : layout(l), dtype(type) {
    for (std::int64_t length : lengths) {
      offsets.push_back(offsets.back() + length);
      longest = std::max(longest, length);
    }
    offsets.insert(offsets.end(), static_cast<std::size_t>(unused), offsets.back());
    n = offsets.back() + tail;
    scale = 1.0f / std::sqrt(static_cast<float>(l.head_dim));
    qkv = memory.uniform({n, l.qkv_width()}, -2, 2);
    dout = memory.uniform({n, l.heads * l.head_dim});
    doc_offsets = memory.integers(offsets);
    if (dtype == DType::bf16) {
      for (const Tensor& t : {qkv, dout}) {
        for (std::int64_t i = 0; i < t.elements(); ++i) t.f32()[i] = from_bf16(to_bf16(t.f32()[i]));
      }
    }
  }
  std::vector<float> rows(const Tensor& t, std::size_t document) const {
    return {t.f32() + offsets[document] * t.columns(), t.f32() + offsets[document + 1] * t.columns()};
  }
  void set_rows(const Tensor& t, std::size_t document, const std::vector<float>& values) const {
    std::copy(values.begin(), values.end(), t.f32() + offsets[document] * t.columns());
  }
};

// Both passes on the card.
struct GpuRun {
  const Batch& batch;
  DeviceArray qkv, dout, doc_offsets, out, lse, dqkv, delta, workspace;

  explicit GpuRun(const Batch& b)
      : batch(b),
        qkv(b.dtype, b.qkv.shape),
        dout(b.dtype, b.dout.shape),
        doc_offsets(DType::i32, b.doc_offsets.shape),
        out(b.dtype, b.dout.shape),
        lse(DType::f32, {b.layout.heads, b.n}),
        dqkv(b.dtype, b.qkv.shape),
        delta(DType::f32, {b.layout.heads, b.n}),
        workspace(DType::u8, {library_workspace_bytes(b.layout, b.n)}) {
    qkv.set(b.qkv), dout.set(b.dout), doc_offsets.set(b.doc_offsets);
  }
  GpuRun& run(std::string_view forward, std::string_view backward) {
    const Attention<Tensor> op{qkv.tensor(), doc_offsets.tensor(), out.tensor(), lse.tensor(),
                               batch.layout, batch.scale,          batch.longest};
    const AttentionGrad<Tensor> grad{qkv.tensor(),  doc_offsets.tensor(), out.tensor(),   lse.tensor(),
                                     dout.tensor(), dqkv.tensor(),        delta.tensor(), workspace.tensor(),
                                     batch.layout,  batch.scale,          batch.longest};
    device::cuda::Launch launch = gpu().launch();
    launch.full_rows = batch.full_rows;
    for (DeviceArray* a : {&out, &lse, &dqkv, &delta, &workspace}) a->poison();
    const Bytes before = qkv.bytes(), dout_before = dout.bytes();
    poison_workspace();
    cuda::run(op, launch, forward);
    poison_workspace();
    cuda::run(grad, launch, backward);
    gpu().wait();
    EXPECT_TRUE(before == qkv.bytes() && dout_before == dout.bytes()) << "an input was changed";
    delta.bytes();  // for its guards
    workspace.bytes();
    return *this;
  }
  // The bytes of one document's rows.
  Bytes rows(const DeviceArray& a, std::size_t document) const {
    const Bytes all = a.bytes();
    const std::int64_t row = a.tensor().bytes() / batch.n;
    return {all.begin() + batch.offsets[document] * row, all.begin() + batch.offsets[document + 1] * row};
  }

 private:
  static void poison_workspace() {
    constexpr std::int64_t kPoisoned = 1 << 20;  // more than these batches use
    gpu().fill(gpu().launch().workspace, 0xFF, std::min(kPoisoned, gpu().launch().workspace_bytes));
  }
};

// Row by row: the length of the error is at most `tolerance` of the row's length, or of a usual row's where that is
// larger, since a row may be a small difference of large terms. One wrong entry of 128 is 9% of a row.
void expect_rows_close(std::string_view name, const Values& got, const Values& want, std::int64_t row_length,
                       double tolerance) {
  ASSERT_EQ(got.size(), want.size()) << name;
  const double usual = typical(want);
  for (std::size_t begin = 0; begin < want.size(); begin += static_cast<std::size_t>(row_length)) {
    const auto row = want.begin() + static_cast<std::ptrdiff_t>(begin);
    Values error(row, row + row_length);
    const double limit = tolerance * std::max(usual, typical(error)) + 1e-12;
    for (std::size_t i = 0; i < error.size(); ++i) error[i] -= got[begin + i];
    ASSERT_LE(typical(error), limit) << name << ", row " << static_cast<std::int64_t>(begin) / row_length << ": "
                                     << got[begin] << " ..., expected " << want[begin] << " ...";
  }
}

void expect_agrees_with_cpu(const GpuRun& gpu_run) {
  const Batch& b = gpu_run.batch;
  Memory memory;
  ThreadPool pool(2);
  const Tensor out = memory.zeros(b.dout.shape), lse = memory.zeros({b.layout.heads, b.n});
  const Tensor dqkv = memory.zeros(b.qkv.shape), delta = memory.zeros({b.layout.heads, b.n});
  cpu::run(Attention<Tensor>{b.qkv, b.doc_offsets, out, lse, b.layout, b.scale}, pool);
  const double tolerance = b.dtype == DType::bf16 ? 1e-2 : 1e-4;
  const Values gpu_out = gpu_run.out.values();
  expect_rows_close("out", gpu_out, values_of(out), b.layout.head_dim, tolerance);
  expect_rows_close("lse", gpu_run.lse.values(), values_of(lse), b.n, 1e-4);
  // The backward pass reads out as the forward pass left it, rounded.
  for (std::size_t i = 0; i < gpu_out.size(); ++i) out.f32()[i] = static_cast<float>(gpu_out[i]);
  cpu::run(AttentionGrad<Tensor>{b.qkv, b.doc_offsets, out, lse, b.dout, dqkv, delta, {}, b.layout, b.scale}, pool);
  expect_rows_close("dqkv", gpu_run.dqkv.values(), values_of(dqkv), b.layout.head_dim, tolerance);
  const auto expect_zero_tail = [&](const DeviceArray& a) {
    const Bytes all = a.bytes();
    const auto tail = all.begin() + b.offsets.back() * (a.tensor().bytes() / b.n);
    EXPECT_TRUE(std::all_of(tail, all.end(), [](std::uint8_t byte) { return byte == 0; })) << "tail";
  };
  expect_zero_tail(gpu_run.out);
  expect_zero_tail(gpu_run.dqkv);
}

struct GpuCase {
  std::string_view backend;
  DType dtype;
  HeadLayout layout;
};
std::ostream& operator<<(std::ostream& to, const GpuCase& c) {
  return to << c.backend << " " << name_of(c.dtype) << " " << c.layout.heads << "/" << c.layout.kv_heads << "x"
            << c.layout.head_dim;
}

class CudaAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device::cuda_status().cards.empty()) GTEST_SKIP() << "no GPU";
  }
};
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
};

const std::vector<std::int64_t> kAwkward{65, 0, 1, 2, 63, 64, 127, 0, 128, 129, 1000};

TEST_P(CudaAttentionCases, AgreesWithTheCpuAndRepeatsItsBits) {
  const GpuCase& c = GetParam();
  Batch b(c.layout, c.dtype, kAwkward, 37, 5);
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
  const GpuCase& c = GetParam();
  const std::vector<std::vector<std::int64_t>> batches{{},        {1},        {300},        {1, 1, 1, 1},
                                                       {0, 0, 5}, {128, 128}, {33, 97, 200}};
  for (std::size_t i = 0; i < batches.size(); ++i) {
    Batch b(c.layout, c.dtype, batches[i], i % 2 == 0 ? 3 : 0, static_cast<int>(i % 3) + 1);
    GpuRun run(b);
    run.run(c.backend, c.backend);
    expect_agrees_with_cpu(run);
    if (HasFatalFailure()) return;
  }
}

// A document of NaNs, and NaNs in the tail, leave the bits of all other documents.
TEST_P(CudaAttentionCases, LeavesNeighboursAlone) {
  const GpuCase& c = GetParam();
  const std::vector<std::int64_t> lengths{70, 300, 1, 129};
  Batch plain(c.layout, c.dtype, lengths, 5, 2);
  GpuRun plain_run(plain);
  plain_run.run(c.backend, c.backend);
  for (std::size_t changed = 0; changed < lengths.size(); ++changed) {
    Batch other(c.layout, c.dtype, lengths, 5, 2);
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
  Batch plain(c.layout, c.dtype, lengths, 0, 0), moved(c.layout, c.dtype, moved_lengths, 9, 4);
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
  Batch b(c.layout, c.dtype, {300}, 0, 0);
  b.scale = 40;
  GpuRun run(b);
  run.run(c.backend, c.backend);
  for (const DeviceArray* a : {&run.out, &run.lse, &run.dqkv}) {
    for (double v : a->values()) ASSERT_TRUE(std::isfinite(v));
  }
}

constexpr GpuCase kCases[] = {
    {"hopper", DType::bf16, {2, 2, 64}},     {"hopper", DType::bf16, {3, 1, 64}},
    {"hopper", DType::bf16, {8, 2, 64}},     {"hopper", DType::bf16, {2, 2, 128}},
    {"hopper", DType::bf16, {6, 2, 128}},    {"hopper", DType::bf16, {4, 1, 128}},
    {"flash", DType::bf16, {2, 2, 64}},      {"flash", DType::bf16, {3, 1, 64}},
    {"flash", DType::bf16, {8, 2, 64}},      {"flash", DType::bf16, {2, 2, 128}},
    {"flash", DType::bf16, {6, 2, 128}},     {"flash", DType::bf16, {4, 1, 128}},
    {"reference", DType::f32, {2, 2, 16}},   {"reference", DType::f32, {3, 1, 64}},
    {"reference", DType::f32, {4, 1, 80}},   {"reference", DType::f32, {2, 1, 256}},
    {"reference", DType::bf16, {3, 1, 16}},  {"reference", DType::bf16, {2, 2, 80}},
    {"reference", DType::bf16, {4, 1, 128}}, {"cudnn", DType::bf16, {2, 2, 64}},
    {"cudnn", DType::bf16, {8, 2, 64}},      {"cudnn", DType::bf16, {6, 2, 128}},
};
INSTANTIATE_TEST_SUITE_P(Backends, CudaAttentionCases, ::testing::ValuesIn(kCases), [](const auto& instance) {
  const GpuCase& c = instance.param;
  return fmt::format("{}_{}_{}_{}_x{}", c.backend, name_of(c.dtype), c.layout.heads, c.layout.kv_heads,
                     c.layout.head_dim);
});

// Rows that are one document each, as the kernels are told beforehand.
TEST_P(CudaAttentionCases, TakesFullRows) {
  const GpuCase& c = GetParam();
  for (const std::int64_t length : {64, 192, 1024}) {
    Batch b(c.layout, c.dtype, {length, length, length}, 0, 0);
    b.full_rows = true;
    GpuRun run(b);
    run.run(c.backend, c.backend);
    expect_agrees_with_cpu(run);
    if (HasFatalFailure()) return;
  }
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

TEST(CudaAttentionChoice, ANamedOneMustBeAble) {
  using cuda::find_attention;
  const auto on_hopper = [](DType dtype, std::int64_t head_dim) {
    return cuda::AttentionCase{.dtype = dtype, .layout = {4, 2, head_dim}, .major = 9, .minor = 0};
  };
  EXPECT_EQ(find_attention(on_hopper(DType::bf16, 128), "flash").name, "flash");
  if (cuda::hopper_why_not(on_hopper(DType::bf16, 64)).empty()) {  // compiled for it
    EXPECT_EQ(find_attention(on_hopper(DType::bf16, 64), "hopper").name, "hopper");
  }
  EXPECT_EQ(find_attention(on_hopper(DType::bf16, 128), "reference").name, "reference");
  EXPECT_THROW(find_attention(on_hopper(DType::f32, 128), "flash"), UserError);
  EXPECT_THROW(find_attention(on_hopper(DType::bf16, 80), "flash"), UserError);
  EXPECT_THROW(find_attention(on_hopper(DType::bf16, 80), "hopper"), UserError);
  EXPECT_THROW(find_attention({.dtype = DType::bf16, .layout = {4, 2, 64}, .major = 10, .minor = 0}, "hopper"),
               UserError);
  EXPECT_THROW(find_attention(on_hopper(DType::bf16, 128), "flesh"), UserError);
  EXPECT_THROW(find_attention(on_hopper(DType::bf16, 512), "reference"), UserError);
}

TEST_F(CudaAttention, FlashLeavesOtherHeadsToTheReference) {
  Batch b({4, 2, 80}, DType::bf16, {200, 65}, 3, 1);
  GpuRun run(b);
  run.run("flash", "flash");
  expect_agrees_with_cpu(run);
}

// What "auto" takes on a card computes the same, whatever it took.
TEST_F(CudaAttention, AutoAgreesWithTheCpu) {
  for (const std::int64_t head_dim : {64, 80, 128}) {
    Batch b({4, 2, head_dim}, DType::bf16, {200, 65}, 3, 1);
    GpuRun run(b);
    run.run("auto", "auto");
    expect_agrees_with_cpu(run);
  }
}

}  // namespace
}  // namespace redline::ops
