// verify holds on what Hugging Face computed, notices any tensor that differs, and refuses what is not a case. A step
// in eight bits against one that makes the same casts: other last bits are within the tolerances of bf16, although they
// change many codes; a scale that is off is not.
#include "infer/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "infer/planted_scale.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/fp8_linears.h"
#include "model/tiny.h"
#include "testing/paths.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::infer {
namespace {

using namespace redline::testing;

namespace fs = std::filesystem;

// A safetensors file in memory that can be changed and written back.
struct Tensors {
  struct Tensor {
    std::string name;
    DType dtype;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> bytes;
    float* floats() { return reinterpret_cast<float*>(bytes.data()); }
  };
  std::vector<Tensor> all;

  explicit Tensors(const fs::path& path) {
    const io::SafetensorsReader file(path);
    for (const io::StoredTensor& t : file.tensors())
      all.push_back({t.name, t.dtype, t.shape, {t.bytes.begin(), t.bytes.end()}});
  }
  Tensor& at(const std::string& name) {
    for (Tensor& t : all)
      if (t.name == name) return t;
    throw std::out_of_range(name);
  }
  template <class T>
  void set(const std::string& name, DType dtype, std::vector<std::int64_t> shape, const std::vector<T>& values) {
    Tensor& t = at(name);
    t.dtype = dtype;
    t.shape = std::move(shape);
    t.bytes.resize(values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
  }
  void remove_prefix(const std::string& prefix) {
    std::erase_if(all, [&](const Tensor& t) { return t.name.starts_with(prefix); });
  }
  std::vector<std::int32_t> integers(const std::string& name) {
    const Tensor& t = at(name);
    std::vector<std::int32_t> out(t.bytes.size() / 4);
    std::memcpy(out.data(), t.bytes.data(), t.bytes.size());
    return out;
  }
  void write(const fs::path& path) const {
    std::vector<io::TensorToWrite> tensors;
    for (const Tensor& t : all) tensors.push_back({t.name, t.dtype, t.shape, t.bytes});
    io::write_safetensors(real_files(), path, tensors, {});
  }
};

// A copy of a fixture to change.
class ChangedCase : public ::testing::Test {
 protected:
  ChangedCase() { fs::copy(fixture("qwen3-gqa"), folder_.path(), fs::copy_options::recursive); }

  void change(const std::string& file, const std::function<void(Tensors&)>& edit) {
    Tensors tensors(fs::path(fixture("qwen3-gqa")) / file);
    edit(tensors);
    fs::remove(folder_ / file);
    tensors.write(folder_ / file);
  }
  void change_oracle(const std::function<void(Tensors&)>& edit) { change("oracle.safetensors", edit); }

  Verification verify_it() {
    device::CpuDevice device(1);
    return verify(real_files(), folder_.path(), device);
  }
  void expect_refused(const std::string& part) {
    const std::string error = error_of([&] { verify_it(); });
    EXPECT_TRUE(says(error, {part}));
    EXPECT_EQ(error.find('\n'), error.npos);
  }
  TempFolder folder_;
};

void expect_parity(const fs::path& folder) {
  device::CpuDevice device;
  const Verification v = verify(real_files(), folder, device);
  EXPECT_TRUE(v.within()) << folder << ": " << v.comparisons.front().name << " " << v.comparisons.front().error;
  EXPECT_GT(v.comparisons.size(), 20u);
}

class Fixture : public ::testing::TestWithParam<const char*> {};
TEST_P(Fixture, AgreesWithHuggingFace) { expect_parity(fixture(GetParam())); }
INSTANTIATE_TEST_SUITE_P(Verify, Fixture,
                         ::testing::Values("llama-mha", "llama3-gqa", "qwen3-gqa", "llama-hd64", "qwen3-hd128",
                                           "olmo2-gqa", "qwen2-gqa", "mistral-window", "smollm3-nope", "olmo3-window",
                                           "gemma3-text", "llama-biases"));

constexpr const char* kWithExperts[] = {"olmoe", "qwen3-moe", "qwen3-moe-dense", "mixtral"};

// Their losses with the balance of loads, too.
TEST(Verify, AgreesWithHuggingFaceOnExperts) {
  device::CpuDevice device;
  for (const char* name : kWithExperts) {
    const Verification v = verify(real_files(), fixture(name), device);
    EXPECT_TRUE(v.within()) << name << ": " << v.comparisons.front().name << " " << v.comparisons.front().error;
    int balanced = 0;
    for (const Comparison& c : v.comparisons) balanced += c.name.starts_with("aux.");
    EXPECT_GT(balanced, 20) << name;
    EXPECT_TRUE(v.absent.empty()) << name;
  }
}

Verification in_fp8(const std::string& name, std::function<void(model::Engine&)> before_step = {}) {
  device::CpuDevice device;
  return verify(real_files(), fixture(name), device,
                {.precision = "fp8", .progress = {}, .before_step = std::move(before_step)});
}

TEST_P(Fixture, AgreesInEightBitsWithinWhatCastsCost) {
  std::size_t tensors = 0;
  const Verification v = in_fp8(GetParam(), [&](model::Engine& engine) { tensors = engine.lowered().fp8.size(); });
  EXPECT_GE(tensors, 2u * 4 * 3) << "four linears a layer, three tensors each";
  for (const Comparison& c : v.comparisons) EXPECT_LE(c.error, c.tolerance) << c.name << " " << name_of(c.measure);
}

// Casts move the input of routers, and some tokens go elsewhere. With the experts that they take in fp32, gradients
// agree; how many differed is told. A router that is wrong is not hidden by that.
TEST(Verify, AgreesInEightBitsOnExpertsWithTheirTokens) {
  for (const char* name : kWithExperts) {
    std::size_t of_experts = 0;
    const Verification v = in_fp8(name, [&](model::Engine& engine) {
      for (const model::Fp8Tensor& t : engine.lowered().fp8) of_experts += t.name.find("of expert ") != t.name.npos;
    });
    EXPECT_GT(of_experts, 0u) << name;
    EXPECT_TRUE(v.within()) << name << ": " << v.comparisons.front().name << " " << v.comparisons.front().error;
    int choices = 0;
    for (const Comparison& c : v.comparisons) choices += c.name.ends_with("experts of tokens");
    EXPECT_EQ(choices, 2) << name;
    const Verification broken = in_fp8(name, [](model::Engine& engine) {
      const auto& table = engine.table();
      const auto router = std::ranges::find_if(table, [](const auto& p) { return p.name.ends_with("/router"); });
      const program::ValueId working = engine.lowered().at(optim::kWorking),
                             weights = working.present() ? working : engine.lowered().at(optim::kParameters);
      const auto element = static_cast<std::int64_t>(size_of(engine.programs().at(weights).dtype));
      const std::vector<char> zeros(static_cast<std::size_t>(router->shape.elements() * element));
      engine.executor().write(weights, zeros.data(), std::ssize(zeros),
                              engine.layout().offsets[static_cast<std::size_t>(router - table.begin())] * element);
    });
    const auto differing = std::ranges::find(broken.comparisons, "experts of tokens", &Comparison::name);
    ASSERT_NE(differing, broken.comparisons.end());
    EXPECT_FALSE(differing->within()) << name << " " << differing->error;
  }
}

// By a factor of two, either way, in any tensor that is cast.
TEST(Verify, OneScaleThatIsOffIsSeen) {
  for (const char* linear : {"qkv", "out", "gate_up", "down"}) {
    for (const char* what : {"input", "gradient", "weight"}) {
      for (const float factor : {0.5f, 2.0f}) {
        const std::string tensor = fmt::format("layer 1/{} {}", linear, what);
        EXPECT_FALSE(in_fp8("llama3-gqa", scale_off(tensor, factor)).within()) << tensor << " off by " << factor;
      }
    }
  }
}

TEST(Verify, AgreesOnEveryCaseOfTheOracleFolder) {
  const char* folder = std::getenv("REDLINE_ORACLES");
  if (!folder) GTEST_SKIP() << "set REDLINE_ORACLES to a folder of cases to compare with all of them";
  int cases = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!fs::exists(entry.path() / "oracle.safetensors")) continue;
    expect_parity(entry.path());
    ++cases;
  }
  EXPECT_GT(cases, 0) << folder << " holds no case";
}

// What a family has and LLaMA has not: without it the case is another model's.
TEST(Verify, WhatAFamilyAddsIsSeen) {
  const auto holds = [](const char* name, const std::function<void(io::Json&)>& edit) {
    const TempFolder folder;
    fs::copy(fixture(name), folder.path(), fs::copy_options::recursive);
    io::Json config = io::read_json(real_files(), folder / "config.json");
    edit(config);
    real_files().replace(folder / "config.json", config.dump());
    device::CpuDevice device(1);
    return verify(real_files(), folder.path(), device).within();
  };
  EXPECT_TRUE(holds("mistral-window", [](io::Json&) {}));
  EXPECT_FALSE(holds("mistral-window", [](io::Json& j) { j["sliding_window"] = nullptr; }));
  EXPECT_FALSE(holds("mistral-window", [](io::Json& j) { j["sliding_window"] = 25; }));
  EXPECT_FALSE(holds("smollm3-nope", [](io::Json& j) { j["no_rope_layers"] = {1, 1, 1, 1}; }));
  EXPECT_FALSE(holds("olmo3-window", [](io::Json& j) { j["layer_types"][3] = "sliding_attention"; }));
  EXPECT_FALSE(holds("gemma3-text", [](io::Json& j) { j["query_pre_attn_scalar"] = 33; }));
  EXPECT_FALSE(
      holds("gemma3-text", [](io::Json& j) { j["rope_parameters"]["sliding_attention"]["rope_theta"] = 11000.0; }));
}

TEST_F(ChangedCase, APerturbedWeightIsSeen) {
  change("model.safetensors", [](Tensors& t) { t.at("model.layers.1.mlp.down_proj.weight").floats()[3] += 0.5f; });
  EXPECT_FALSE(verify_it().within());
}

TEST_F(ChangedCase, AnyChangedTensorOfTheOracleIsSeenAndNamedFirst) {
  for (const char* name :
       {"logits", "loss", "train_losses", "grad_norms", "grad.model.layers.0.self_attn.q_norm.weight",
        "grad.model.embed_tokens.weight", "final.model.norm.weight"}) {
    change_oracle([&](Tensors& t) {
      Tensors::Tensor& changed = t.at(name);
      for (std::size_t i = 0; i < changed.bytes.size() / 4; ++i) changed.floats()[i] *= 1.01f;
    });
    const Verification v = verify_it();
    EXPECT_FALSE(v.within()) << name;
    EXPECT_EQ(v.comparisons.front().name, name);
    EXPECT_NEAR(v.comparisons.front().error, 0.01, 1e-3) << name;
    EXPECT_TRUE(v.comparisons[1].within()) << v.comparisons[1].name;
  }
}

TEST_F(ChangedCase, NaNIsOutside) {
  change_oracle([](Tensors& t) { t.at("logits").floats()[5] = NAN; });
  const Verification v = verify_it();
  EXPECT_FALSE(v.within());
  EXPECT_EQ(v.comparisons.front().name, "logits");
  change_oracle([](Tensors&) {});
  change("model.safetensors", [](Tensors& t) { t.at("model.norm.weight").floats()[0] = NAN; });
  EXPECT_THROW(verify_it(), UserError);
}

TEST_F(ChangedCase, EmptyDocumentsAndDocumentsOfOneTokenHold) {
  change_oracle([](Tensors& t) {
    std::vector<std::int32_t> tokens = t.integers("tokens"), offsets = t.integers("doc_offsets");
    // One token alone is what the first token of a document is: its logits are known and it adds no pair.
    Tensors::Tensor& logits = t.at("logits");
    const std::int64_t n = logits.shape[0], vocab = logits.shape[1];
    std::vector<float> rows(logits.floats(), logits.floats() + n * vocab);
    rows.insert(rows.end(), logits.floats(), logits.floats() + vocab);
    tokens.push_back(tokens[0]);
    offsets.insert(offsets.begin(), 0);
    offsets.insert(offsets.begin() + 2, offsets[2]);
    offsets.push_back(static_cast<std::int32_t>(tokens.size()));
    offsets.push_back(offsets.back());
    t.set("logits", DType::f32, {n + 1, vocab}, rows);
    t.set("tokens", DType::i32, {static_cast<std::int64_t>(tokens.size())}, tokens);
    t.set("doc_offsets", DType::i32, {static_cast<std::int64_t>(offsets.size())}, offsets);
  });
  const Verification v = verify_it();
  EXPECT_TRUE(v.within()) << v.comparisons.front().name << " " << v.comparisons.front().error;
}

TEST_F(ChangedCase, AnyNumberOfTrainingStepsHolds) {
  for (const std::int64_t steps : {0, 1, 3}) {
    change_oracle([&](Tensors& t) {
      t.remove_prefix("final.");
      for (const char* name : {"train_losses", "grad_norms"}) {
        const float* values = t.at(name).floats();
        const std::vector<float> first(values, values + steps);
        t.set(name, DType::f32, {steps}, first);
      }
    });
    const Verification v = verify_it();
    EXPECT_TRUE(v.within()) << steps << ": " << v.comparisons.front().name << " " << v.comparisons.front().error;
    EXPECT_EQ(v.train_steps, steps);
  }
}

TEST_F(ChangedCase, WhatTheCaseDoesNotHoldIsSaid) {
  change_oracle([](Tensors& t) {
    t.remove_prefix("grad.");
    t.remove_prefix("final.");
  });
  const Verification v = verify_it();
  EXPECT_TRUE(v.within());
  EXPECT_EQ(v.comparisons.size(), 4u);
  EXPECT_EQ(v.absent, (std::vector<std::string>{"grad.", "final."}));
}

TEST_F(ChangedCase, GradientsMustBeOfExactlyTheModelsParameters) {
  change_oracle([](Tensors& t) { t.remove_prefix("grad.model.norm.weight"); });
  expect_refused("there is no grad.model.norm.weight");
  change_oracle([](Tensors& t) {
    t.all.push_back(t.at("grad.model.norm.weight"));
    t.all.back().name = "grad.lm_head.weight";
  });
  expect_refused("the model has no parameter for grad.lm_head.weight");
  change_oracle([](Tensors& t) {
    t.at("final.model.norm.weight").shape = {1, t.at("final.model.norm.weight").shape[0]};
  });
  expect_refused("final.model.norm.weight has shape");
}

TEST_F(ChangedCase, BadTokensAndOffsetsAreRefused) {
  const auto edit = [&](const char* name, const std::function<void(std::vector<std::int32_t>&)>& change_values) {
    change_oracle([&](Tensors& t) {
      std::vector<std::int32_t> values = t.integers(name);
      change_values(values);
      t.set(name, DType::i32, {static_cast<std::int64_t>(values.size())}, values);
    });
  };
  edit("tokens", [](auto& v) { v[7] = 1 << 20; });
  expect_refused("tokens[7] is 1048576, outside the vocabulary");
  edit("tokens", [](auto& v) { v[0] = -1; });
  expect_refused("outside the vocabulary");
  edit("tokens", [](auto& v) { v.clear(); });
  expect_refused("tokens is empty");
  edit("doc_offsets", [](auto& v) { std::swap(v[1], v[2]); });
  expect_refused("doc_offsets must rise");
  edit("doc_offsets", [](auto& v) { v.pop_back(); });
  expect_refused("doc_offsets must rise");
  edit("doc_offsets", [](auto& v) { v[0] = 1; });
  expect_refused("doc_offsets must rise");
  edit("doc_offsets", [](auto& v) { v.clear(); });
  expect_refused("doc_offsets must rise");
  edit("doc_offsets", [](auto& v) {
    const std::int32_t n = v.back();
    v.clear();
    for (std::int32_t i = 0; i <= n; ++i) v.push_back(i);
  });
  expect_refused("no document has two tokens");
}

TEST_F(ChangedCase, MissingFilesAndKeysAreRefused) {
  for (const char* key : {"tokens", "doc_offsets", "logits", "loss", "train_losses", "grad_norms"}) {
    change_oracle([&](Tensors& t) { t.remove_prefix(key); });
    expect_refused(key);
  }
  change_oracle([](Tensors& t) { t.at("logits").shape = {t.at("logits").shape[1], t.at("logits").shape[0]}; });
  expect_refused("logits has shape");
  for (const char* file : {"oracle.safetensors", "model.safetensors", "config.json"}) {
    fs::remove(folder_ / file);
    expect_refused(file);
  }
}

TEST_F(ChangedCase, AModelLargerThanItsWeightsIsRefusedBeforeItIsAllocated) {
  std::string text = real_files().read(folder_ / "config.json");
  const std::string key = "\"intermediate_size\": ";
  const std::size_t at = text.find(key) + key.size();
  text.replace(at, text.find(',', at) - at, "1000000000");
  real_files().replace(folder_ / "config.json", text);
  expect_refused("fewer than config.json describes");
}

TEST(Measure, OfDirectionAndLengthTellThemApart) {
  const std::vector<float> a = {3, 4}, longer = {6, 8}, turned = {4, -3}, zero = {0, 0};
  EXPECT_NEAR(measure(Measure::direction, longer, a), 0, 1e-12);
  EXPECT_DOUBLE_EQ(measure(Measure::length, longer, a), 1);
  EXPECT_DOUBLE_EQ(measure(Measure::direction, turned, a), 1);
  EXPECT_NEAR(measure(Measure::length, turned, a), 0, 1e-12);
  for (const Measure m : {Measure::direction, Measure::length}) {
    EXPECT_EQ(measure(m, zero, a), 1) << name_of(m);
    EXPECT_EQ(measure(m, a, zero), 5) << name_of(m);
    EXPECT_TRUE(std::isnan(measure(m, {{NAN, 1}}, a))) << name_of(m);
  }
}

TEST(Measure, OfDifferenceIsOfTheWholeTensorAndAbsoluteAtZero) {
  const std::vector<float> zero = {0, 0}, a = {3, 4}, b = {3, 4.5f};
  EXPECT_EQ(measure(Measure::difference, a, a), 0);
  EXPECT_DOUBLE_EQ(measure(Measure::difference, a, zero), 5);
  EXPECT_DOUBLE_EQ(measure(Measure::difference, b, a), 0.1);
}

TEST(Measure, OfAGradientThatIsOnlyRoundingIsBesideAllGradients) {
  const std::vector<float> zero = {0, 0}, noise = {3e-9f, 4e-9f}, small = {3e-6f, 4e-6f}, a = {3, -4};
  for (const Measure m : {Measure::difference, Measure::direction, Measure::length}) {
    EXPECT_LT(measure(m, zero, noise, 1), 1e-4) << name_of(m);
    EXPECT_EQ(measure(m, zero, noise), 1) << name_of(m);
    EXPECT_GT(measure(m, zero, small, 1), 1e-2) << name_of(m) << ": a wrong gradient is still seen";
    EXPECT_GT(measure(m, a, noise, 1), 1e-2) << name_of(m);
    EXPECT_EQ(measure(m, zero, a, 10), 1) << name_of(m);
    EXPECT_TRUE(std::isnan(measure(m, {{NAN, 1}}, noise, 1))) << name_of(m);
  }
}

// A family, and tokens of the row: rows of experts are twice as many, whole blocks of columns or not.
class Fp8TruthTest : public ::testing::TestWithParam<std::pair<const char*, std::int64_t>> {
 protected:
  static constexpr std::int64_t kVocab = 96;
  Fp8TruthTest()
      : batch_(batch_of({1, GetParam().second, 4},
                        {random_document(1, 70, kVocab), random_document(2, GetParam().second - 70, kVocab)})) {
    // Noise of a bf16's last bits in what every layer reads.
    const Tensor parameters = engine_->executor().tensor(engine_->lowered().at(optim::kParameters));
    const model::StoredParameter& embedding = engine_->layout().stored.front();
    const Random random(3, 9);
    for (std::int64_t i = 0; i < embedding.elements; ++i)
      parameters.f32()[embedding.offset + i] *=
          static_cast<float>(1 + 0x1p-10 * (random.uniform(static_cast<std::uint64_t>(i)) - 0.5));
    engine_->executor().run(model::kRefresh);
    for (int pass = 0; pass < 2; ++pass) {
      engine_->micro_step(true);
      engine_->executor().run(model::kRefresh);
    }
    take_scales(*truth_, *engine_);
  }

  std::unique_ptr<model::Engine> make() {
    config::Model m = tiny_model(GetParam().first);
    m.hidden = 64;
    m.head_dim = 16;
    (m.experts > 0 ? m.expert_ffn : m.ffn) = 96;
    m.vocab = kVocab;
    m.init_std = 0.1;
    model::LoweringOptions o;
    o.batch = batch_.shape;
    o.compute = DType::bf16;
    o.fp8 = model::fp8_candidates(model::family_of(m).table(m), o.batch.tokens()).products;
    auto engine = std::make_unique<model::Engine>(m, o, device_);
    engine->initialise(3);
    engine->upload(batch_);
    engine->set_step(0, 1e-3, static_cast<double>(batch_.pairs), 0);
    return engine;
  }

  device::CpuDevice device_{2};
  data::Batch batch_;
  std::unique_ptr<model::Engine> engine_ = make(), truth_ = make();
};

TEST_P(Fp8TruthTest, OtherLastBitsAreWithin) {
  const std::vector<Comparison> all = compare_step(*engine_, *truth_);
  for (const Comparison& c : all)
    EXPECT_TRUE(c.within()) << c.name << " " << name_of(c.measure) << " " << c.error << " > " << c.tolerance;
  const auto of = [&](std::string_view name) {
    const auto it = std::ranges::find(all, name, &Comparison::name);
    return it == all.end() ? NAN : it->error;
  };
  EXPECT_EQ(of("layer 0/qkv weight"), 0) << "the same weights have the same codes";
  EXPECT_GT(of("layer 1/qkv input"), 0) << "some codes differ";
  EXPECT_GT(of("layer 0/out gradient"), 0);
  EXPECT_GE(of("grad.model.layers.0.self_attn.o_proj.weight"), 0);
}

TEST_P(Fp8TruthTest, OneScaleThatIsOffIsSeen) {
  for (const char* linear : {"qkv", "out", "gate_up", "down"}) {
    for (const char* what : {"input", "gradient", "weight"}) {
      const bool mlp = std::ranges::count(std::array<std::string_view, 2>{"gate_up", "down"}, linear) > 0;
      const bool one = engine_->model().experts > 0 && mlp && std::string_view(what) == "weight";
      const std::string tensor = fmt::format("layer 1/{} {}{}", linear, what, one ? " of expert 0" : "");
      scale_off(tensor, 2)(*engine_);
      const std::vector<Comparison> all = compare_step(*engine_, *truth_);
      EXPECT_FALSE(std::ranges::all_of(all, &Comparison::within)) << tensor;
      scale_off(tensor, 0.5f)(*engine_);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Fp8TruthTest,
                         ::testing::Values(std::pair("llama", 128), std::pair("llama", 160), std::pair("olmoe", 128),
                                           std::pair("mixtral", 160), std::pair("qwen3_moe", 160)),
                         [](const auto& of) { return fmt::format("{}_{}", of.param.first, of.param.second); });

}  // namespace
}  // namespace redline::infer
