// Decoding on a card: the CPU's logits as far as the precision allows, the same text with and without graphs, and for
// any number of texts beside it.
#include <cmath>

#include "model/generate.h"
#include "model/tiny.h"
#include "testing/on_card.h"

namespace redline::model {
namespace {

using namespace redline::testing;
using Tokens = std::vector<std::int32_t>;

constexpr std::int64_t kPositions = 200;

struct DecodingCase {
  const char* name;
  const char* family;
  std::int64_t head_dim;
};
void PrintTo(const DecodingCase& c, std::ostream* out) { *out << c.name; }

class CudaDecodingTest : public OnCard<::testing::TestWithParam<DecodingCase>> {
 protected:
  config::Model model() const {
    config::Model m = tiny_model(GetParam().family);
    m.head_dim = GetParam().head_dim;
    // Scores as large as the tiny model's: those of normed heads of 256 would be near 100, too coarse in bf16.
    m.query_pre_attn_scalar = m.query_pre_attn_scalar * m.head_dim / 10;
    return m;
  }
  std::unique_ptr<Engine> make_engine(device::Device& device, std::int64_t texts, DType compute, bool graphs = true,
                                      std::int64_t positions = kPositions) const {
    LoweringOptions o;
    o.batch = {1, 1, 1};
    o.training = false;
    o.compute = compute;
    o.execution.graphs = graphs;
    o.kind = device.kind();
    o.decode = decode_shape(device.kind(), texts, positions / 2, 1000, positions);
    auto engine = std::make_unique<Engine>(model(), o, device);
    engine->initialise(3);
    return engine;
  }
};

// The same tokens through both, 150 steps: several splits of the keys.
TEST_P(CudaDecodingTest, LogitsAreThoseOfTheCpu) {
  device::CpuDevice cpu(2);
  for (const DType compute : {DType::f32, DType::bf16}) {
    const auto here = make_engine(cpu, 3, DType::f32), there = make_engine(card(), 3, compute);
    Decoding on_cpu(*here), on_card(*there);
    const auto compare = [&](std::span<const float> got, std::span<const float> want) {
      ASSERT_EQ(got.size(), want.size());
      double difference = 0, norm = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        difference += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
        norm += std::pow(static_cast<double>(want[i]), 2);
      }
      ASSERT_LE(std::sqrt(difference / norm), compute == DType::f32 ? 2e-5 : 4e-2);
    };
    const Tokens first = random_document(1, 40, model().vocab), second = random_document(2, 1, model().vocab);
    const std::int64_t slots[] = {0, 2}, slot[] = {1};
    compare(on_card.prefill(first, slots), on_cpu.prefill(first, slots));
    compare(on_card.prefill(second, slot), on_cpu.prefill(second, slot));
    const Tokens more = random_document(3, 450, model().vocab);
    for (std::size_t i = 0; i < 150; ++i) {
      const auto tokens = std::span(more).subspan(3 * i, 3);
      compare(on_card.step(tokens), on_cpu.step(tokens));
    }
  }
}

TEST_P(CudaDecodingTest, ATextDependsNeitherOnGraphsNorOnHowManyThereAre) {
  const GenerateOptions options{.tokens = 60, .choice = {.temperature = 1, .top_k = 20, .top_p = 0.9}, .seed = 6};
  const Tokens prompt = random_document(5, 3, model().vocab);
  for (const DType compute : {DType::f32, DType::bf16}) {
    const auto written = [&](std::size_t count, bool graphs) {
      const auto engine = make_engine(card(), static_cast<std::int64_t>(count), compute, graphs, 40);
      Decoding decoding(*engine);
      return generate(decoding, std::vector<Tokens>(count, prompt), options, {}).texts;
    };
    const auto many = written(11, true), three = written(3, false), one = written(1, true);
    EXPECT_EQ(one[0].tokens, many[0].tokens);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(three[i].tokens, many[i].tokens);
    EXPECT_EQ(one[0].tokens.size(), 60u);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaDecodingTest,
                         ::testing::Values(DecodingCase{"llama", "llama", 10}, DecodingCase{"llama_64", "llama", 64},
                                           DecodingCase{"qwen3_128", "qwen3", 128},
                                           DecodingCase{"olmo2_64", "olmo2", 64},
                                           // caches that are rings
                                           DecodingCase{"mistral_128", "mistral", 128},
                                           DecodingCase{"smollm3_64", "smollm3", 64},
                                           DecodingCase{"gemma3_256", "gemma3", 256}));

}  // namespace
}  // namespace redline::model
