// Who computes attention on the GPU: what a name may be asked for, and that "auto" takes what can, agrees with the CPU
// whatever it took, and repeats its bits where it must.
#include "base/log.h"
#include "ops/cuda/attention_run.h"

namespace redline::ops {
namespace {

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
  EXPECT_EQ(said,
            "attention forward of packed documents: reference; not flash: it is built for head_dim 64 and 128\n"
            "attention backward of packed documents: reference; not flash: it is built for head_dim 64 and 128\n");
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
    const std::size_t sentence = said.find("attention " + pass + " of packed documents: ");
    ASSERT_NE(sentence, std::string::npos) << said;
    EXPECT_NE(said.find("; not flash: it is built for head_dim 64 and 128", sentence), std::string::npos) << said;
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

}  // namespace
}  // namespace redline::ops
