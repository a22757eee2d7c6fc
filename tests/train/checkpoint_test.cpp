// What a save writes is what a load finds, bit for bit, whatever rows the optimizer has; and a save holds two windows
// of it.
#include "train/checkpoint.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "base/step_state.h"
#include "io/checkpoint_folder.h"
#include "model/hand_made_optimizer.h"
#include "model/state_files.h"
#include "model/tiny.h"
#include "testing/failing_files.h"
#include "testing/temp_folder.h"
#include "testing/transfer_windows.h"
#include "train/run_here.h"
#include "train/saved_state.h"

namespace redline::train {
namespace {

using testing::at_step;
using testing::config_of;
using testing::save_checkpoint;

using model::Engine;

constexpr std::int64_t kWindow = device::kTransferWindow;

model::LoweringOptions options(const model::Optimizer& optimizer = model::kAdamW) {
  model::LoweringOptions o;
  o.batch = {1, 4, 1};
  o.optimizer = &optimizer;
  return o;
}

// Almost two windows of embedding: no array of the state fits into one.
config::Model wide_model() {
  config::Model m = testing::tiny_model("llama", true);
  m.hidden = 64;
  m.vocab = 15 * kWindow / 8 / static_cast<std::int64_t>(sizeof(float)) / m.hidden;
  return m;
}

// Other bits for every element of the state, which make finite floats; those of a device whose memory is the host's
// behind its back.
void fill(Engine& engine, std::uint64_t seed) {
  for (const Tensor& array : engine.state())
    for (std::int64_t i = 0; i < array.bytes(); ++i)
      array.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(
          ((static_cast<std::uint64_t>(i) + seed) * 0x9E3779B97F4A7C15u >> 56) & (i % 4 == 3 ? 0xbf : 0xff));
}

std::string stored_bytes(Engine& engine) {
  std::string out;
  for (const std::string& file : model::state_files(engine.lowered().state))
    model::read_state(model::state_tensors(engine.lowered().state, engine.layout(), file), engine.state(),
                      engine.device(), [&](std::span<const std::byte> bytes) {
                        out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
                      });
  return out;
}

TEST(Checkpoint, EveryRowComesBackBitForBitOnAnyDevice) {
  testing::TempFolder temp;
  const config::Model model = testing::tiny_model("qwen3");
  for (const model::Optimizer* optimizer : {&model::kAdamW, &testing::kHandMade}) {
    std::vector<std::string> manifests;
    for (const bool late : {false, true}) {
      testing::LateDevice own;
      device::CpuDevice host;
      device::Device& device = late ? static_cast<device::Device&>(own) : host;
      Engine saved(model, options(*optimizer), device), loaded(model, options(*optimizer), device);
      fill(saved, 1);
      fill(loaded, 2);
      const Path parent = temp.path() / (late ? "late" : "host");
      save_checkpoint(real_files(), parent, saved, config_of(model), at_step(7));
      const Path folder = parent / io::checkpoint_name(7);
      EXPECT_NE(stored_bytes(saved), stored_bytes(loaded));
      load_tensors(folder, loaded);
      EXPECT_TRUE(stored_bytes(saved) == stored_bytes(loaded));
      manifests.push_back(real_files().read(folder / io::kManifest));
    }
    EXPECT_EQ(manifests[0], manifests[1]) << "the same files from any device";
  }
}

TEST(Checkpoint, AStateOfAnotherTypeIsRefusedByName) {
  testing::TempFolder temp;
  const config::Model model = testing::tiny_model("llama");
  static constexpr auto kBytes = [](const model::ParameterTable&, const model::FlatLayout& layout, const Range&,
                                    const config::Optim&) {
    optim::StateTable table = optim::adamw_state(layout.whole());
    table[0].name = "bytes";  // no moments, which would be converted
    table[0].dtype = DType::u8;
    return table;
  };
  const model::Optimizer small = {kBytes, [](program::Builder&, const model::LoweredModel&, const config::Optim&) {}};
  device::CpuDevice device;
  Engine engine(model, options(), device), other(model, options(small), device);
  save_checkpoint(real_files(), temp.path(), engine, config_of(model), at_step(7));
  const std::string error = error_of([&] { load_tensors(temp.path() / io::checkpoint_name(7), other); });
  EXPECT_NE(error.find("exp_avg.model.embed_tokens.weight has another shape or type"), std::string::npos) << error;
}

// The most memory that this process had at once since it was reset, and has now; nothing where the system does not
// tell.
std::int64_t status_bytes(std::string_view key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key)) return std::stoll(line.substr(key.size())) * 1024;
  return 0;
}
bool reset_peak() { return static_cast<bool>(std::ofstream("/proc/self/clear_refs") << "5" << std::flush); }

TEST(Checkpoint, ASaveHoldsTwoWindowsWhateverTheModelsSize) {
  testing::TempFolder temp;
  testing::LateDevice device(2);
  const config::Model model = wide_model();
  Engine engine(model, options(), device);
  engine.initialise(3);
  const std::int64_t before = status_bytes("VmRSS:");
  [[maybe_unused]] const bool watched = reset_peak() && before > 0;
  EXPECT_TRUE(engine.parameters_finite());
  save_checkpoint(real_files(), temp.path(), engine, config_of(model), at_step(1));
  const std::int64_t most = status_bytes("VmHWM:") - before;
  EXPECT_EQ(device.most_held_bytes, 2 * kWindow);
  EXPECT_EQ(device.most_under_way, 2);
  EXPECT_EQ(device.under_way, 0);
  EXPECT_EQ(device.held_bytes, 0);
  EXPECT_LE(device.most_copied_out, static_cast<std::int64_t>(sizeof(UpdateResult)));  // whether parameters are finite
  const std::int64_t state = 3 * 4 * engine.layout().total;
  ASSERT_GT(state, 5 * kWindow);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep what was freed
  if (watched) {
    EXPECT_LT(most, 2 * kWindow + (8 << 20));
  }
#endif
  RecordProperty("most_mib", static_cast<int>(most >> 20));
  RecordProperty("state_mib", static_cast<int>(state >> 20));
}

TEST(Checkpoint, AParameterThatIsNotFiniteIsFoundWhereverItIs) {
  const config::Model model = wide_model();
  testing::LateDevice device(2);
  Engine engine(model, options(), device);
  engine.initialise(3);
  float* const parameters = engine.executor().tensor(engine.lowered().at(optim::kParameters)).f32();
  for (const model::StoredParameter& p : {engine.layout().stored.front(), engine.layout().stored.back()})
    for (const std::int64_t i : {p.offset, p.offset + p.elements - 1})
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        const float kept = std::exchange(parameters[i], bad);
        EXPECT_FALSE(engine.parameters_finite()) << p.name;
        parameters[i] = kept;
      }
  EXPECT_TRUE(engine.parameters_finite());
}

TEST(Checkpoint, SizesAreKnownBeforeTheFirstSave) {
  const auto kept = [](std::int64_t every, std::int64_t keep, std::int64_t keep_every, std::int64_t steps) {
    return checkpoints_kept({.every = every, .keep = keep, .keep_every = keep_every}, steps);
  };
  EXPECT_EQ(kept(0, 2, 0, 100), 1);
  EXPECT_EQ(kept(10, 2, 0, 100), 2);
  EXPECT_EQ(kept(10, 99, 0, 95), 10);
  EXPECT_EQ(kept(10, 2, 50, 100), 3);  // 50, 90, 100
  EXPECT_EQ(kept(10, 3, 15, 95), 5);   // 30, 60, 80, 90, 95
  EXPECT_EQ(kept(10, 1, 10, 100), 10);
  testing::TempFolder temp;
  device::CpuDevice device;
  const config::Model model = testing::tiny_model("llama");
  Engine engine(model, options(), device);
  save_checkpoint(real_files(), temp.path(), engine, config_of(model), at_step(1));
  std::int64_t files = 0;
  for (const std::string& file : model::state_files(engine.lowered().state))
    files += static_cast<std::int64_t>(real_files().size(temp.path() / io::checkpoint_name(1) / file));
  const std::int64_t counted = model::state_bytes(engine.lowered().state);
  EXPECT_LE(counted, files);
  EXPECT_LT(files - counted, 16 << 10) << "headers";
  EXPECT_EQ(checkpoints_in_words(3 << 29, 2), "a checkpoint takes 1.50 GiB, the 2 that are kept 3.00 GiB");
}

TEST(Checkpoint, ADiskThatIsFullEndsASaveWithNothingUnderWay) {
  testing::TempFolder temp;
  const config::Model model = wide_model();
  testing::LateDevice device(2);
  Engine engine(model, options(), device);
  testing::FailingFiles files;
  files.fail_at(300, testing::Failure::full_disk);  // in the middle of the tensors
  EXPECT_THROW(save_checkpoint(files, temp.path(), engine, config_of(model), at_step(1)), MachineError);
  EXPECT_TRUE(files.failed());
  EXPECT_EQ(device.most_held_bytes, 2 * kWindow);
  EXPECT_EQ(device.under_way, 0);
  EXPECT_EQ(device.held_bytes, 0);
}

}  // namespace
}  // namespace redline::train
