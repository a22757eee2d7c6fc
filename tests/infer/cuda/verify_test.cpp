// The CUDA backend agrees with what Hugging Face computed: in fp32 as closely as the CPU does, in bf16 and tf32 within
// what their rounding allows. Two of them have the head sizes that attention on tensor cores is built for.
#include "infer/verify.h"

#include <algorithm>

#include "infer/planted_scale.h"
#include "testing/on_card.h"
#include "testing/paths.h"

namespace redline::infer {
namespace {

using namespace redline::testing;

class FixtureOnCard
    : public OnCard<::testing::TestWithParam<std::tuple<const char* /*case*/, const char* /*precision*/>>> {};

using VerifyOnCard = OnCard<>;

TEST_P(FixtureOnCard, AgreesWithHuggingFace) {
  const auto& [name, precision] = GetParam();
  const Path folder = Path(source_folder()) / "tests/fixtures" / name;
  const Verification v =
      verify(real_files(), folder, card(), {.precision = precision, .progress = {}, .before_step = {}});
  EXPECT_GT(v.comparisons.size(), 20u);
  for (const Comparison& c : v.comparisons)
    EXPECT_TRUE(c.within()) << c.name << " " << name_of(c.measure) << " " << c.error << " > " << c.tolerance
                            << " against " << c.against;
}

INSTANTIATE_TEST_SUITE_P(Verify, FixtureOnCard,
                         ::testing::Combine(::testing::Values("llama-mha", "llama3-gqa", "qwen3-gqa", "llama-hd64",
                                                              "qwen3-hd128", "olmo2-gqa", "qwen2-gqa", "mistral-window",
                                                              "smollm3-nope", "olmo3-window", "gemma3-text",
                                                              "llama-biases", "olmoe", "qwen3-moe", "qwen3-moe-dense",
                                                              "mixtral"),
                                            ::testing::Values("fp32", "tf32", "bf16", "fp8")));

// In fp8 against the CPU too, which makes the same casts.
TEST_F(VerifyOnCard, OneScaleThatIsOffIsSeenByBoth) {
  const Path folder = Path(source_folder()) / "tests/fixtures/llama3-gqa";
  for (const char* tensor : {"layer 1/qkv input", "layer 0/down gradient", "layer 1/gate_up weight"}) {
    const Verification v =
        verify(real_files(), folder, card(), {.precision = "fp8", .progress = {}, .before_step = scale_off(tensor, 2)});
    for (const std::string against : {"oracle", "cpu"})
      EXPECT_TRUE(
          std::ranges::any_of(v.comparisons, [&](const Comparison& c) { return c.against == against && !c.within(); }))
          << tensor << " against " << against;
  }
}

}  // namespace
}  // namespace redline::infer
