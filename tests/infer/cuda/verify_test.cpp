// The CUDA backend agrees with what Hugging Face computed: in fp32 as closely as the CPU does, in bf16 and tf32 within
// what their rounding allows. Two of them have the head sizes that attention on tensor cores is built for.
#include "infer/verify.h"

#include "testing/on_card.h"

namespace redline::infer {
namespace {

class FixtureOnCard
    : public testing::OnCard<::testing::TestWithParam<std::tuple<const char* /*case*/, const char* /*precision*/>>> {};

TEST_P(FixtureOnCard, AgreesWithHuggingFace) {
  const auto& [name, precision] = GetParam();
  const Path folder = Path(REDLINE_SOURCE_DIR) / "tests/fixtures" / name;
  const Verification v = verify(real_files(), folder, card(), {.precision = precision, .progress = {}});
  EXPECT_GT(v.comparisons.size(), 20u);
  for (const Comparison& c : v.comparisons)
    EXPECT_TRUE(c.within()) << c.name << " " << name_of(c.measure) << " " << c.error << " > " << c.tolerance;
}

INSTANTIATE_TEST_SUITE_P(Verify, FixtureOnCard,
                         ::testing::Combine(::testing::Values("llama-mha", "llama3-gqa", "qwen3-gqa", "llama-hd64",
                                                              "qwen3-hd128", "olmo2-gqa"),
                                            ::testing::Values("fp32", "tf32", "bf16")));

}  // namespace
}  // namespace redline::infer
