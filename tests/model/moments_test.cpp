// optim.moments in a whole model: which rows there are, that training goes on as with fp32, and that checkpoints of one
// kind become another.
#include "optim/moments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "io/safetensors.h"
#include "model/tiny.h"
#include "model/weights.h"
#include "optim/adamw.h"
#include "testing/check_plan.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::model {
namespace {

using namespace redline::testing;

config::Model moments_model(const char* family = "qwen3") {
  config::Model model = tiny_model(family);
  model.vocab = 50;  // the embedding ends within a block
  return model;
}

LoweringOptions moments_options(const std::string& moments) {
  return {.batch = kShortShape, .accumulate = false, .optim = {.moments = moments}, .seed = 5};
}

std::vector<const optim::StateArray*> rows_of(const LoweredModel& m, std::string_view name) {
  std::vector<const optim::StateArray*> rows;
  for (const optim::StateArray& a : m.state)
    if (a.name == name) rows.push_back(&a);
  return rows;
}

class MomentsOfFamily : public ::testing::TestWithParam<const char*> {
 protected:
  config::Model model_ = moments_model(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Families, MomentsOfFamily, ::testing::Values("qwen3", "olmoe"),
                         [](const auto& of) { return std::string(of.param); });

// Those of experts are such matrices, routers are none.
TEST_P(MomentsOfFamily, OfMatricesInLayersAloneAreInEightBits) {
  const LoweredModel m = lower(model_, moments_options("8bit"));
  EXPECT_EQ(program::check_plan(m.set), std::vector<std::string>{});
  std::int64_t small = 0, covered = 0;
  for (std::size_t i = 0; i < m.table.size(); ++i) {
    const ParameterSpec& p = m.table[i];
    EXPECT_EQ(p.by_matrix, p.kind == ParameterKind::linear && !p.name.ends_with("/router")) << p.name;
    for (const std::string_view name : {optim::kFirstMoments, optim::kSecondMoments})
      for (const optim::StateArray* row : rows_of(m, name)) {
        const std::int64_t offset = m.layout.offsets[i];
        if (offset < row->range.begin || offset >= row->range.end) continue;
        EXPECT_EQ(row->dtype, p.by_matrix ? DType::u8 : DType::f32) << p.name;
        ++covered;
      }
    small += p.by_matrix ? p.shape.elements() : 0;
  }
  EXPECT_EQ(covered, 2 * std::ssize(m.table));
  EXPECT_GT(small, 0);
  const optim::StateArray& codes = *rows_of(m, optim::kFirstMoments).back();
  EXPECT_NE(codes.range.begin % kCutBlock, 0) << "the case that is to be tested";
  const auto moments = [](const LoweredModel& lowered) {
    return lowered.set.memory.device.by_role[static_cast<int>(program::Role::moment)];
  };
  const std::int64_t fp32 = moments(lower(model_, moments_options("fp32"))),
                     bf16 = moments(lower(model_, moments_options("bf16")));
  EXPECT_NEAR(static_cast<double>(bf16), 0.5 * static_cast<double>(fp32), 512);
  EXPECT_NEAR(static_cast<double>(moments(m)),
              static_cast<double>(fp32 - 8 * codes.range.elements() + 2 * codes.range.elements() +
                                  8 * rows_of(m, optim::kFirstScales).front()->elements()),
              8 * 256);
}

// What the roofline counts for each parameter: it moves twice where it is updated, as moments and scales do.
TEST(Moments, NodesCostTheirBytes) {
  for (const auto& [moments, bytes] : {std::pair{"fp32", 30.0}, {"bf16", 22.0}, {"8bit", 18.0 + 16.0 / 256}}) {
    LoweringOptions o = moments_options(moments);
    o.compute = DType::bf16;
    const LoweredModel m = lower(moments_model(), o);
    double largest = 0, of = 0;
    for (const program::Node& node : m.set.find(kUpdate).nodes)
      if (const auto* op = std::get_if<optim::AdamW<program::ValueId>>(&node.op)) {
        const auto n = static_cast<double>(m.set.at(op->parameters).shape.elements());
        if (n > of) largest = node.cost.bytes / n, of = n;
      }
    EXPECT_NEAR(largest, bytes, 0.05) << moments;
  }
}

double train(Engine& engine, int steps) {
  engine.initialise(3);
  double loss = 0;
  for (int step = 0; step < steps; ++step) {
    const std::uint64_t key = static_cast<std::uint64_t>(step) % 4;
    const data::Batch batch = batch_of(kShortShape, {random_document(key, 15, 50), random_document(key + 50, 14, 50)});
    const double of_step = step_on(engine, batch, step, 3e-3);
    if (step >= steps - 4) loss += of_step / 4;
  }
  return loss;
}

TEST_P(MomentsOfFamily, TrainAsFp32Does) {
  device::CpuDevice device(1);
  std::map<std::string, double> losses;
  for (const char* moments : {"fp32", "bf16", "8bit"}) {
    Engine engine(model_, moments_options(moments), device);
    losses[moments] = train(engine, 80);
  }
  Engine start(model_, moments_options("fp32"), device);
  EXPECT_LT(losses["fp32"], 0.6 * train(start, 4)) << "nothing was learned";
  // Other updates send some tokens to other experts.
  const double allowed = (model_.experts > 0 ? 0.12 : 0.03) * losses["fp32"];
  EXPECT_NEAR(losses["bf16"], losses["fp32"], allowed);
  EXPECT_NEAR(losses["8bit"], losses["fp32"], std::max(allowed, 0.06 * losses["fp32"]));
}

// All moments of a kind as floats, in the order of the flat layout.
std::vector<float> moments_of(Engine& engine, bool first) {
  std::vector<float> all(static_cast<std::size_t>(engine.layout().total));
  const LoweredModel& m = engine.lowered();
  const std::size_t scales_row = m.row(first ? optim::kFirstScales : optim::kSecondScales);
  const Tensor scales = scales_row < m.state.size() ? engine.executor().tensor(m.state_values[scales_row]) : Tensor{};
  for (std::size_t i = 0; i < m.state.size(); ++i) {
    const optim::StateArray& row = m.state[i];
    if (row.name != (first ? optim::kFirstMoments : optim::kSecondMoments)) continue;
    const Tensor t = engine.executor().tensor(m.state_values[i]);
    for (std::int64_t k = 0; k < t.elements(); ++k) {
      float& out = all[static_cast<std::size_t>(row.range.begin + k)];
      if (row.dtype == DType::f32) out = t.f32()[k];
      if (row.dtype == DType::bf16) out = f32_from_bf16(t.as<std::uint16_t>()[k]);
      if (row.dtype == DType::u8)
        out = (first ? optim::kSignedMap : optim::kUnsignedMap).values[t.as<std::uint8_t>()[k]] *
              scales.f32()[(row.range.begin + k) / kCutBlock - m.state[scales_row].range.begin / kCutBlock];
    }
  }
  return all;
}

void save(Engine& engine, const Path& path) {
  const std::vector<Tensor> arrays = engine.state();
  write_state(
      state_tensors(engine.lowered().state, engine.layout(), optim::kOptimizerFile),
      [&](std::span<const StateTensor> tensors, const TakeBytes& take) {
        read_state(tensors, arrays, engine.device(), take);
      },
      real_files(), path);
}
void load(Engine& engine, const Path& path) {
  const io::WeightFiles::File file{std::make_unique<io::SafetensorsReader>(path)};
  const Engine::FileToLoad all[] = {state_to_load(engine, file, optim::kOptimizerFile)};
  engine.load(all);
  convert_moments(engine, *file.reader);
}

// And where some of them lie in the host's memory, whose files are the same.
TEST(Moments, OfOneKindBecomeAnother) {
  TempFolder temp;
  device::CpuDevice device(1);
  const Path path = temp / optim::kOptimizerFile;
  for (const std::string from : {"fp32", "bf16", "8bit"}) {
    Engine before(moments_model(), moments_options(from), device);
    train(before, 5);
    save(before, path);
    const std::string file = real_files().read(path);
    for (const auto& [to, layers] :
         {std::pair<std::string, int>{"fp32", 0}, {"bf16", 0}, {"8bit", 0}, {"fp32", 1}, {"bf16", 1}, {"8bit", 1}}) {
      LoweringOptions options = moments_options(to);
      options.placement = {.moments = layers > 0, .moment_layers = layers};
      Engine after(moments_model(), options, device);
      EXPECT_EQ(!after.lowered().cuts.empty(), layers > 0);
      after.initialise(1);
      load(after, path);
      for (const bool first : {true, false}) {
        const std::vector<float> want = moments_of(before, first), got = moments_of(after, first);
        const float most = std::ranges::max(want);
        ASSERT_GT(most, 0.0f);
        for (std::size_t i = 0; i < want.size(); ++i) {
          const float within = to == from || to == "fp32" ? 0.0f
                               : to == "bf16"             ? 0x1p-8f * std::abs(want[i])
                                                          : 0.008f * most;
          ASSERT_NEAR(got[i], want[i], within) << from << " to " << to << " " << i;
          ASSERT_TRUE(first || (got[i] > 0) == (want[i] > 0)) << i;
        }
      }
      if (to != from) continue;
      save(after, path);
      EXPECT_TRUE(real_files().read(path) == file) << from << " " << layers;
    }
  }
}

TEST(Moments, CodesWithoutScalesAreRefused) {
  TempFolder temp;
  device::CpuDevice device(1);
  Engine engine(moments_model(), moments_options("8bit"), device);
  train(engine, 1);
  const std::vector<Tensor> arrays = engine.state();
  std::vector<StateTensor> tensors = state_tensors(engine.lowered().state, engine.layout(), optim::kOptimizerFile);
  std::erase_if(tensors, [](const StateTensor& t) { return t.name == "exp_avg_sq_scales"; });
  const Path path = temp / optim::kOptimizerFile;
  write_state(
      tensors,
      [&](std::span<const StateTensor> some, const TakeBytes& take) { read_state(some, arrays, device, take); },
      real_files(), path);
  for (const char* moments : {"8bit", "fp32"}) {
    Engine other(moments_model(), moments_options(moments), device);
    EXPECT_TRUE(says(error_of([&] { load(other, path); }), {"exp_avg_sq_scales"})) << moments;
  }
}

// Every element is written by one rank, whoever shares the moments out.
TEST(Moments, RanksWriteEveryCodeAndScaleOnce) {
  for (const dist::Mode mode : {dist::Mode::ddp, dist::Mode::zero1, dist::Mode::fsdp})
    for (const auto& [ranks, shards] : {std::pair{1, 0}, std::pair{2, 0}, std::pair{3, 0}, std::pair{5, 0},
                                        std::pair{4, 2}, std::pair{6, 2}, std::pair{6, 3}}) {
      std::map<std::string, std::vector<int>> written;
      for (int rank = 0; rank < ranks; ++rank) {
        LoweringOptions o = moments_options("8bit");
        o.sharing = {.rank = rank, .ranks = ranks, .mode = mode, .shards = shards};
        const LoweredModel m = lower(moments_model(), o);
        for (const StateTensor& t : tensors_to_write(m, optim::kOptimizerFile, rank)) {
          std::int64_t n = 1;
          for (const std::int64_t extent : t.shape) n *= extent;
          std::vector<int>& times = written[t.name];
          times.resize(static_cast<std::size_t>(n));
          EXPECT_LE(t.first + t.elements, m.state[t.row].elements()) << t.name;
          for (std::int64_t i = 0; i < t.elements; ++i) ++times.at(static_cast<std::size_t>(t.begin + i));
        }
      }
      for (const auto& [name, times] : written)
        EXPECT_EQ(times, std::vector<int>(times.size(), 1)) << name << ", " << ranks << " ranks";
      EXPECT_TRUE(written.contains("exp_avg_scales"));
      EXPECT_TRUE(written.contains("exp_avg_sq.model.layers.1.mlp.down_proj.weight"));
    }
}

}  // namespace
}  // namespace redline::model
