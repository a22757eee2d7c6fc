// What a save writes is what a load finds, bit for bit, whatever rows the optimizer has and however many ranks write
// and load it. A save holds two windows of the state, and damage is found by the rank that it belongs to.
#include "train/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/hash.h"
#include "base/shards.h"
#include "base/step_state.h"
#include "io/checkpoint_folder.h"
#include "io/safetensors.h"
#include "model/hand_made_optimizer.h"
#include "model/state_files.h"
#include "model/tiny.h"
#include "testing/failing_files.h"
#include "testing/memory.h"
#include "testing/ranks_here.h"
#include "testing/temp_folder.h"
#include "testing/transfer_windows.h"
#include "train/tiny_run.h"

namespace redline::train {
namespace {

using model::Engine;
using testing::RanksHere;

constexpr std::int64_t kWindow = model::HostWindows::kBytes;

model::LoweringOptions options(const model::Optimizer& optimizer = model::kAdamW, const char* moments = "fp32") {
  model::LoweringOptions o;
  o.batch = {1, 4, 1};
  o.optimizer = &optimizer;
  o.optim.moments = moments;
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
    model::read_state(model::state_tensors(engine.lowered().state, engine.layout(), file), engine,
                      [&](std::span<const std::byte> bytes) {
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
    table[0].name = "bytes";
    table[0].kind = optim::StateKind::usual;  // no moments, which would be converted
    table[0].dtype = DType::u8;
    return table;
  };
  const model::Optimizer small = {kBytes, [](program::Builder&, const model::LoweredModel&, const config::Optim&) {}};
  device::CpuDevice device;
  Engine engine(model, options(), device), other(model, options(small), device);
  save_checkpoint(real_files(), temp.path(), engine, config_of(model), at_step(7));
  const std::string error = error_of([&] { load_tensors(temp.path() / io::checkpoint_name(7), other); });
  EXPECT_TRUE(says(error, {"exp_avg.model.embed_tokens.weight", "type"}));
}

TEST(Checkpoint, ASaveHoldsTwoWindowsWhateverTheModelsSize) {
  testing::TempFolder temp;
  testing::LateDevice device(2);
  const config::Model model = wide_model();
  Engine engine(model, options(), device);
  engine.initialise(3);
  const std::int64_t before = testing::status_bytes("VmRSS:");
  [[maybe_unused]] const bool watched = testing::reset_peak() && before > 0;
  EXPECT_TRUE(engine.parameters_finite());
  save_checkpoint(real_files(), temp.path(), engine, config_of(model), at_step(1));
  const std::int64_t most = testing::status_bytes("VmHWM:") - before;
  const std::int64_t of_engine = engine.programs().memory.host.allocated();
  EXPECT_EQ(device.most_held_bytes, of_engine + 2 * kWindow);
  EXPECT_EQ(device.most_under_way, 2);
  EXPECT_EQ(device.under_way, 0);
  EXPECT_EQ(device.held_bytes, of_engine);
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
  const auto kept = [](std::int64_t every, std::int64_t keep, std::int64_t keep_every, std::int64_t steps,
                       double minutes = 0) {
    return checkpoints_kept({.every = every, .minutes = minutes, .keep = keep, .keep_every = keep_every}, steps);
  };
  EXPECT_EQ(kept(0, 2, 0, 100), 1);
  EXPECT_EQ(kept(10, 2, 0, 100), 2);
  EXPECT_EQ(kept(10, 99, 0, 95), 10);
  EXPECT_EQ(kept(10, 2, 50, 100), 3);  // 50, 90, 100
  EXPECT_EQ(kept(10, 3, 15, 95), 5);   // 30, 60, 80, 90, 95
  EXPECT_EQ(kept(10, 1, 10, 100), 10);
  EXPECT_EQ(kept(0, 3, 0, 100, 15), 3) << "by time there may be as many as are kept";
  EXPECT_EQ(kept(0, 3, 0, 1, 15), 1);
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
  EXPECT_TRUE(says(checkpoints_in_words(3 << 29, 2), {"1.50 GiB", "the 2", "3.00 GiB"}));
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
  const std::int64_t of_engine = engine.programs().memory.host.allocated();
  EXPECT_EQ(device.most_held_bytes, of_engine + 2 * kWindow);
  EXPECT_EQ(device.under_way, 0);
  EXPECT_EQ(device.held_bytes, of_engine);
}

// What ranks share out, of what a checkpoint holds: nothing, all but the parameters, everything.
enum class Sharing { none, moments, everything };

struct Case {
  config::Model model = testing::tiny_model("qwen3");
  const model::Optimizer* optimizer = &model::kAdamW;
  Sharing sharing = Sharing::everything;
  const char* moments = "fp32";

  // The engine of one rank. Its arrays have room for everything; the part that is the rank's stands at their beginning.
  std::unique_ptr<Engine> engine(device::Device& device, int rank, int ranks) const {
    model::LoweredModel m = lower(model, options(*optimizer, moments));
    for (optim::StateArray& a : m.state) {
      const bool shared =
          sharing == Sharing::everything || (sharing == Sharing::moments && a.name != optim::kParameters);
      if (!shared || a.file.empty() || a.range.elements() == 0) continue;
      a.shared = a.range;
      const Range part = owned_part(Shards{m.layout.total, ranks}, rank, a.range.begin, a.range.end);
      a.range = {part.begin, part.end};
    }
    m.own = Shards{m.layout.total, ranks}.part(rank);
    model::LoweringOptions o = options(*optimizer, moments);
    o.sharing = {.rank = rank, .ranks = ranks};
    return std::make_unique<Engine>(model, o, std::move(m), device);
  }
};

// The state that the tests save: byte i of a tensor, which makes finite floats.
std::uint8_t byte_of(std::uint64_t tensor, std::int64_t i) {
  const std::uint64_t mixed = (static_cast<std::uint64_t>(i) + tensor) * 0x9E3779B97F4A7C15u;
  return static_cast<std::uint8_t>((mixed >> 56) & (i % 4 == 3 ? 0xbf : 0xff));
}

// Goes over the bytes of a rank's part of the state: visit(byte, what it is in the state that is saved).
template <class Visit>
void each_byte(Engine& engine, const Visit& visit) {
  const optim::StateTable& table = engine.lowered().state;
  const std::vector<Tensor> arrays = engine.state();
  for (const std::string& file : model::state_files(table))
    for (const model::StateTensor& t : model::state_tensors(table, engine.layout(), file)) {
      const auto element = static_cast<std::int64_t>(size_of(t.dtype));
      std::uint8_t* const bytes = arrays[t.row].as<std::uint8_t>() + t.first * element;
      const std::uint64_t tensor = hash64(t.name);
      for (std::int64_t i = 0; i < t.elements * element; ++i) visit(bytes[i], byte_of(tensor, t.begin * element + i));
    }
}
void fill(Engine& engine) {
  each_byte(engine, [](std::uint8_t& byte, std::uint8_t saved) { byte = saved; });
}
void forget(Engine& engine) {
  each_byte(engine, [](std::uint8_t& byte, std::uint8_t) { byte = 0; });
}
bool has_all(Engine& engine) {
  bool all = true;
  each_byte(engine, [&](std::uint8_t& byte, std::uint8_t saved) { all = all && byte == saved; });
  return all;
}

// Returns what each rank threw, as a sentence.
std::vector<std::string> save(const Case& c, int ranks, const Path& parent, std::int64_t step = 7,
                              FileSystem& files = real_files(), const OpenStretches& open = open_stretches) {
  return RanksHere(ranks).run([&](io::Communicator& communicator) {
    device::CpuDevice device(1);
    const std::unique_ptr<Engine> engine = c.engine(device, communicator.rank(), ranks);
    fill(*engine);
    const std::vector<Tensor> arrays = engine->state();
    const auto read = [&](std::span<const model::StateTensor> tensors, const model::TakeBytes& take) {
      model::read_state(tensors, arrays, device, take);
    };
    const CheckpointContent content = checkpoint_content(*engine, config_of(c.model), at_step(step));
    write_checkpoint(files, parent, content, read, communicator, open);
  });
}

// What each rank found wrong, one after the other. Where none found anything, each has its part of the state.
std::vector<std::string> load(const Case& c, int ranks, const Path& folder) {
  std::vector<std::string> errors;
  bool all = true;
  device::CpuDevice device(1);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::unique_ptr<Engine> engine = c.engine(device, rank, ranks);
    forget(*engine);
    errors.push_back(error_of([&] { load_tensors(folder, *engine); }));
    all = all && has_all(*engine);
  }
  EXPECT_EQ(all, errors == std::vector<std::string>(errors.size())) << ranks << " ranks";
  return errors;
}

TEST(SharedCheckpoint, AnyNumberOfRanksWriteAndLoadTheFilesOfOne) {
  testing::TempFolder temp;
  for (const auto& [optimizer, moments] : {std::pair{&model::kAdamW, "fp32"},
                                           {&model::kAdamW, "8bit"},
                                           {&model::kMuon, "fp32"},
                                           {&testing::kHandMade, "fp32"}}) {
    std::map<std::string, std::string> expected;
    for (const Sharing sharing : {Sharing::none, Sharing::moments, Sharing::everything}) {
      const Case c{.optimizer = optimizer, .sharing = sharing, .moments = moments};
      for (const int writers : {1, 2, 5}) {
        const Path parent = temp.path() / fmt::format("{}", writers);
        real_files().remove_all(parent);
        EXPECT_EQ(save(c, writers, parent), std::vector<std::string>(static_cast<std::size_t>(writers)));
        const Path folder = parent / io::checkpoint_name(7);
        EXPECT_EQ(io::checkpoint_problem(real_files(), folder), "");
        for (const std::string& name : real_files().list(folder)) {
          if (name == io::kManifest) continue;
          const std::string text = real_files().read(folder / name);
          EXPECT_TRUE(expected.emplace(name, text).first->second == text) << name << " of " << writers << " ranks";
        }
        EXPECT_GT(io::checkpoint_hashes(real_files(), folder).at(io::kWeightsFile).size(), writers > 1 ? 1u : 0u);
        for (const int readers : {1, 3})
          EXPECT_EQ(load(c, readers, folder), std::vector<std::string>(static_cast<std::size_t>(readers)))
              << writers << " ranks wrote it";
      }
    }
    // Those of a run that knows of no ranks.
    device::CpuDevice device(1);
    const Case alone{.optimizer = optimizer, .sharing = Sharing::none, .moments = moments};
    const std::unique_ptr<Engine> engine = alone.engine(device, 0, 1);
    fill(*engine);
    save_checkpoint(real_files(), temp / "alone", *engine, config_of(alone.model), at_step(7));
    for (const auto& [name, text] : expected)
      EXPECT_TRUE(real_files().read(temp / "alone" / io::checkpoint_name(7) / name) == text) << name;
    for (const Sharing sharing : {Sharing::none, Sharing::everything})
      EXPECT_EQ(load({.optimizer = optimizer, .sharing = sharing, .moments = moments}, 3,
                     temp / "alone" / io::checkpoint_name(7)),
                std::vector<std::string>(3));
    real_files().remove_all(temp / "alone");
  }
}

TEST(SharedCheckpoint, AFlippedByteIsFoundByTheRankThatItBelongsTo) {
  testing::TempFolder temp;
  const Case c;
  ASSERT_EQ(save(c, 3, temp.path()), std::vector<std::string>(3));
  const Path folder = temp.path() / io::checkpoint_name(7);
  const model::LoweredModel m = lower(c.model, options(*c.optimizer));
  const Shards shards{m.layout.total, 3};
  for (const std::string name : {"model.safetensors", "optimizer.safetensors"}) {
    const std::string whole = real_files().read(folder / name);
    std::set<int> owners;
    const std::vector<model::StateTensor> tensors = model::state_tensors(m.state, m.layout, name);
    for (std::size_t i = 0; i < tensors.size(); i += 5) {
      const model::StateTensor& t = tensors[i];
      const std::int64_t element = t.elements / 2;
      int owner = 0;
      while (t.first + element >= shards.end(owner)) ++owner;
      owners.insert(owner);
      std::size_t at = 0;
      {
        const io::SafetensorsReader reader(folder / name);
        at = static_cast<std::size_t>(reader.at(t.name).bytes.data() - reader.file().bytes().data() + 4 * element);
      }
      const auto put = [&](const std::string& text) {
        const auto writer = real_files().create(folder / name);
        writer->write(text);
        writer->close();
      };
      std::string damaged = whole;
      damaged[at] ^= 1;
      put(damaged);
      const std::vector<std::string> errors = load(c, 3, folder);
      for (int rank = 0; rank < 3; ++rank) {
        const std::string& error = errors[static_cast<std::size_t>(rank)];
        EXPECT_EQ(!error.empty(), rank == owner) << t.name << ": " << error;
        EXPECT_TRUE(error.empty() || error.find("has changed: the hash of its bytes") != error.npos) << error;
      }
      EXPECT_EQ(std::ranges::count(load(c, 2, folder), ""), 1) << "and by one of any other number";
      EXPECT_EQ(std::ranges::count(load(c, 1, folder), ""), 0);
      put(whole);
    }
    EXPECT_EQ(owners.size(), 3u) << "the test looks at every rank";
  }
}

TEST(SharedCheckpoint, ADiskThatIsFullForOneRankIsToldByAll) {
  testing::TempFolder temp;
  const Case c;
  ASSERT_EQ(save(c, 3, temp.path(), 1), std::vector<std::string>(3));
  testing::FailingFiles files;
  const OpenStretches open = [&](const Path& path) { return files.open_stretches(path); };
  save(c, 3, temp.path() / "counted", 2, files, open);
  const std::int64_t changes = files.changes();
  for (std::int64_t nth = 5; nth < changes; nth += changes / 9) {
    files.fail_at(nth, testing::Failure::full_disk);
    const std::vector<std::string> errors = save(c, 3, temp.path(), 2, files, open);
    EXPECT_TRUE(files.failed());
    if (errors[0].empty()) continue;  // what failed was the removal of something old
    for (const std::string& error : errors) EXPECT_TRUE(says(error, {"a checkpoint takes"}));
    EXPECT_EQ(io::checkpoint_problem(real_files(), temp.path() / io::checkpoint_name(1)), "");
    EXPECT_EQ(load(c, 2, temp.path() / io::checkpoint_name(1)), std::vector<std::string>(2));
  }
}

}  // namespace
}  // namespace redline::train
