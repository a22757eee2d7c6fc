// The rows of the state table and the tensors of files that they are, as every optimizer keeps them; and snapshots,
// which hold the state as it was though updates follow.
#include "model/state_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
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
  static constexpr std::int64_t kWindow = HostWindows::kBytes;
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
  EXPECT_EQ(late_.host_bytes, 2 * kWindow);
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
  EXPECT_EQ(late_.host_bytes, 42);
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

LoweredModel with_snapshot(LoweredModel m, std::optional<program::Memory> memory) {
  if (memory) add_snapshot(m, *memory);
  return m;
}

std::vector<std::byte> saved_bytes(Engine& engine, SavedState& saved) {
  return all_bytes(engine, [&](const auto& tensors, const TakeBytes& take) { saved.read(tensors, take); });
}

class SnapshotIn : public ::testing::TestWithParam<std::optional<program::Memory>> {};

TEST_P(SnapshotIn, IsTheStateAsItWasThoughUpdatesFollow) {
  const config::Model model = tiny_model("llama", true);
  LoweringOptions options{.batch = {1, 4, 1}};
  LateDevice late(2);
  device::CpuDevice shared(2);
  using Case = std::pair<device::Device*, bool>;
  for (const auto& [device, late_memory] : {Case(&late, false), Case(&shared, false), Case(&late, true)}) {
    options.execution.late_snapshots = late_memory;
    Engine engine(model, options, with_snapshot(lower(model, options), GetParam()), *device);
    EXPECT_EQ(program::check_plan(engine.programs()), std::vector<std::string>{});
    EXPECT_EQ(engine.has_snapshot(), GetParam().has_value());
    SavedState saved(engine);
    for (const int byte : {1, 2}) {  // the second time it takes the place of the first
      fill(engine, byte);
      saved.take();
      engine.set_step(0, 0.1, 1, 0);
      if (engine.has_snapshot()) engine.update();
      const std::vector<std::byte> read = saved_bytes(engine, saved);
      const std::vector<std::byte> live =
          all_bytes(engine, [&](const auto& tensors, const TakeBytes& take) { read_state(tensors, engine, take); });
      EXPECT_EQ(read.size(), live.size());
      EXPECT_EQ(read == live, !engine.has_snapshot());
      EXPECT_TRUE(std::ranges::all_of(read, [&](std::byte b) { return b == static_cast<std::byte>(byte); }));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Memories, SnapshotIn,
                         ::testing::Values(program::Memory::device, program::Memory::host, std::nullopt));

TEST(Snapshot, WithoutMemoryThatWasToComeTheStateIsReadItself) {
  const config::Model model = tiny_model("llama", true);
  LoweringOptions options{.batch = {1, 4, 1}};
  options.execution.late_snapshots = true;
  LateDevice late(2);
  late.most_on_host = 4096;  // enough for results, and for windows of other memory there is ordinary memory
  Engine engine(model, options, with_snapshot(lower(model, options), program::Memory::host), late);
  engine.initialise(1);
  engine.begin_snapshots();
  EXPECT_FALSE(engine.has_snapshot());
  SavedState saved(engine);
  fill(engine, 1);
  saved.take();
  const std::vector<std::byte> read = saved_bytes(engine, saved);
  EXPECT_FALSE(read.empty());
  EXPECT_TRUE(std::ranges::all_of(read, [](std::byte b) { return b == std::byte{1}; }));
}

// The copy takes longer than the first node of the update, which must not begin before it is there.
TEST(Snapshot, IsThereBeforeAnUpdateBegins) {
  config::Model model = tiny_model("llama", true);
  model.layers = 1;
  model.hidden = 128;
  model.vocab = 60'000;
  const LoweringOptions options{.batch = {1, 4, 1}};
  device::CpuDevice device(2);
  Engine engine(model, options, with_snapshot(lower(model, options), program::Memory::host), device);
  fill(engine, 1);
  SavedState saved(engine);
  saved.take();
  const Tensor copy = engine.executor().tensor(engine.lowered().snapshot[engine.lowered().row(optim::kSecondMoments)]);
  struct First final : program::NodeTimer {
    void node(const program::Node&, double, double) override {
      if (there < 0) there = std::all_of(last.begin(), last.end(), [](std::uint8_t b) { return b == 1; });
    }
    std::span<const std::uint8_t> last;
    int there = -1;
  } first;
  first.last = {copy.as<std::uint8_t>(), static_cast<std::size_t>(copy.bytes())};
  engine.set_step(0, 0.1, 1, 0);
  engine.update(&first);
  EXPECT_EQ(first.there, 1);
}

TEST(Snapshot, IsPlannedBehindTheRestWhereThereIsRoom) {
  const config::Model model = tiny_model("llama", true);
  const LoweredModel plain = lower(model, {.batch = {1, 4, 1}});
  const std::int64_t bytes = snapshot_bytes(plain, program::Memory::host).host;
  EXPECT_GE(bytes, state_bytes(plain.state));
  for (const auto memory : {program::Memory::device, program::Memory::host}) {
    const LoweredModel m = with_snapshot(plain, memory);
    for (const auto in : {program::Memory::device, program::Memory::host}) {
      EXPECT_EQ(m.set.memory.of(in).snapshot, in == memory ? bytes : 0);
      EXPECT_EQ(m.set.memory.of(in).total, plain.set.memory.of(in).total);
      EXPECT_EQ(m.set.memory.of(in).persistent, plain.set.memory.of(in).persistent);
    }
  }
  using enum program::Memory;
  using Memories = std::vector<program::Memory>;
  EXPECT_EQ(snapshot_memories(plain, {bytes, bytes}), (Memories{device, host}));
  EXPECT_EQ(snapshot_memories(plain, {bytes, 0}), (Memories{device}));
  EXPECT_EQ(snapshot_memories(plain, {bytes - 1, bytes}), (Memories{host}));
  EXPECT_EQ(snapshot_memories(plain, {bytes - 1, bytes - 1}), (Memories{}));
  EXPECT_EQ(snapshot_memories(plain, {-5, bytes}), (Memories{host}));
}

// Moments of a run that is larger than its card.
TEST(State, RowsInTheHostsMemoryAreSavedAndLoadedWhereTheyLie) {
  const config::Model model = tiny_model("llama", true);
  LoweringOptions options{.batch = {1, 4, 1}};
  options.placement.moments = true;
  const LoweredModel lowered = lower(model, options);
  const std::int64_t parameters = lowered.set.at(lowered.at(optim::kParameters)).bytes();
  EXPECT_EQ(snapshot_bytes(lowered, program::Memory::device).device, aligned(parameters));
  EXPECT_EQ(snapshot_bytes(lowered, program::Memory::device).host, 2 * aligned(parameters));
  TempFolder temp;
  const auto write = [&](Engine& engine, SavedState& saved, const std::string& file) {
    write_state(
        state_tensors(engine.lowered().state, engine.layout(), file),
        [&](const auto& tensors, const TakeBytes& take) { saved.read(tensors, take); }, real_files(), temp / file);
  };
  for (const auto memory : {std::optional<program::Memory>(), std::optional(program::Memory::device),
                            std::optional(program::Memory::host)}) {
    LateDevice late(2);
    Engine engine(model, options, with_snapshot(lowered, memory), late), other(model, options, lowered, late);
    int byte = 1;
    for (const Tensor& array : engine.state()) std::fill_n(array.as<std::uint8_t>(), array.bytes(), byte++);
    SavedState saved(engine);
    saved.take();
    for (const std::string& file : state_files(lowered.state)) write(engine, saved, file);
    EXPECT_EQ(late.most_under_way, memory == program::Memory::host ? 0 : 1) << "one window, of the parameters";
    for (const std::string& name : state_files(lowered.state)) {
      const io::WeightFiles::File file{std::make_unique<io::SafetensorsReader>(temp / name), {}};
      const Engine::FileToLoad load = state_to_load(other, file, name);
      other.load(std::span(&load, 1));
    }
    EXPECT_EQ(late.windows_sent, 1) << "the parameters' alone";
    const auto all = [](Engine& e) {
      return all_bytes(e, [&](const auto& tensors, const TakeBytes& take) { read_state(tensors, e, take); });
    };
    EXPECT_TRUE(all(engine) == all(other));
  }
}

}  // namespace
}  // namespace redline::model
