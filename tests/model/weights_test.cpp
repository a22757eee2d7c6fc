// Files that are loaded onto a device with memory of its own: every value arrives, though windows are filled while
// others are under way; what ends a load early leaves nothing under way.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <ranges>

#include "base/error.h"
#include "base/hash.h"
#include "model/state_files.h"
#include "model/tiny.h"
#include "optim/adamw.h"
#include "testing/says.h"
#include "testing/temp_folder.h"
#include "testing/transfer_windows.h"

namespace redline::model {
namespace {

using namespace redline::testing;

constexpr std::int64_t kWindow = HostWindows::kBytes;  // bytes, of each of two

// A little more than three windows of embedding, and small tensors.
config::Model wide_model() {
  config::Model m = tiny_model("llama", true);
  m.hidden = 64;
  m.vocab = 3 * kWindow / static_cast<std::int64_t>(sizeof(float)) / m.hidden + 1001;
  return m;
}

LoweringOptions load_options(bool training = false) { return {.batch = {1, 4, 1}, .training = training}; }

class Loading : public ::testing::Test {
 protected:
  // One file with values for all of the model's parameters, the last one first, their types in turn; and, where that is
  // asked for, the embedding once more as the head.
  void write(const config::Model& model, const std::vector<DType>& types, bool repeats_embedding = false) {
    std::vector<std::vector<std::uint16_t>> values;
    std::vector<io::TensorToWrite> tensors;
    const LoweredModel lowered = lower(model, load_options());
    for (const StoredParameter& p : std::views::reverse(lowered.layout.stored)) {
      const DType dtype = types[values.size() % types.size()];
      std::vector<std::uint16_t>& v = values.emplace_back(static_cast<std::size_t>(p.elements) * size_of(dtype) / 2);
      // Numbers of f32, whether they are halves or halves and quarters of wider ones.
      for (std::size_t i = 0; i < v.size(); ++i)
        v[i] = static_cast<std::uint16_t>((i * 2654435761u >> 9 & 0x1fff) | (dtype == DType::f64 ? 0x3f00 : 0x2000));
      tensors.push_back({p.name, dtype, p.shape, std::as_bytes(std::span(v))});
      elements_ += p.elements;
    }
    if (repeats_embedding) {
      tensors.push_back(*std::ranges::find(tensors, "model.embed_tokens.weight", &io::TensorToWrite::name));
      tensors.back().name = "lm_head.weight";
    }
    hash_ = hex64(io::write_safetensors(real_files(), temp_ / io::kWeightsFile, tensors, {}));
  }
  io::WeightFiles weights() const { return {real_files(), temp_.path()}; }

  // What a device that shares the host's memory has loaded.
  void expect_loaded(Engine& engine, std::initializer_list<std::string_view> arrays = {optim::kParameters}) const {
    device::CpuDevice host(2);
    Engine straight(engine.model(), load_options(), host);
    load_weights(straight, weights());
    const std::vector<float> expected = array_of(straight, optim::kParameters);
    for (const std::string_view array : arrays) {
      const std::vector<float> loaded = array_of(engine, array);
      ASSERT_EQ(loaded.size(), expected.size());
      EXPECT_EQ(std::memcmp(loaded.data(), expected.data(), expected.size() * sizeof(float)), 0) << array;
    }
  }

  // Bytes of all windows that were made, beside the engine's own memory of the host.
  std::int64_t made(const Engine& engine) const {
    return device_.host_bytes - engine.programs().memory.host.allocated();
  }

  TempFolder temp_;
  LateDevice device_{2};
  std::string hash_;
  std::int64_t elements_ = 0;
};

class LoadingTypes : public Loading, public ::testing::WithParamInterface<DType> {};

TEST_P(LoadingTypes, FillsAWindowWhileTheOtherIsUnderWay) {
  const config::Model model = wide_model();
  write(model, {GetParam()});
  Engine engine(model, load_options(), device_);
  load_weights(engine, weights());
  EXPECT_GE(device_.windows_sent, 4);
  EXPECT_EQ(device_.most_under_way, 2);
  EXPECT_EQ(device_.under_way, 0);
  EXPECT_EQ(made(engine), 2 * kWindow);
  expect_loaded(engine);
}
INSTANTIATE_TEST_SUITE_P(Types, LoadingTypes, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& type) { return std::string(name_of(type.param)); });

// A window has room for the values of its file's smallest type, wherever that stands.
TEST_F(Loading, AFileMayMixTypes) {
  const config::Model model = wide_model();
  Engine engine(model, load_options(), device_);
  std::vector<DType> types;
  for (const StoredParameter& p : std::views::reverse(engine.layout().stored))
    types.push_back(p.name == "model.embed_tokens.weight"
                        ? DType::bf16
                        : std::array{DType::f64, DType::f32, DType::f16}[types.size() % 3]);
  ASSERT_NE(types.front(), DType::bf16);
  write(model, types);
  load_weights(engine, weights());
  EXPECT_EQ(made(engine), 2 * kWindow);
  EXPECT_EQ(device_.under_way, 0);
  expect_loaded(engine);
  const io::WeightFiles files = weights();
  const std::vector<float> loaded = array_of(engine, optim::kParameters);
  for (const StoredParameter& p : engine.layout().stored) {
    const std::vector<float> whole = files.at(p.name).to_f32();
    EXPECT_EQ(std::memcmp(loaded.data() + p.offset, whole.data(), whole.size() * sizeof(float)), 0) << p.name;
  }
}

TEST_F(Loading, ASmallModelTakesOneWindowOfItsSize) {
  const config::Model model = tiny_model("qwen3");
  write(model, {DType::bf16});
  Engine engine(model, load_options(), device_);
  load_weights(engine, weights());
  EXPECT_EQ(made(engine), elements_ * static_cast<std::int64_t>(sizeof(float)));
  EXPECT_EQ(device_.windows_sent, 1);
  expect_loaded(engine);
}

// Parameters and moments, as a checkpoint has them.
TEST_F(Loading, FilesShareTheirWindowsAndTheirProgress) {
  const config::Model model = tiny_model("llama");
  write(model, {DType::f32});
  Engine engine(model, load_options(true), device_);
  const io::WeightFiles files = weights();
  std::vector<Engine::FileToLoad> to_load = weights_to_load(engine, files);
  for (const std::string_view array : {optim::kFirstMoments, optim::kSecondMoments}) {
    to_load.push_back(to_load.front());
    for (Engine::Target& target : to_load.back().targets) target.row = engine.lowered().row(array);
  }
  const std::uint64_t read =
      static_cast<std::uint64_t>(elements_) * sizeof(float);  // of a file without hash, no header
  std::vector<std::uint64_t> heard;
  engine.load(to_load, [&](std::uint64_t done, std::uint64_t of) {
    EXPECT_EQ(of, 3 * read);
    heard.push_back(done);
  });
  EXPECT_TRUE(std::ranges::is_sorted(heard));
  EXPECT_EQ(heard.front(), 0u);
  EXPECT_EQ(heard.back(), 3 * read);
  EXPECT_GE(std::ranges::count(heard, read), 2) << "the end of a file is the beginning of the next";
  EXPECT_EQ(device_.windows_sent, 3);
  EXPECT_EQ(made(engine), 2 * elements_ * static_cast<std::int64_t>(sizeof(float)));
  expect_loaded(engine, {optim::kParameters, optim::kFirstMoments, optim::kSecondMoments});
}

TEST_F(Loading, WhatEndsItEarlyLeavesNothingUnderWay) {
  struct Enough {};  // as Ctrl-C
  const config::Model model = wide_model();
  write(model, {DType::bf16});
  Engine engine(model, load_options(), device_);
  const auto stop = [](std::uint64_t done, std::uint64_t of) {
    if (done > of / 2) throw Enough();
  };
  EXPECT_THROW(load_weights(engine, weights(), stop), Enough);
  EXPECT_GT(device_.windows_sent, 0);
  EXPECT_EQ(device_.under_way, 0);

  const io::WeightFiles files = weights();
  io::WeightFiles::File other{std::make_unique<io::SafetensorsReader>(temp_ / io::kWeightsFile),
                              {{0, files.bytes(), hash_}}};
  std::vector<Engine::FileToLoad> hashed = weights_to_load(engine, files);
  hashed.front().file = &other;
  for (std::size_t i = 0; i < hashed.front().tensors.size(); ++i)
    hashed.front().tensors[i] = &other.reader->at(hashed.front().tensors[i]->name);
  engine.load(hashed);
  expect_loaded(engine);
  char& digit = other.hashes.front().xxh3.front();
  digit = digit == '0' ? '1' : '0';
  EXPECT_TRUE(says(error_of([&] { engine.load(hashed); }), {"hash", "manifest"}));
  EXPECT_EQ(device_.under_way, 0);

  std::filesystem::resize_file(temp_ / io::kWeightsFile, files.bytes() / 2);  // while it is open
  device_.windows_sent = 0;
  EXPECT_TRUE(says(error_of([&] { engine.load(hashed); }), {"ends at byte"}));  // though its hash is not known then
  EXPECT_GT(device_.windows_sent, 0);
  EXPECT_EQ(device_.under_way, 0);
}

// Bytes of files in this process's memory; 0 where the system does not tell.
std::int64_t mapped_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssFile:")) return std::stoll(line.substr(8)) * 1024;
  return 0;
}

// All of it is compared, and none of it stays in memory, where it would stand beside the model.
TEST_F(Loading, AHeadThatRepeatsTheEmbeddingIsComparedInPieces) {
  config::Model model = tiny_model("llama", true);
  model.vocab = 100'001;
  write(model, {DType::f32}, true);
  Engine engine(model, load_options(), device_);
  const io::WeightFiles files = weights();
  const std::int64_t before = mapped_bytes();
  EXPECT_EQ(weights_to_load(engine, files).front().tensors.size(), engine.layout().stored.size());
  EXPECT_LT(mapped_bytes() - before, model.vocab * model.hidden);  // a quarter of the embedding
  const auto match = [&] { weights_to_load(engine, files); };
  std::fstream(temp_ / io::kWeightsFile).seekp(-1, std::ios::end).put('\7');
  EXPECT_TRUE(says(error_of(match), {"lm_head.weight", "model.embed_tokens.weight"}));
  std::filesystem::resize_file(temp_ / io::kWeightsFile, files.bytes() - 100'000);
  EXPECT_TRUE(says(error_of(match), {"ends at byte"}));
}

// As transformers writes experts where it does not take them apart.
TEST_F(Loading, ExpertsInOneTensorAreToldHowToBeWritten) {
  const config::Model model = tiny_model("qwen3_moe");
  Engine engine(model, load_options(), device_);
  const std::vector<float> values(4 * 6 * 2);
  const std::vector<io::TensorToWrite> tensors = {
      {"model.layers.0.mlp.experts.gate_up_proj", DType::f32, {4, 6, 2}, std::as_bytes(std::span(values))}};
  io::write_safetensors(real_files(), temp_ / io::kWeightsFile, tensors, {});
  EXPECT_TRUE(says(error_of([&] { weights_to_load(engine, weights()); }),
                   {"mlp.experts.gate_up_proj", "one tensor an expert", "save_original_format=False"}));
}

}  // namespace
}  // namespace redline::model
