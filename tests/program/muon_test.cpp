// The three nodes of Muon one after the other, against torch.optim.Muon (tests/fixtures/muon/make_oracle.py).
#include "io/safetensors.h"
#include "ops/cpu/kernels.h"
#include "optim/cpu/kernels.h"
#include "testing/op_check.h"
#include "testing/paths.h"

namespace redline::program {
namespace {

using namespace redline::testing;

// torch computes its rounds in bf16, and divides by the norm itself where we divide by 1.02 of it. With that factor
// taken back the steps differ by 1.2 to 2.0% of their norm, as rounds in doubles do.
TEST(Muon, StepsAreThoseOfTorch) {
  const io::SafetensorsReader oracle(testing::fixture("muon/oracle.safetensors"));
  ThreadPool pool(1);
  for (const std::string name : {"tall", "wide", "square"}) {
    const io::StoredTensor& start = oracle.at(name + ".weight.0");
    const std::int64_t rows = start.shape[0], columns = start.shape[1], side = std::min(rows, columns);
    const optim::Matrices one{1, rows, columns, {}, {}};
    testing::Memory memory;
    const Tensor momentum = memory.zeros({rows * columns}), gradient = memory.zeros({rows * columns});
    const Tensor weight = memory.zeros({rows * columns}), x = memory.zeros({1, rows, columns});
    const Tensor state = memory.object(StepState{.lr = 0.02f, .momentum = 0.95f});
    const Tensor result = memory.object(UpdateResult{.grad_scale = 1, .finite = 1});
    const ops::Orthogonalize<Tensor> rounds{x, memory.zeros({1, rows, columns}), memory.zeros({1, side, side}),
                                            memory.zeros({1, side, side})};
    const auto read = [&](const std::string& of, const Tensor& to) {
      oracle.at(name + of).to_f32({to.f32(), static_cast<std::size_t>(to.elements())});
    };
    for (int step = 1; step <= 3; ++step) {
      read(fmt::format(".weight.{}", step - 1), weight);
      read(fmt::format(".gradient.{}", step), gradient);
      const Values before = values_of(weight);
      optim::cpu::run(optim::MuonMomentum<Tensor>{gradient, momentum, x, memory.doubles(256), state, result, one},
                      pool);
      for (std::int64_t i = 0; i < x.elements(); ++i) x.f32()[i] *= 1.02f;
      ops::cpu::run(rounds, pool);
      optim::cpu::run(
          optim::Muon<Tensor>{rounds.result(), weight, {}, {}, {}, state, result, one, {.weight_decay = 0.1f}}, pool);
      const std::vector<float> want = oracle.at(fmt::format("{}.weight.{}", name, step)).to_f32();
      double wrong = 0, moved = 0;
      for (std::size_t i = 0; i < want.size(); ++i) {
        const double after = static_cast<double>(want[i]), got = static_cast<double>(weight.f32()[i]);
        wrong += (got - after) * (got - after);
        moved += (after - before[i]) * (after - before[i]);
      }
      EXPECT_LT(std::sqrt(wrong / moved), 0.025) << name << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace redline::program
