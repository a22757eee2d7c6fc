// A snapshot of a card's state, on the card and in the host's memory: it holds the bytes of the moment at which it was
// taken while steps go on, and changes none of theirs. Parameters that are not finite are found on the card.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "model/state_files.h"
#include "model/tiny.h"
#include "testing/on_card.h"

namespace redline::model {
namespace {

using namespace redline::testing;

constexpr data::BatchShape kSnapshotShape{.rows = 1, .seq_len = 64, .max_segments = 4};

// 12M parameters: 150 MB of state are under way for milliseconds, and a step takes one.
config::Model wide_model() {
  config::Model m = tiny_model("llama", true);
  m.layers = 1;
  m.hidden = 128;
  m.vocab = 96'000;
  m.init_std = 0.02;
  return m;
}

// With moments in the host's memory an update is late, and the norm that ends its step changes a saved row.
LoweringOptions snapshot_options(bool late = false) {
  LoweringOptions o;
  o.batch = kSnapshotShape;
  o.compute = DType::bf16;
  o.kind = device::Kind::cuda;
  o.products.bits = o.attention.bits = ops::Bits::repeat;
  o.placement.moments = late;
  o.spike = late ? 100 : 0;
  return o;
}

std::vector<std::byte> live_bytes(Engine& engine) {
  return all_bytes(engine, [&](const auto& tensors, const TakeBytes& take) { read_state(tensors, engine, take); });
}

// Gives a step to the card and does not wait for it.
void give_step(Engine& engine, int index) {
  const data::Batch batch =
      batch_of(kSnapshotShape, {random_document(static_cast<std::uint64_t>(index), 64, engine.model().vocab)});
  engine.upload(batch);
  engine.set_step(static_cast<std::uint64_t>(index), 1e-2, 1.0 / 64, 0);
  engine.micro_step(true);
  engine.update();
}

struct SnapshotCase {
  program::Memory memory;
  bool late = false;
};
class SnapshotOnCard : public OnCard<::testing::TestWithParam<SnapshotCase>> {};

TEST_P(SnapshotOnCard, IsTheStateAsItWasThoughStepsFollow) {
  LoweringOptions options = snapshot_options(GetParam().late);
  LoweredModel lowered = lower(wide_model(), options);
  ASSERT_EQ(lowered.late_state.present(), GetParam().late);
  add_snapshot(lowered, GetParam().memory);
  options.execution.late_snapshots = true;
  Engine engine(wide_model(), options, std::move(lowered), card());
  engine.initialise(3);
  int index = 0;
  for (; index < 3; ++index) {  // captured, then replayed
    give_step(engine, index);
    engine.begin_snapshots();  // the host's memory is pinned beside them
  }
  SavedState snapshot(engine);
  ASSERT_TRUE(engine.has_snapshot());
  for (const int round : {1, 2}) {  // the second takes the place of the first
    const std::vector<std::byte> before = live_bytes(engine);
    give_step(engine, index++);  // under way when it is taken
    snapshot.take();
    std::vector<std::byte> read;
    std::thread reader([&] {
      read = all_bytes(engine, [&](const auto& tensors, const TakeBytes& take) { snapshot.read(tensors, take); });
    });
    const int first = index;
    for (; index < first + 3; ++index) give_step(engine, index);
    reader.join();
    const std::vector<std::byte> after = live_bytes(engine);
    ASSERT_EQ(read.size(), after.size());
    EXPECT_FALSE(read == before) << "round " << round;
    EXPECT_FALSE(read == after) << "round " << round;

    Engine other(wide_model(), snapshot_options(GetParam().late),
                 card());  // the same steps up to that moment, with nobody reading
    other.initialise(3);
    for (int i = 0; i < first; ++i) give_step(other, i);
    EXPECT_TRUE(read == live_bytes(other)) << "round " << round;
    for (int i = first; i < index; ++i) give_step(other, i);
    EXPECT_TRUE(after == live_bytes(other)) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Places, SnapshotOnCard,
                         ::testing::Values(SnapshotCase{program::Memory::device}, SnapshotCase{program::Memory::host},
                                           SnapshotCase{program::Memory::host, true}),
                         [](const auto& p) {
                           return std::string(program::name_of(p.param.memory)) + (p.param.late ? "_late" : "");
                         });

using CheckOnCard = OnCard<>;

TEST_F(CheckOnCard, AParameterThatIsNotFiniteIsFoundWhereverItIs) {
  TinyEngine engine(wide_model(), snapshot_options(), card());
  EXPECT_TRUE(engine.parameters_finite());
  for (int i = 0; i < 3; ++i) give_step(engine, i);
  EXPECT_TRUE(engine.parameters_finite());
  float* const parameters = engine.executor().tensor(engine.lowered().at(optim::kParameters)).f32();
  const auto write = [&](std::int64_t i, float value) { card().copy_in(parameters + i, &value, sizeof value); };
  for (const StoredParameter& p : engine.layout().stored)
    for (const std::int64_t i : {p.offset, p.offset + p.elements / 2, p.offset + p.elements - 1})
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
        float kept = 0;
        card().copy_out(&kept, parameters + i, sizeof kept);
        write(i, bad);
        EXPECT_FALSE(engine.parameters_finite()) << p.name << ", element " << i - p.offset;
        write(i, kept);
      }
  EXPECT_TRUE(engine.parameters_finite());
}

// A number that is finite in fp32 need not be so in its square, which the norm of gradients sums.
TEST_F(CheckOnCard, LargeParametersAreFinite) {
  TinyEngine engine(wide_model(), snapshot_options(), card());
  float* const parameters = engine.executor().tensor(engine.lowered().at(optim::kParameters)).f32();
  const float large = 3e38f;
  card().copy_in(parameters + 5, &large, sizeof large);
  EXPECT_TRUE(engine.parameters_finite());
}

}  // namespace
}  // namespace redline::model
