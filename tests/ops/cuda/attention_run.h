// Both passes of attention on the card, on batches of documents between guards, and their comparison with the CPU's in
// fp32. Only for tests under a cuda/ folder.
#pragma once

#include <algorithm>
#include <memory>

#include "ops/attention_batch.h"
#include "ops/cpu/kernels.h"
#include "ops/cuda/attention_backends.h"
#include "ops/cuda/kernels.h"
#include "testing/card_check.h"

namespace redline::ops {

using namespace redline::testing;

inline device::CudaDevice& gpu() {
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

// A batch with what kernels are told of it. The host's arrays are fp32 holding what the card's dtype can hold.
struct Batch : DocumentBatch {
  DType dtype;
  std::int64_t longest = 1;
  bool full_rows = false;  // where it is true
  bool deterministic = false, library_workspace = true;
  bool tf32 = false;  // what is fp32 may be rounded to it

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
    const Attention<Tensor> op{qkv.tensor(), doc_offsets.tensor(), out.tensor(),   lse.tensor(), batch.layout,
                               batch.scale,  batch.longest,        tiles.tensor(), library,      batch.how(forward)};
    const AttentionGrad<Tensor> grad{qkv.tensor(),       doc_offsets.tensor(), out.tensor(),   lse.tensor(),
                                     dout.tensor(),      dqkv.tensor(),        delta.tensor(), library,
                                     batch.layout,       batch.scale,          batch.longest,  tiles.tensor(),
                                     batch.how(backward)};
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
inline void expect_rows_close(std::string_view name, const Values& got, const Values& want, std::int64_t row_length,
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

inline void expect_agrees_with_cpu(const GpuRun& gpu_run) {
  const Batch& b = gpu_run.batch;
  Memory memory;
  ThreadPool pool(2);
  const Tensor out = memory.zeros(b.dout.shape), lse = memory.zeros({b.layout.heads, b.n});
  const Tensor dqkv = memory.zeros(b.qkv.shape), delta = memory.zeros({b.layout.heads, b.n});
  cpu::run(Attention<Tensor>{b.qkv, b.doc_offsets, out, lse, b.layout, b.scale}, pool);
  const double tolerance = b.dtype == DType::bf16 || b.tf32 ? 1e-2 : 2e-5;  // a token alone is all rounding
  const Values gpu_out = gpu_run.out.values();
  expect_rows_close("out", gpu_out, values_of(out), b.layout.head_dim, tolerance);
  expect_rows_close("lse", gpu_run.lse.values(), values_of(lse), b.n, b.tf32 ? 1e-2 : 1e-4);
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

class CudaAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device::cuda_status().cards.empty()) GTEST_SKIP() << "no GPU";
  }
};

// Lengths of documents.
inline const std::vector<std::int64_t> kAwkward{65, 0, 1, 2, 63, 64, 127, 0, 128, 129, 1000};

}  // namespace redline::ops
