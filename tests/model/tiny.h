// Tiny models and random packed batches for the tests of whole models.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "base/small_floats.h"
#include "config/load.h"
#include "data/batch.h"
#include "model/engine.h"
#include "model/family.h"
#include "model/state_files.h"

namespace redline::testing {

// Every second layer has a window, or no RoPE, where the model has such a thing.
inline void set_layers(config::Model& m, std::int64_t layers) {
  const model::DecoderDescription& d = model::family_of(m).decoder;
  m.layers = layers;
  m.layer_types.clear();
  m.rope_layers.clear();
  for (std::int64_t i = 0; i < layers; ++i) {
    if (m.window > 0 && d.windows == model::WindowedLayers::by_layer)
      m.layer_types.emplace_back(i % 2 ? "full_attention" : "sliding_attention");
    if (d.no_rope_every > 0) m.rope_layers.push_back(i % 2);
  }
}

inline config::Model tiny_model(const std::string& family, bool tied = false) {
  config::Model m;
  m.family = family;
  m.hidden = 24;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 10;  // not hidden / heads, not a multiple of 8
  m.ffn = 37;
  m.vocab = 53;
  m.tied = tied;
  const model::DecoderDescription& d = model::family_of(m).decoder;
  const bool window = d.windows != model::WindowedLayers::none && family != "qwen3";  // tests on cards take that one
  if (window) m.window = 5;                                                           // shorter than some documents
  set_layers(m, 2);
  if (d.experts) {
    m.experts = 5;
    m.experts_per_token = 2;
    m.expert_ffn = 19;
    m.router_aux = 0;  // so that gradients are those of the loss
    if (d.experts->dense_layers) m.dense_layers = {0};
  }
  if (d.local_rope) m.rope_local_theta = 500;
  if (d.query_scalar) m.query_pre_attn_scalar = 7;
  m.attention_bias = m.mlp_bias = family == "smollm3";
  model::settle_layers(m);
  m.init_std = 0.2;  // large enough that every path matters
  return m;
}

// An engine whose weights are drawn.
struct TinyEngine : model::Engine {
  TinyEngine(const config::Model& m, const model::LoweringOptions& o, device::Device& device) : Engine(m, o, device) {
    initialise(3);
  }
};

inline std::vector<std::int32_t> random_document(std::uint64_t key, std::int64_t length, std::int64_t vocab) {
  const Random random(7, key);
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < length; ++i)
    tokens.push_back(
        static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(vocab))));
  return tokens;
}

inline data::Batch batch_of(data::BatchShape shape, const std::vector<std::vector<std::int32_t>>& documents) {
  data::Batch batch(shape);
  batch.clear();
  for (const auto& d : documents) EXPECT_TRUE(batch.append(d));
  return batch;
}

// The batches of most tests: documents of unequal lengths, one of a single token. Those for a card fill more than a
// tile of its kernels.
inline constexpr data::BatchShape kTinyShape{.rows = 2, .seq_len = 24, .max_segments = 4};
inline constexpr data::BatchShape kShortShape{.rows = 2, .seq_len = 16, .max_segments = 8};
inline constexpr data::BatchShape kCardShape{.rows = 2, .seq_len = 96, .max_segments = 4};

inline data::Batch documents_of(const data::BatchShape& shape, const std::vector<std::int64_t>& lengths,
                                std::int64_t vocab, std::uint64_t key) {
  data::Batch batch(shape);
  batch.clear();
  for (const std::int64_t length : lengths) EXPECT_TRUE(batch.append(random_document(++key, length, vocab)));
  return batch;
}
inline data::Batch tiny_batch(std::int64_t vocab, std::uint64_t key = 0, const data::BatchShape& shape = kTinyShape) {
  return documents_of(shape, {13, 1, 20, 2}, vocab, 10 * key);
}
inline data::Batch card_batch(std::int64_t vocab, std::uint64_t key = 0) {
  return documents_of(kCardShape, {13, 1, 90, 2, 70}, vocab, 10 * key);
}

// One update of one micro-batch; the mean loss before it.
inline double step_on(model::Engine& engine, const data::Batch& batch, int index, double lr) {
  engine.upload(batch);
  engine.set_step(static_cast<std::uint64_t>(index), lr, static_cast<double>(batch.pairs), 0);
  engine.micro_step(true);
  engine.update();
  engine.post_result();
  const model::Engine::StepResult result = engine.take_result();
  EXPECT_EQ(result.update.finite, 1.0f);
  return result.loss_sum / static_cast<double>(batch.pairs);
}

// The update of a micro-batch that is left out, since a gradient is no number.
inline void step_without_update(model::Engine& engine, const data::Batch& batch, int index) {
  engine.upload(batch);
  engine.set_step(static_cast<std::uint64_t>(index), 1e-2, static_cast<double>(batch.pairs), 0);
  engine.micro_step(true);
  const std::uint32_t no_number = ~0u;  // of whatever type
  engine.executor().write(engine.lowered().at(optim::kGradients), &no_number, sizeof no_number, 32);
  engine.update();
  engine.post_result();
  EXPECT_EQ(engine.take_result().update.finite, 0.0f);
}

// A whole array of the state table, copied to the host in fp32, and one that the host may change where it stands.
inline std::vector<float> array_of(model::Engine& engine, std::string_view name) {
  engine.finish_update();
  const program::ValueId value = engine.lowered().at(name);
  const auto elements = static_cast<std::size_t>(engine.programs().at(value).shape.elements());
  std::vector<float> out(elements);
  if (engine.programs().at(value).dtype == DType::bf16) {
    std::vector<std::uint16_t> narrow(elements);
    engine.executor().read(value, narrow);
    std::ranges::transform(narrow, out.begin(), f32_from_bf16);
    return out;
  }
  engine.executor().read(value, out);
  return out;
}
// Of the uploaded batch.
inline double loss_of_average(model::Engine& engine) {
  const auto shown = engine.show_average();
  return engine.evaluate();
}
inline std::span<float> array_on_host(model::Engine& engine, std::string_view name) {
  EXPECT_TRUE(engine.device().shares_host_memory());
  engine.finish_update();
  const Tensor t = engine.executor().tensor(engine.lowered().at(name));
  return {t.f32(), static_cast<std::size_t>(t.elements())};
}

// Everything that files of a checkpoint would hold.
template <class Read>
std::vector<std::byte> all_bytes(const model::Engine& engine, const Read& read) {
  std::vector<std::byte> out;
  const optim::StateTable& table = engine.lowered().state;
  for (const std::string& file : model::state_files(table))
    read(model::state_tensors(table, engine.layout(), file),
         [&](std::span<const std::byte> bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); });
  return out;
}

// Changes the first token of each document in turn: its own logits must change, and those of all others keep their
// bits.
inline void expect_documents_apart(model::Engine& engine, const data::Batch& batch) {
  engine.upload(batch);
  const std::vector<float> before = engine.logits();
  const auto v = static_cast<std::size_t>(engine.model().vocab);
  for (std::int64_t d = 0; d < batch.documents; ++d) {
    const auto begin = static_cast<std::size_t>(batch.doc_offsets[static_cast<std::size_t>(d)]);
    const auto end = static_cast<std::size_t>(batch.doc_offsets[static_cast<std::size_t>(d) + 1]);
    data::Batch changed = batch;
    changed.tokens[begin] = (changed.tokens[begin] + 1) % static_cast<std::int32_t>(v);
    engine.upload(changed);
    const std::vector<float> after = engine.logits();
    const auto same = [&](std::size_t token) {
      return std::memcmp(&before[token * v], &after[token * v], v * sizeof(float)) == 0;
    };
    EXPECT_FALSE(same(begin)) << "document " << d;
    for (std::size_t t = 0; t < static_cast<std::size_t>(batch.real_tokens); ++t) {
      if (t < begin || t >= end) {
        EXPECT_TRUE(same(t)) << "document " << d << ", token " << t;
      }
    }
  }
}

}  // namespace redline::testing
