// The rows of the state table and the tensors of files that they are, as every optimizer keeps them; and snapshots,
// which hold the state as it was though updates follow.
#include "model/state_files.h"

#include <gtest/gtest.h>

#include <set>

#include "io/safetensors.h"
#include "model/hand_made_optimizer.h"
#include "model/tiny.h"
#include "testing/check_plan.h"
#include "testing/temp_folder.h"
#include "testing/transfer_windows.h"

namespace redline::model {
namespace {

using namespace redline::testing;

LoweringOptions state_options(const Optimizer& optimizer = kAdamW, DType compute = DType::f32) {
  return {.batch = {1, 8, 1}, .compute = compute, .optimizer = &optimizer};
}

TEST(State, RowsAreTheValuesOfTheRunThatPersist) {
  const LoweredModel m = lower(tiny_model("qwen3"), state_options(kAdamW, DType::bf16));
  std::vector<std::string> names;
  std::int64_t bytes = 0;
  ASSERT_EQ(m.state.size(), m.state_values.size());
  for (std::size_t i = 0; i < m.state.size(); ++i) {
    const program::Value& value = m.set.at(m.state_values[i]);
    names.push_back(m.state[i].name);
    EXPECT_EQ(value.name, m.state[i].name);
    EXPECT_EQ(value.dtype, m.state[i].dtype);
    EXPECT_EQ(value.shape.elements(), m.layout.total);
    EXPECT_EQ(m.row(m.state[i].name), i);
    EXPECT_EQ(m.at(m.state[i].name), m.state_values[i]);
    bytes += value.bytes();
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"parameters", "working copies", "gradients", "first moments", "second moments"}));
  std::int64_t planned = 0;
  for (const auto role :
       {program::Role::parameter, program::Role::working, program::Role::gradient, program::Role::moment})
    planned += m.set.memory.device.by_role[static_cast<int>(role)];
  EXPECT_GE(planned, bytes);
  EXPECT_LT(planned, bytes + 5 * 256);
  EXPECT_EQ(m.row("nothing"), m.state.size());
  EXPECT_FALSE(m.at("nothing").present());
  EXPECT_EQ(state_files(m.state), (std::vector<std::string>{"model.safetensors", "optimizer.safetensors"}));
}

TEST(State, AdamWsFilesHoldEveryParameterUnderItsName) {
  const LoweredModel m = lower(tiny_model("llama"), state_options());
  const std::vector<StateTensor> model = state_tensors(m.state, m.layout, "model.safetensors");
  const std::vector<StateTensor> optimizer = state_tensors(m.state, m.layout, "optimizer.safetensors");
  const std::size_t n = m.layout.stored.size();
  ASSERT_EQ(model.size(), n);
  ASSERT_EQ(optimizer.size(), 2 * n);
  for (std::size_t i = 0; i < n; ++i) {
    const StoredParameter& p = m.layout.stored[i];
    const auto expect = [&](const StateTensor& t, const std::string& name, std::string_view array) {
      EXPECT_EQ(t.name, name);
      EXPECT_EQ(t.shape, p.shape);
      EXPECT_EQ(t.row, m.row(array));
      EXPECT_EQ(t.first, p.offset);
      EXPECT_EQ(t.elements, p.elements);
    };
    expect(model[i], p.name, optim::kParameters);
    expect(optimizer[i], "exp_avg." + p.name, optim::kFirstMoments);
    expect(optimizer[n + i], "exp_avg_sq." + p.name, optim::kSecondMoments);
  }
}

TEST(State, AHandMadeOptimizerIsPlannedAndListedAsItsRowsSay) {
  const LoweredModel m = lower(tiny_model("llama"), state_options(kHandMade));
  EXPECT_EQ(program::check_plan(m.set), std::vector<std::string>{});
  const Range hidden = hidden_matrices(m.table, m.layout);
  EXPECT_GT(hidden.begin, 0);
  EXPECT_LT(hidden.end, m.layout.total);
  const std::int64_t n = m.layout.total, bytes = 2 * 4 * hidden.elements() + n + 4 * ((n + 255) / 256 + 13);
  const std::int64_t planned = m.set.memory.device.by_role[static_cast<int>(program::Role::moment)];
  EXPECT_GE(planned, bytes);
  EXPECT_LT(planned, bytes + 5 * 256);

  EXPECT_EQ(state_files(m.state),
            (std::vector<std::string>{"model.safetensors", "optimizer.safetensors", "bytes.safetensors"}));
  std::set<std::string> names;
  for (const StateTensor& t : state_tensors(m.state, m.layout, "optimizer.safetensors")) names.insert(t.name);
  EXPECT_TRUE(names.contains("momentum.model.layers.0.self_attn.q_proj.weight"));
  EXPECT_TRUE(names.contains("variance.model.layers.1.mlp.down_proj.weight"));
  EXPECT_TRUE(names.contains("history"));
  EXPECT_FALSE(names.contains("momentum.model.embed_tokens.weight"));
  EXPECT_EQ(names.size(), 2u * 2 * 7 + 1);  // of two layers, seven matrices each
  const std::vector<StateTensor> coarse = state_tensors(m.state, m.layout, "bytes.safetensors");
  EXPECT_EQ(coarse.size(), m.layout.stored.size() + 1);
  EXPECT_EQ(coarse.back().name, "scales");
  EXPECT_EQ(coarse.back().shape, (std::vector<std::int64_t>{(n + 255) / 256}));
}

TEST(State, AnUpdateOfARangeMovesThatRangeAlone) {
  device::CpuDevice device(1);
  TinyEngine engine(tiny_model("llama"), state_options(kHandMade), device);
  std::ranges::fill(array_on_host(engine, optim::kGradients), 0.5f);
  const std::vector<float> before = array_of(engine, optim::kParameters);
  engine.set_step(0, 0.1, 1, 0);
  engine.update();
  const std::vector<float> after = array_of(engine, optim::kParameters);
  const Range hidden = hidden_matrices(engine.table(), engine.layout());
  for (std::size_t row = 0; row < engine.table().size(); ++row) {
    const std::int64_t first = engine.layout().offsets[row];
    for (std::int64_t i = first; i < first + engine.table()[row].shape.elements(); ++i)
      ASSERT_EQ(after[static_cast<std::size_t>(i)] != before[static_cast<std::size_t>(i)],
                i >= hidden.begin && i < hidden.end)
          << engine.table()[row].name;
  }
}

// Arrays of three types, parts of which are as long as windows and a little more, on a device that copies late.
class ReadingState : public ::testing::Test {
 protected:
  static constexpr std::int64_t kWindow = device::kTransferWindow;
  ReadingState() {
    std::int64_t at = 0;
    for (Tensor& a : arrays_) {
      a.data = memory_->data() + at;
      at += a.bytes();
    }
    for (std::int64_t i = 0; i < at; ++i) memory_->data()[i] = static_cast<std::byte>((i * 2654435761) >> 13);
  }

  std::vector<std::byte> expected(std::span<const StateTensor> tensors) const {
    std::vector<std::byte> out;
    for (const StateTensor& t : tensors) {
      const auto element = static_cast<std::int64_t>(size_of(arrays_[t.row].dtype));
      const std::byte* from = arrays_[t.row].as<std::byte>() + t.first * element;
      out.insert(out.end(), from, from + t.elements * element);
    }
    return out;
  }

  LateDevice late_{1};
  std::vector<Tensor> arrays_ = {{nullptr, DType::f32, {kWindow / 4 + 12345}},
                                 {nullptr, DType::u8, {kWindow + 77}},
                                 {nullptr, DType::bf16, {1001}}};
  std::unique_ptr<device::Buffer> memory_ = late_.allocate(3 * kWindow);
  const std::vector<StateTensor> tensors_ = {{"a", {3, 7}, 2, 500, 21, DType::bf16},
                                             {"b", {kWindow + 70}, 1, 5, kWindow + 70, DType::u8},
                                             {"none", {0}, 1, 3, 0, DType::u8},
                                             {"c", {kWindow / 4 + 12300}, 0, 45, kWindow / 4 + 12300},
                                             {"d", {1001}, 2, 0, 1001, DType::bf16}};
};

TEST_F(ReadingState, GivesEveryByteOnceAndHoldsTwoWindows) {
  device::CpuDevice host(1);
  for (device::Device* device : {static_cast<device::Device*>(&late_), static_cast<device::Device*>(&host)}) {
    std::vector<std::byte> out;
    read_state(tensors_, arrays_, *device,
               [&](std::span<const std::byte> bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); });
    EXPECT_TRUE(out == expected(tensors_));
  }
  EXPECT_EQ(late_.window_bytes, 2 * kWindow);
  EXPECT_EQ(late_.most_under_way, 2);
  EXPECT_EQ(late_.under_way, 0);
  EXPECT_EQ(late_.held_bytes, 0);
  EXPECT_EQ(late_.most_copied_out, 0);
}

TEST_F(ReadingState, LittleTakesOneWindowOfItsSize) {
  const std::span<const StateTensor> little(tensors_.data(), 1);
  std::size_t given = 0;
  read_state(little, arrays_, late_, [&](std::span<const std::byte> bytes) { given += bytes.size(); });
  EXPECT_EQ(given, 42u);
  EXPECT_EQ(late_.window_bytes, 42);
  read_state({}, arrays_, late_, [](std::span<const std::byte>) { ADD_FAILURE() << "there is nothing"; });
}

TEST_F(ReadingState, WhatEndsItEarlyLeavesNothingUnderWay) {
  EXPECT_THROW(read_state(tensors_, arrays_, late_, [](std::span<const std::byte>) { throw 7; }), int);
  EXPECT_EQ(late_.under_way, 0);
  EXPECT_EQ(late_.held_bytes, 0);
}

TEST_F(ReadingState, AFileOfSomeOfTheRowsHoldsThoseAlone) {
  TempFolder temp;
  const std::span<const StateTensor> some(tensors_.data() + 3, 2);
  const auto read = [&](std::span<const StateTensor> tensors, const TakeBytes& take) {
    read_state(tensors, arrays_, late_, take);
  };
  write_state(some, read, real_files(), temp / "some.safetensors");
  const io::SafetensorsReader file(temp / "some.safetensors");
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.at("c").dtype, DType::f32);
  EXPECT_EQ(file.at("d").dtype, DType::bf16);
  std::vector<std::byte> out;
  for (const io::StoredTensor& t : file.tensors()) out.insert(out.end(), t.bytes.begin(), t.bytes.end());
  EXPECT_TRUE(out == expected(some));
}

void fill(Engine& engine, int byte) {
  for (const Tensor& array : engine.state()) std::fill_n(array.as<std::uint8_t>(), array.bytes(), byte);
}

struct SnapshotPlace {
  bool on_device, on_host;
  Snapshot::Where where;
};

class SnapshotIn : public ::testing::TestWithParam<SnapshotPlace> {};

TEST_P(SnapshotIn, IsTheStateAsItWasThoughUpdatesFollow) {
  LateDevice device(2);
  Engine engine(tiny_model("llama", true), {.batch = {1, 4, 1}}, device);
  device.has_room = GetParam().on_device;
  device.host_has_room = GetParam().on_host;
  Snapshot snapshot(engine);
  ASSERT_EQ(snapshot.where(), GetParam().where);
  for (const int byte : {1, 2}) {  // the second time it takes the place of the first
    fill(engine, byte);
    snapshot.take();
    snapshot.hold_update();
    if (snapshot.where() != Snapshot::Where::nowhere) fill(engine, 9);  // the update
    const std::vector<std::byte> read =
        all_bytes(engine, [&](const auto& tensors, const TakeBytes& take) { snapshot.read(tensors, take); });
    const std::vector<std::byte> live = all_bytes(
        engine, [&](const auto& tensors, const TakeBytes& take) { read_state(tensors, engine.state(), device, take); });
    EXPECT_EQ(read.size(), live.size());
    EXPECT_TRUE(std::ranges::all_of(read, [&](std::byte b) { return b == static_cast<std::byte>(byte); }));
  }
}

INSTANTIATE_TEST_SUITE_P(Places, SnapshotIn,
                         ::testing::Values(SnapshotPlace{true, true, Snapshot::Where::device},
                                           SnapshotPlace{false, true, Snapshot::Where::host},
                                           SnapshotPlace{false, false, Snapshot::Where::nowhere}));

// The copy is under way until somebody waits for it: an update that did not would be seen in it.
TEST(Snapshot, OfACardInTheHostsMemoryIsCopiedBesideTheWork) {
  LateDevice device(2);
  Engine engine(tiny_model("llama", true), {.batch = {1, 4, 1}}, device);
  device.has_room = false;
  Snapshot snapshot(engine);
  fill(engine, 1);
  snapshot.take();
  fill(engine, 9);
  const std::vector<std::byte> read =
      all_bytes(engine, [&](const auto& tensors, const TakeBytes& take) { snapshot.read(tensors, take); });
  EXPECT_TRUE(std::ranges::all_of(read, [](std::byte b) { return b == std::byte{9}; }));
}

TEST(Snapshot, IsOneCopyInMemoryThatIsTheHosts) {
  device::CpuDevice device(2);
  Engine engine(tiny_model("llama", true), {.batch = {1, 4, 1}}, device);
  const std::int64_t before = device.allocated_bytes();
  Snapshot snapshot(engine);
  EXPECT_EQ(snapshot.where(), Snapshot::Where::host);
  EXPECT_EQ(snapshot.bytes(), snapshot_bytes(engine.lowered().state));
  EXPECT_EQ(device.allocated_bytes(), before + snapshot.bytes());
  EXPECT_GE(snapshot.bytes(), state_bytes(engine.lowered().state));
}

}  // namespace
}  // namespace redline::model
