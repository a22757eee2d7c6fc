// Attention on the GPU against the CPU's in fp32: every backend, forward and backward, over documents of awkward
// lengths; documents that neither see nor shift each other by a single bit. Who computes it: what a name may be asked
// for, and that "auto" takes what can, agrees with the CPU and repeats its bits where it must. The cache of a decoding
// step: storing documents, and texts of several lengths, with splits that are empty, whole and cut.
#include <algorithm>
#include <memory>

#include "base/log.h"
#include "ops/attention_batch.h"
#include "ops/cuda/attention_backends.h"
#include "testing/card_check.h"
#include "testing/says.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

device::CudaDevice& gpu() {
  static device::CudaDevice device;
  return device;
}

// An array on the card between guard bytes that must stay as they are.
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

// A batch with what kernels are given of it. The host's arrays are fp32 holding what the card's dtype can hold.
struct Batch : DocumentBatch {
  DType dtype;
  std::int64_t longest = 1;
  bool full_rows = false;  // where it is true
  bool deterministic = false, library_workspace = true;
  bool tf32 = false;  // what is fp32 may be rounded to it
  std::int64_t window = kNoWindow;

  AttentionHow how(std::string_view backend) const {
    return {.by = attention_by(backend),
            .math = tf32 ? Math::tf32 : Math::full,
            .bits = deterministic ? Bits::repeat : Bits::free,
            .documents = full_rows ? Documents::full_rows : Documents::packed};
  }

  Batch(const HeadLayout& l, DType type, const std::vector<std::int64_t>& lengths, std::int64_t tail, int unused)
      : DocumentBatch(l, lengths, tail, unused), dtype(type) {
    for (std::int64_t length : lengths) longest = std::max(longest, length);
    if (dtype == DType::bf16) {
      for (const Tensor& t : {qkv, dout}) {
        for (std::int64_t i = 0; i < t.elements(); ++i) t.f32()[i] = from_bf16(to_bf16(t.f32()[i]));
      }
    }
  }
};

// Both passes on the card.
struct GpuRun {
  const Batch& batch;
  DeviceArray qkv, dout, doc_offsets, out, lse, dqkv, delta, tiles, workspace;

  explicit GpuRun(const Batch& b)
      : batch(b),
        qkv(b.dtype, b.qkv.shape),
        dout(b.dtype, b.dout.shape),
        doc_offsets(DType::i32, b.doc_offsets.shape),
        out(b.dtype, b.dout.shape),
        lse(DType::f32, {b.layout.heads, b.n}),
        dqkv(b.dtype, b.qkv.shape),
        delta(DType::f32, {b.layout.heads, b.n}),
        tiles(DType::u8, {tile_bytes(b.n, b.doc_offsets.elements() - 1)}),
        workspace(DType::u8, {std::max(library_workspace_bytes(b.doc_offsets.elements() - 1),
                                       library_grad_workspace_bytes(b.layout, b.n, b.doc_offsets.elements() - 1))}) {
    qkv.set(b.qkv), dout.set(b.dout), doc_offsets.set(b.doc_offsets);
  }
  GpuRun& run(std::string_view forward, std::string_view backward) {
    const Tensor library = batch.library_workspace ? workspace.tensor() : Tensor{};
    Attention<Tensor> op{qkv.tensor(), doc_offsets.tensor(), out.tensor(),   lse.tensor(), batch.layout,
                         batch.scale,  batch.longest,        tiles.tensor(), library,      batch.how(forward)};
    AttentionGrad<Tensor> grad{qkv.tensor(),       doc_offsets.tensor(), out.tensor(),   lse.tensor(),
                               dout.tensor(),      dqkv.tensor(),        delta.tensor(), library,
                               batch.layout,       batch.scale,          batch.longest,  tiles.tensor(),
                               batch.how(backward)};
    op.window = grad.window = batch.window;
    const device::cuda::Launch& launch = gpu().launch();
    for (DeviceArray* a : {&out, &lse, &dqkv, &delta, &tiles, &workspace}) a->poison();
    const Bytes before = qkv.bytes(), dout_before = dout.bytes();
    cuda::run(DocumentTiles<Tensor>{doc_offsets.tensor(), tiles.tensor(), batch.n}, launch);
    const Bytes list = tiles.bytes();
    cuda::run(op, launch);
    workspace.poison();
    cuda::run(grad, launch);
    gpu().wait();
    EXPECT_TRUE(before == qkv.bytes() && dout_before == dout.bytes()) << "an input was changed";
    EXPECT_TRUE(list == tiles.bytes()) << "the list of tiles was not left as it was";
    delta.bytes();  // for its guards
    workspace.bytes();
    return *this;
  }
  // One document's rows, and their bytes.
  Values values(const DeviceArray& a, std::size_t document) const {
    const Values all = a.values();
    const std::int64_t row = a.tensor().columns();
    return {all.begin() + batch.offsets[document] * row, all.begin() + batch.offsets[document + 1] * row};
  }
  Bytes rows(const DeviceArray& a, std::size_t document) const {
    const Bytes all = a.bytes();
    const std::int64_t row = a.tensor().bytes() / batch.n;
    return {all.begin() + batch.offsets[document] * row, all.begin() + batch.offsets[document + 1] * row};
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
  Attention<Tensor> op{b.qkv, b.doc_offsets, out, lse, b.layout, b.scale};
  AttentionGrad<Tensor> grad{b.qkv, b.doc_offsets, out, lse, b.dout, dqkv, delta, {}, b.layout, b.scale};
  op.window = grad.window = b.window;
  cpu::run(op, pool);
  const double tolerance = b.dtype == DType::bf16 || b.tf32 ? 1e-2 : 2e-5;  // a token alone is all rounding
  const Values gpu_out = gpu_run.out.values();
  expect_rows_close("out", gpu_out, values_of(out), b.layout.head_dim, tolerance);
  expect_rows_close("lse", gpu_run.lse.values(), values_of(lse), b.n, b.tf32 ? 1e-2 : 1e-4);
  // The backward pass reads out as the forward pass left it, rounded.
  for (std::size_t i = 0; i < gpu_out.size(); ++i) out.f32()[i] = static_cast<float>(gpu_out[i]);
  cpu::run(grad, pool);
  expect_rows_close("dqkv", gpu_run.dqkv.values(), values_of(dqkv), b.layout.head_dim, tolerance);
  const auto expect_zero_tail = [&](const DeviceArray& a) {
    const Bytes all = a.bytes();
    const auto tail = all.begin() + b.offsets.back() * (a.tensor().bytes() / b.n);
    EXPECT_TRUE(std::all_of(tail, all.end(), [](std::uint8_t byte) { return byte == 0; })) << "tail";
  };
  expect_zero_tail(gpu_run.out);
  expect_zero_tail(gpu_run.dqkv);
}

class CudaAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device::cuda_status().cards.empty()) GTEST_SKIP() << "no GPU";
  }
};

// Lengths of documents.
const std::vector<std::int64_t> kAwkward{65, 0, 1, 2, 63, 64, 127, 0, 128, 129, 1000};

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

// Windows of one token, of parts of a tile, of several tiles, and of more than some documents.
TEST_P(CudaAttentionCases, AgreesWithinWindows) {
  for (const std::int64_t window : {1, 5, 63, 64, 65, 129, 300}) {
    SCOPED_TRACE(fmt::format("window {}", window));
    Batch b = batch(kAwkward, 37, 5);
    b.window = window;
    GpuRun run(b);
    run.run(GetParam().backend, GetParam().backend);
    expect_agrees_with_cpu(run);
    if (HasFatalFailure()) return;
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
    {"cudnn", DType::bf16, {6, 2, 128}},      {"cudnn", DType::bf16, {4, 1, 256}},
};
INSTANTIATE_TEST_SUITE_P(Backends, CudaAttentionCases, ::testing::ValuesIn(kCases), [](const auto& instance) {
  const GpuCase& c = instance.param;
  return fmt::format("{}_{}_{}_{}_x{}", c.backend, c.math(), c.layout.heads, c.layout.kv_heads, c.layout.head_dim);
});

// Rows that are one document each, which the kernels know beforehand.
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

class CudaAttentionAuto : public CudaAttention {};

TEST(CudaAttentionChoice, ANamedOneMustBeAble) {
  using cuda::find_attention;
  const auto on_hopper = [](DType dtype, std::int64_t head_dim) {
    return cuda::AttentionCase{.dtype = dtype, .layout = {4, 2, head_dim}, .major = 9, .minor = 0};
  };
  EXPECT_EQ(find_attention(on_hopper(DType::bf16, 128), AttentionBy::flash).by, AttentionBy::flash);
  if (cuda::hopper_why_not(on_hopper(DType::bf16, 64)).empty()) {  // compiled for it
    EXPECT_EQ(find_attention(on_hopper(DType::bf16, 64), AttentionBy::hopper).by, AttentionBy::hopper);
  }
  EXPECT_EQ(find_attention(on_hopper(DType::bf16, 128), AttentionBy::reference).by, AttentionBy::reference);
  EXPECT_EQ(find_attention(on_hopper(DType::f32, 128), AttentionBy::flash).by, AttentionBy::flash);
  EXPECT_THROW(find_attention(on_hopper(DType::f32, 128), AttentionBy::hopper), UserError);
  EXPECT_THROW(find_attention(on_hopper(DType::bf16, 80), AttentionBy::flash), UserError);
  EXPECT_THROW(find_attention(on_hopper(DType::bf16, 80), AttentionBy::hopper), UserError);
  EXPECT_THROW(
      find_attention({.dtype = DType::bf16, .layout = {4, 2, 64}, .major = 10, .minor = 0}, AttentionBy::hopper),
      UserError);
  cuda::AttentionCase same_bits = on_hopper(DType::bf16, 64);
  same_bits.backward = true;
  same_bits.how.bits = Bits::repeat;
  EXPECT_THROW(find_attention(same_bits, AttentionBy::cudnn), UserError);
  EXPECT_EQ(find_attention(same_bits, AttentionBy::flash).by, AttentionBy::flash);
  EXPECT_THROW(find_attention(on_hopper(DType::bf16, 512), AttentionBy::reference), UserError);
}

TEST_F(CudaAttention, FlashLeavesOtherHeadsToTheReference) {
  std::string said;
  const log::Listener listener([&](bool, std::string_view text) { said.append(text).push_back('\n'); });
  Batch b({4, 2, 80}, DType::bf16, {201, 65}, 3, 1);
  GpuRun run(b);
  run.run("flash", "flash");
  expect_agrees_with_cpu(run);
  EXPECT_TRUE(says(said, {"attention forward", "attention backward", "reference; not flash: ", "head_dim 64"}));
}

// What "auto" takes on a card computes the same, whatever it took.
TEST_F(CudaAttentionAuto, AgreesWithTheCpu) {
  for (const std::int64_t head_dim : {64, 80, 128}) {
    Batch b({4, 2, head_dim}, DType::bf16, {200, 65}, 3, 1);
    GpuRun run(b);
    run.run("auto", "auto");
    expect_agrees_with_cpu(run);
  }
}

TEST_F(CudaAttentionAuto, SaysWhatItTookAndWhyNotOthers) {
  std::string said;
  const log::Listener listener([&](bool, std::string_view text) { said.append(text).push_back('\n'); });
  Batch b({2, 1, 80}, DType::bf16, {33}, 0, 1);
  GpuRun(b).run("auto", "auto");
  for (const std::string pass : {"forward", "backward"}) {
    ASSERT_TRUE(says(said, {"attention " + pass}));
    EXPECT_TRUE(says(said.substr(said.find("attention " + pass)), {"; not flash: ", "head_dim 64"}));
  }
  said.clear();
  GpuRun(b).run("auto", "auto");
  EXPECT_EQ(said, "");  // once
}

TEST_F(CudaAttentionAuto, RepeatsItsBitsWhereItMust) {
  for (const bool full_rows : {false, true}) {
    for (const std::int64_t head_dim : {64, 80, 128}) {
      const std::vector<std::int64_t> lengths = full_rows ? std::vector<std::int64_t>{192, 192, 192} : kAwkward;
      Batch b({4, 2, head_dim}, DType::bf16, lengths, full_rows ? 0 : 11, full_rows ? 0 : 2);
      b.full_rows = full_rows;
      b.deterministic = true;
      GpuRun run(b);
      run.run("auto", "auto");
      expect_agrees_with_cpu(run);
      const Bytes out = run.out.bytes(), dqkv = run.dqkv.bytes();
      for (int again = 0; again < 5; ++again) {
        run.run("auto", "auto");
        EXPECT_TRUE(out == run.out.bytes() && dqkv == run.dqkv.bytes()) << "bits differ, head_dim " << head_dim;
      }
    }
  }
}

// A choice for one program, here one that a library is good at, is not another's that has no room for its kernel.
TEST_F(CudaAttentionAuto, TakesNoMoreWorkspaceThanThereIs) {
  Batch b({16, 16, 128}, DType::bf16, {2048, 2048}, 0, 0);
  b.full_rows = true;
  GpuRun(b).run("auto", "auto");
  b.library_workspace = false;
  GpuRun run(b);
  run.run("auto", "auto");
  expect_agrees_with_cpu(run);
}

struct CachedCase {
  std::vector<std::int64_t> positions;
  std::int64_t slots, capacity;
  HeadLayout layout;
};
class CudaAttentionCachedTest : public OnCard<::testing::TestWithParam<CachedCase>> {};

TEST_P(CudaAttentionCachedTest, AgreesWithTheCpu) {
  const auto& [positions, slots, capacity, l] = GetParam();
  const auto rows = static_cast<std::int64_t>(positions.size());
  Memory memory;
  const Shape cache{slots, l.kv_heads, capacity, l.head_dim};
  const auto results = expect_agreement(
      card(),
      AttentionCached<Tensor>{memory.uniform({rows, l.qkv_width()}), memory.integers(positions), memory.uniform(cache),
                              memory.uniform(cache), memory.zeros({rows, l.heads * l.head_dim}),
                              memory.zeros({slots, l.heads, key_splits(capacity), l.head_dim + 2}), l, 0.3f});
  for (const auto& written : results) {  // rows without a slot
    const Values& out = written.at("out");
    for (std::size_t i = static_cast<std::size_t>(slots * l.heads * l.head_dim); i < out.size(); ++i)
      EXPECT_EQ(out[i], 0.0);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaAttentionCachedTest,
                         ::testing::Values(CachedCase{{0}, 1, 1, {1, 1, 2}},
                                           CachedCase{{0, 4, 63, 64, 65, 0, 0, 0}, 5, 66, {4, 2, 10}},
                                           CachedCase{{127, 128, 700, 3}, 4, 900, {6, 2, 64}},
                                           CachedCase{{4099, 4095}, 2, 5000, {8, 2, 128}},
                                           CachedCase{{300, 0, 0}, 1, 512, {10, 2, 256}},
                                           CachedCase{{1000}, 1, 1024, {7, 7, 96}}));
INSTANTIATE_TEST_SUITE_P(RandomShapes, CudaAttentionCachedTest,
                         ::testing::ValuesIn(random_cases<CachedCase>(6, [](auto draw) {
                           const std::int64_t slots = draw(5), capacity = draw(1500), kv_heads = draw(4),
                                              group = draw(6);
                           std::vector<std::int64_t> positions;
                           for (std::int64_t s = 0; s < slots; ++s) positions.push_back(draw(capacity) - 1);
                           positions.resize(static_cast<std::size_t>(slots + draw(3) - 1));
                           return CachedCase{positions, slots, capacity, {kv_heads * group, kv_heads, 2 * draw(128)}};
                         })));

class CudaCacheStoreTest : public OnCard<> {};

TEST_F(CudaCacheStoreTest, AgreesWithTheCpu) {
  for (const HeadLayout l : {HeadLayout{1, 1, 2}, HeadLayout{6, 2, 64}, HeadLayout{4, 4, 10}}) {
    Memory memory;
    const Shape cache{4, l.kv_heads, 40, l.head_dim};
    expect_agreement(
        card(), CacheStore<Tensor>{memory.uniform({64, l.qkv_width()}), memory.integers({0, 33, 40, 40}),
                                   memory.integers({1, -1, 0, 1}), memory.uniform(cache), memory.uniform(cache), l});
  }
}

}  // namespace
}  // namespace redline::ops
