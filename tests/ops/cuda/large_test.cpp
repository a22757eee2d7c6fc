// Arrays of more than 2^31 elements: what kernels make of their last rows is, to the bit, what they make of those rows
// alone; and documents of tens of thousands of tokens. Needs a card with much memory, and is no test for
// compute-sanitizer, which would take hours.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <vector>

#include "base/random.h"
#include "base/step_state.h"
#include "ops/cuda/attention_backends.h"
#include "ops/cuda/kernels.h"
#include "testing/card_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

constexpr std::int64_t kWidth = 8192, kBefore = (std::int64_t{1} << 31) / kWidth, kLast = 77, kRows = kBefore + kLast;

class LargeArrays : public OnCard<> {
 protected:
  void SetUp() override {
    OnCard<>::SetUp();
    if (IsSkipped()) return;
    constexpr std::int64_t kNeeded = std::int64_t{20} << 30;
    if (card().available_bytes() < kNeeded) GTEST_SKIP() << "less than 20 GiB are free on the card";
  }
  Tensor array(DType dtype, const Shape& shape) {
    Tensor t{nullptr, dtype, shape};
    t.data = buffers_.emplace_back(card().allocate(t.bytes()))->data();
    card().fill(t.data, 0xFF, t.bytes());
    return t;
  }
  // Random numbers from -1 to 1, the same again after a prime number of elements: what stands 2^31 elements or 2^32
  // bytes off is something else.
  Tensor noise(DType dtype, const Shape& shape) {
    constexpr std::int64_t kPeriod = 1'000'003;
    const Tensor t = array(dtype, shape);
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    std::vector<std::byte> piece(static_cast<std::size_t>(std::min(kPeriod, t.elements()) * size));
    const Random random(5, buffers_.size());
    for (std::size_t i = 0; i < piece.size() / static_cast<std::size_t>(size); ++i) {
      const auto x = static_cast<float>(2 * random.uniform(i) - 1);
      const auto bits = std::bit_cast<std::uint32_t>(x) >> (dtype == DType::bf16 ? 16 : 0);
      std::memcpy(piece.data() + i * static_cast<std::size_t>(size), &bits, static_cast<std::size_t>(size));
    }
    auto done = static_cast<std::int64_t>(piece.size());
    card().copy_in(t.data, piece.data(), done);
    for (std::int64_t more; done < t.bytes(); done += more) {
      more = std::min(done, t.bytes() - done);
      REDLINE_CUDA(cudaMemcpyAsync(t.as<std::byte>() + done, t.data, static_cast<std::size_t>(more),
                                   cudaMemcpyDeviceToDevice, card().launch().stream));
    }
    return t;
  }
  Tensor integers(const std::vector<std::int32_t>& values) {
    const Tensor t = array(DType::i32, {static_cast<std::int64_t>(values.size())});
    card().copy_in(t.data, values.data(), t.bytes());
    return t;
  }
  static Tensor last_rows(const Tensor& t) {
    const std::int64_t row = t.bytes() / kRows;
    const Shape shape = t.shape.rank() == 1 ? Shape{kLast} : Shape{kLast, t.columns()};
    return {t.as<std::byte>() + kBefore * row, t.dtype, shape};
  }
  Tensor copy_of(const Tensor& t) {
    const Tensor copy = array(t.dtype, t.shape);
    REDLINE_CUDA(cudaMemcpyAsync(copy.data, t.data, static_cast<std::size_t>(t.bytes()), cudaMemcpyDeviceToDevice,
                                 card().launch().stream));
    return copy;
  }
  Bytes bytes(const Tensor& t) {
    Bytes all(static_cast<std::size_t>(t.bytes()));
    card().copy_out(all.data(), t.data, t.bytes());
    return all;
  }
  Values values(const Tensor& t) {
    const Bytes raw = bytes(t);
    const std::size_t size = size_of(t.dtype);
    Values v;
    for (std::size_t i = 0; i < raw.size(); i += size) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, raw.data() + i, size);
      v.push_back(static_cast<double>(std::bit_cast<float>(bits << (t.dtype == DType::bf16 ? 16 : 0))));
    }
    return v;
  }
  void expect_same(const char* what, const Tensor& got, const Tensor& want) {
    EXPECT_TRUE(bytes(got) == bytes(want)) << what;
  }
  // The op over all rows against the op over the last ones of the operands that go `by_row`: views of what it reads,
  // and of what it writes copies, made before the first run changes anything.
  template <class Op>
  void expect_last_rows(const Op& op, const std::vector<std::string_view>& by_row) {
    std::vector<std::pair<std::string, std::pair<Tensor, Tensor>>> written;
    const Op alone = op.map([&](std::string_view name, const Tensor& t, Access access) {
      if (!t.present()) return t;
      const bool rows = std::ranges::find(by_row, name) != by_row.end();
      const Tensor part = rows ? last_rows(t) : t;
      if (access == Access::read) return part;
      const Tensor copy = copy_of(part);
      if (rows) written.push_back({std::string(name), {part, copy}});
      return copy;
    });
    cuda::run(op, card().launch());
    cuda::run(alone, card().launch());
    EXPECT_FALSE(written.empty());
    for (const auto& [name, pair] : written) expect_same(name.c_str(), pair.first, pair.second);
  }

  // The list of tiles that an attention's kernels take their work from.
  template <class Op>
  Tensor tiles_of(const Op& op) {
    const Tensor tiles = array(DType::u8, {tile_bytes(op.qkv.rows(), op.doc_offsets.elements() - 1)});
    cuda::run(DocumentTiles<Tensor>{op.doc_offsets, tiles, op.qkv.rows()}, card().launch());
    return tiles;
  }

 private:
  std::vector<std::unique_ptr<device::Buffer>> buffers_;
};

TEST_F(LargeArrays, Embed) {
  std::vector<std::int32_t> tokens(kRows);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i * 7 % 101);
  expect_last_rows(
      Embed<Tensor>{integers(tokens), noise(DType::bf16, {101, kWidth}), array(DType::bf16, {kRows, kWidth})},
      {"tokens", "y"});
}

// A table so large, and the last rows of it the only ones with a gradient.
TEST_F(LargeArrays, EmbedGrad) {
  std::vector<std::int32_t> tokens(kLast);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(kRows - 1 - i);
  const Tensor dy = noise(DType::f32, {kLast, kWidth}), dweight = array(DType::f32, {kRows, kWidth});
  const Tensor of = integers(tokens), order = array(DType::i32, {2, kLast});
  cuda::run(SortTokens<Tensor>{of, order, array(DType::u8, {sort_bytes(kLast)}), kRows}, card().launch());
  const Tensor pieces = array(DType::f32, {piece_rows(kLast, kEmbedChunk), kWidth});
  cuda::run(EmbedGrad<Tensor>{of, dy, dweight, false, kNoPadding, order, pieces}, card().launch());
  const auto row_bytes = static_cast<std::ptrdiff_t>(kWidth * 4);
  const Bytes got = bytes(last_rows(dweight)), want = bytes(dy);
  for (std::ptrdiff_t i = 0; i < kLast; ++i)
    ASSERT_TRUE(std::equal(want.begin() + i * row_bytes, want.begin() + (i + 1) * row_bytes,
                           got.begin() + (kLast - 1 - i) * row_bytes))
        << "token " << i;
}

TEST_F(LargeArrays, AddNorm) {
  const Shape shape{kRows, kWidth};
  expect_last_rows(
      AddNorm<Tensor>{noise(DType::bf16, shape), noise(DType::bf16, shape), noise(DType::bf16, {kWidth}),
                      array(DType::bf16, shape), array(DType::bf16, shape), array(DType::f32, {kRows}), 1e-5f},
      {"residual_in", "branch", "residual_out", "y", "rstd"});
}

TEST_F(LargeArrays, AddNormGrad) {
  const Shape shape{kRows, kWidth};
  expect_last_rows(
      AddNormGrad<Tensor>{noise(DType::bf16, shape), noise(DType::bf16, shape), noise(DType::bf16, {kWidth}),
                          noise(DType::f32, {kRows}), noise(DType::bf16, shape), array(DType::f32, {kWidth}),
                          array(DType::f32, {kRowGroups, kWidth}), true, false},
      {"dy", "residual", "rstd", "dresidual"});
}

TEST_F(LargeArrays, SwiGlu) {
  const Tensor gate_up = noise(DType::bf16, {kRows, kWidth}), dy = noise(DType::bf16, {kRows, kWidth / 2});
  expect_last_rows(SwiGlu<Tensor>{gate_up, array(DType::bf16, dy.shape)}, {"gate_up", "y"});
  expect_last_rows(SwiGluGrad<Tensor>{gate_up, dy, array(DType::bf16, gate_up.shape)}, {"gate_up", "dy", "dgate_up"});
}

TEST_F(LargeArrays, Dropout) {
  const auto state = [&](std::int64_t first_token) {
    const StepState s{.seed = 3, .step = 4, .first_token = static_cast<std::uint64_t>(first_token)};
    const Tensor t = array(DType::u8, {static_cast<std::int64_t>(sizeof s)});
    card().copy_in(t.data, &s, sizeof s);
    return t;
  };
  const Tensor x = noise(DType::bf16, {kRows, kWidth}), y = array(DType::bf16, x.shape);
  const Tensor alone = array(DType::bf16, {kLast, kWidth});
  cuda::run(Dropout<Tensor>{x, state(0), y, 0.1f, 2}, card().launch());
  cuda::run(Dropout<Tensor>{last_rows(x), state(kBefore), alone, 0.1f, 2}, card().launch());
  expect_same("y", last_rows(y), alone);
}

constexpr HeadLayout kLayout{48, 8, 128};
static_assert((kLayout.heads + 2 * kLayout.kv_heads) * kLayout.head_dim == kWidth);

TEST_F(LargeArrays, RopeQkNorm) {
  std::vector<std::int32_t> positions(kRows);
  for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int32_t>(i % 97);
  const Tensor at = integers(positions), table = noise(DType::f32, {97, 128}), absent;
  const Tensor q_norm = noise(DType::bf16, {128}), k_norm = noise(DType::bf16, {128});
  const Tensor qkv = noise(DType::bf16, {kRows, kWidth});
  const Tensor raw = array(DType::bf16, {kRows, kLayout.qk_heads() * 128});
  const Tensor rstd = array(DType::f32, {kRows, kLayout.qk_heads()});
  expect_last_rows(RopeQkNorm<Tensor>{qkv, q_norm, k_norm, at, table, raw, rstd, kLayout, 1e-6f},
                   {"qkv", "positions", "raw", "rstd"});
  expect_last_rows(RopeQkNorm<Tensor>{qkv, absent, absent, at, table, absent, absent, kLayout, 1e-6f},
                   {"qkv", "positions"});
  const Tensor dq_norm = array(DType::f32, {128}), dk_norm = array(DType::f32, {128});
  const Tensor partial = array(DType::f32, {kRowGroups, 256});
  expect_last_rows(
      RopeQkNormGrad<Tensor>{qkv, q_norm, k_norm, at, table, raw, rstd, dq_norm, dk_norm, partial, kLayout, false},
      {"dqkv", "positions", "raw", "rstd"});
}

// Documents of 64 tokens, then one of kLast that starts at element 2^31 of qkv. cuDNN's offsets are 32 bits: it
// refuses.
TEST_F(LargeArrays, Attention) {
  std::vector<std::int32_t> offsets{0};
  while (offsets.back() < kBefore) offsets.push_back(offsets.back() + 64);
  offsets.push_back(kRows);
  const Tensor documents = integers(offsets), one_document = integers({0, kLast}), absent;
  const Tensor qkv = noise(DType::bf16, {kRows, kWidth}), dqkv = array(DType::bf16, qkv.shape);
  const Tensor dout = noise(DType::bf16, {kRows, 48 * 128}), out = array(DType::bf16, dout.shape);
  const Tensor lse = array(DType::f32, {48, kRows}), delta = array(DType::f32, lse.shape);
  const Tensor own_out = array(DType::bf16, {kLast, 48 * 128}), own_dqkv = array(DType::bf16, {kLast, kWidth});
  const Tensor own_lse = array(DType::f32, {48, kLast}), own_delta = array(DType::f32, own_lse.shape);
  const device::cuda::Launch& launch = card().launch();
  const Attention<Tensor> all{qkv, documents, out, lse, kLayout, 0.1f, kLast};
  const Attention<Tensor> alone{last_rows(qkv), one_document, own_out, own_lse, kLayout, 0.1f, kLast};
  const AttentionGrad<Tensor> all_grad{qkv, documents, out, lse, dout, dqkv, delta, absent, kLayout, 0.1f, kLast};
  const AttentionGrad<Tensor> alone_grad{last_rows(qkv),  one_document, own_out,   own_lse,
                                         last_rows(dout), own_dqkv,     own_delta, absent,
                                         kLayout,         0.1f,         kLast};
  const auto run = [&](auto op, std::string_view backend) {
    op.tiles = tiles_of(op);
    op.how.by = attention_by(backend);
    cuda::run(op, launch);
  };
  EXPECT_THROW(run(all, "cudnn"), UserError);
  for (const char* backend : {"hopper", "flash", "reference"}) {
    SCOPED_TRACE(backend);
    if (backend == std::string_view("hopper") && !cuda::hopper_why_not(cuda::case_of(all, launch)).empty()) continue;
    for (const Tensor& t : {out, dqkv, own_out, own_dqkv}) card().fill(t.data, 0xFF, t.bytes());
    run(all, backend);
    run(alone, backend);
    expect_same("out", last_rows(out), own_out);
    run(all_grad, backend);
    run(alone_grad, backend);
    expect_same("dqkv", last_rows(dqkv), own_dqkv);
  }
}

// Documents of more tiles than the plan has buckets to sort them by, against the reference.
TEST_F(LargeArrays, LongDocuments) {
  constexpr HeadLayout kOneHead{1, 1, 64};
  constexpr std::int64_t kLongest = 70000, kTokens = kLongest + 5 + 66000 + 3;
  const Tensor documents = integers({0, kLongest, kLongest + 5, kTokens - 3, kTokens - 3}), absent;
  const Tensor qkv = noise(DType::bf16, {kTokens, 3 * 64}), dout = noise(DType::bf16, {kTokens, 64});
  const Tensor out = array(DType::bf16, dout.shape), dqkv = array(DType::bf16, qkv.shape);
  const Tensor lse = array(DType::f32, {1, kTokens}), delta = array(DType::f32, lse.shape);
  const Attention<Tensor> op{qkv, documents, out, lse, kOneHead, 0.5f, kLongest};
  const AttentionGrad<Tensor> grad{qkv, documents, out, lse, dout, dqkv, delta, absent, kOneHead, 0.5f, kLongest};
  const device::cuda::Launch& launch = card().launch();
  const auto run = [&](auto of, std::string_view backend) {
    of.tiles = tiles_of(of);
    of.how.by = attention_by(backend);
    cuda::run(of, launch);
  };
  const auto results_of = [&](std::string_view backend) {
    for (const Tensor& t : {out, dqkv, lse, delta}) card().fill(t.data, 0xFF, t.bytes());
    run(op, backend);
    run(grad, backend);
    return std::vector<Values>{values(out), values(lse), values(dqkv)};
  };
  const std::vector<Values> want = results_of("reference");
  for (const char* backend : {"hopper", "flash"}) {
    if (backend == std::string_view("hopper") && !cuda::hopper_why_not(cuda::case_of(op, launch)).empty()) continue;
    const std::vector<Values> got = results_of(backend);
    expect_near_in_norm(std::string("out of ") + backend, got[0], want[0], 1e-2);
    expect_near_in_norm(std::string("lse of ") + backend, got[1], want[1], 1e-4);
    expect_near_in_norm(std::string("dqkv of ") + backend, got[2], want[2], 2e-2);
  }
}

// The logits of a large vocabulary in one chunk and in twelve; of twelve lm_loss_test.cpp says that they are right.
TEST_F(LargeArrays, LmLoss) {
  constexpr std::int64_t kTokens = 14400, kVocab = 151936, kHidden = 64;
  static_assert(kTokens * kVocab > std::int64_t{1} << 31);
  std::vector<std::int32_t> targets(kTokens);
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<std::int32_t>(i * 7919 % kVocab);
  const Tensor x = noise(DType::bf16, {kTokens, kHidden}), weight = noise(DType::bf16, {kVocab, kHidden});
  const Tensor to = integers(targets), loss_sum = array(DType::f64, {1});
  const Tensor workspace = array(DType::u8, {kProductWorkspaceBytes});
  constexpr ProductHow kUntuned{.bits = Bits::repeat};
  std::vector<std::vector<Values>> results;
  for (const std::int64_t rows : {kTokens, kTokens / 12}) {
    const Tensor losses = array(DType::f32, {kTokens}), dx = array(DType::bf16, x.shape);
    const Tensor dweight = array(DType::f32, weight.shape), logits = array(DType::bf16, {rows, kVocab});
    cuda::run(LmLoss<Tensor>{x, weight, to, losses, loss_sum, logits, dx, dweight, false, false, workspace, kUntuned},
              card().launch());
    results.push_back({values(losses), values(dx), values(dweight)});
  }
  expect_near_in_norm("losses", results[0][0], results[1][0], 1e-3);
  expect_near_in_norm("dx", results[0][1], results[1][1], 1e-2);
  expect_near_in_norm("dweight", results[0][2], results[1][2], 1e-2);
  EXPECT_GT(*std::ranges::min_element(results[0][0]), 0.0);
}

}  // namespace
}  // namespace redline::ops
