// Moments in fewer bytes on the card. Where both backends compute the same floats, what is kept has the CPU's bits;
// sums may differ in the last bit of fp32, as a compiler contracts them: then a number lies one place off, now and
// then.
#include "optim/moments.h"

#include "base/step_state.h"
#include "optim/cpu/kernels.h"
#include "optim/cuda/kernels.h"
#include "testing/card_check.h"

namespace redline::optim {
namespace {

using namespace redline::testing;

class CudaMomentsTest : public OnCard<::testing::TestWithParam<std::int64_t>> {};

// Moments as a step of the CPU leaves them, and what the next one needs.
AdamW<Tensor> update_of(Memory& memory, DType moments, std::int64_t n, std::int64_t begin, const AdamWSettings& s) {
  AdamW<Tensor> op{
      memory.uniform({n}),
      memory.uniform({n}, -5, 5),
      memory.array(moments, {n}),
      memory.array(moments, {n}),
      {},
      memory.object(StepState{.seed = 11, .step = 6, .lr = 0.01f, .correction1 = 0.19f, .correction2 = 0.0975f}),
      memory.object(UpdateResult{.grad_norm = 1, .grad_scale = 0.125f, .finite = 1}),
      s};
  op.begin = begin;
  if (moments == DType::u8) {
    const StateArray row{.name = "scales", .range = {begin, begin + n}, .block = kCutBlock};
    op.scales1 = memory.zeros({row.elements()});
    op.scales2 = memory.zeros({row.elements()});
  }
  ThreadPool pool(1);
  cpu::run(op, pool);
  op.state.as<StepState>()->step = 7;
  // Other gradients, some of them none: of every size.
  const Random random(2, 2);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::uint64_t>(i);
    op.gradients.f32()[i] *= i % 7 == 3 ? 0.0f : static_cast<float>(std::pow(10.0, -6 * random.uniform(at)));
  }
  return op;
}

std::map<std::string, Bytes> bytes_by_name(const CardOp<AdamW<Tensor>>& on_card) {
  std::map<std::string, Bytes> bytes;
  for (const NamedOperand& o : on_card.operands()) bytes[o.name] = on_card.bytes(o);
  return bytes;
}
Bytes bytes_on_host(const Tensor& t) { return {t.as<std::uint8_t>(), t.as<std::uint8_t>() + t.bytes()}; }

// How many elements are not the same, and that those are neighbours: codes and bf16 count with their magnitudes, codes
// of either sign from zero on.
template <class T>
std::int64_t places_off(const Bytes& got, const Bytes& want) {
  std::int64_t count = 0;
  EXPECT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size() / sizeof(T); ++i) {
    T a, b;
    std::memcpy(&a, got.data() + i * sizeof(T), sizeof(T));
    std::memcpy(&b, want.data() + i * sizeof(T), sizeof(T));
    const auto apart = static_cast<T>(a - b);
    EXPECT_TRUE(apart == 0 || apart == 1 || apart == static_cast<T>(-1)) << i;
    count += a != b;
  }
  return count;
}

TEST_P(CudaMomentsTest, AreTheCpus) {
  const std::int64_t n = GetParam();
  for (const DType moments : {DType::bf16, DType::u8})
    for (const std::int64_t begin : {0, 64, 192, 301})
      for (const std::int64_t shift : {0, 1})
        for (const bool exact : {true, false}) {
          Memory memory;
          // Without memory of the past both moments are one product: no sum that could be contracted.
          const AdamWSettings s = exact ? AdamWSettings{.beta1 = 0, .beta2 = 0} : AdamWSettings{};
          const AdamW<Tensor> op = update_of(memory, moments, n, begin, s);
          const CardOp<AdamW<Tensor>> on_card(card(), op, DType::f32, shift);
          cuda::run(on_card.op(), card().launch());
          std::map<std::string, Bytes> got = bytes_by_name(on_card);
          ThreadPool pool(1);
          cpu::run(op, pool);
          const std::string what = fmt::format("{} of {} from {} on, shift {}", n, name_of(moments), begin, shift);
          for (const auto& [name, tensor] : {std::pair{"moment1", op.moment1}, {"moment2", op.moment2}}) {
            const Bytes want = bytes_on_host(tensor);
            if (exact) {
              EXPECT_TRUE(got[name] == want) << name << ", " << what;
            } else {
              const std::int64_t off = moments == DType::u8 ? places_off<std::uint8_t>(got[name], want)
                                                            : places_off<std::uint16_t>(got[name], want);
              EXPECT_LE(off, 2 + n / 200) << name << ", " << what;
            }
          }
          for (const auto& [name, tensor] : {std::pair{"scales1", op.scales1}, {"scales2", op.scales2}})
            for (std::int64_t i = 0; i < (tensor.present() ? tensor.elements() : 0); ++i) {
              float scale;
              std::memcpy(&scale, got[name].data() + 4 * i, 4);
              EXPECT_NEAR(scale, tensor.f32()[i], exact ? 0.0f : 1e-6f * tensor.f32()[i]) << name << ", " << what;
            }
          for (const NamedOperand& o : on_card.operands())
            if (o.name == "parameters") expect_near_in_norm(what, on_card.values(o), values_of(op.parameters), 1e-6);
        }
}

INSTANTIATE_TEST_SUITE_P(Sizes, CudaMomentsTest, ::testing::Values(1, 3, 64, 255, 256, 1000, 4099, 100003));
INSTANTIATE_TEST_SUITE_P(RandomSizes, CudaMomentsTest,
                         ::testing::ValuesIn(random_cases<std::int64_t>(4, [](auto draw) { return draw(20000); })));

class CudaMoments : public OnCard<> {};

TEST_F(CudaMoments, NothingIsTouchedWhenNotFinite) {
  for (const DType moments : {DType::bf16, DType::u8}) {
    Memory memory;
    AdamW<Tensor> op = update_of(memory, moments, 1001, 64, {});
    op.result.as<UpdateResult>()->finite = 0;
    const CardOp<AdamW<Tensor>> on_card(card(), op, DType::f32, 0);
    cuda::run(on_card.op(), card().launch());
    for (const NamedOperand& o : on_card.operands()) EXPECT_EQ(on_card.bytes(o), on_card.initial(o)) << o.name;
  }
}

// With a working copy and without, everything else has the same bits; runs repeat to the bit.
TEST_F(CudaMoments, AWorkingCopyIsTheParametersRounded) {
  for (const DType moments : {DType::bf16, DType::u8}) {
    Memory memory;
    AdamW<Tensor> op = update_of(memory, moments, 5000, 64, {});
    const CardOp<AdamW<Tensor>> without(card(), op, DType::f32, 0);
    op.working = memory.array(DType::bf16, {5000});
    const CardOp<AdamW<Tensor>> with(card(), op, DType::f32, 0);
    cuda::run(without.op(), card().launch());
    cuda::run(with.op(), card().launch());
    const auto a = bytes_by_name(without), b = bytes_by_name(with);
    for (const auto& [name, bytes] : a) EXPECT_TRUE(bytes == b.at(name)) << name;
    for (std::size_t i = 0; i < 5000; ++i) {
      float p;
      std::uint16_t w;
      std::memcpy(&p, b.at("parameters").data() + 4 * i, 4);
      std::memcpy(&w, b.at("working").data() + 2 * i, 2);
      ASSERT_EQ(w, bf16_from_f32(p)) << i;
    }
  }
}

}  // namespace
}  // namespace redline::optim
