// Tiny models whose products can take operands in eight bits, and how they are lowered so.
#pragma once

#include "model/fp8_linears.h"
#include "model/tiny.h"
#include "program/program.h"

namespace redline::testing {

// All extents are multiples of 16.
inline config::Model tiny_fp8_model(const std::string& family, bool tied = false) {
  config::Model m = tiny_model(family, tied);
  m.hidden = 48;
  m.head_dim = 16;
  m.ffn = 80;
  if (m.experts > 0) m.expert_ffn = 32, m.dense_layers.clear();
  return m;
}

// Every product that may be in eight bits is.
inline model::LoweringOptions fp8_options(const config::Model& m, const data::BatchShape& shape,
                                          device::Kind kind = device::Kind::cpu) {
  return {.batch = shape,
          .logits = true,
          .compute = DType::bf16,
          .loss_chunk = 64,
          .kind = kind,
          .fp8 = model::fp8_candidates(model::family_of(m).table(m), shape.tokens()).products,
          .seed = 5};
}

// Scales from the uploaded batch, as a fresh run finds them: a pass for those of activations, and another for those of
// gradients, which the first pass has seen through casts with a scale of 1.
inline void find_scales(model::Engine& engine) {
  for (int pass = 0; pass < 2; ++pass) {
    engine.micro_step(true);
    engine.executor().run(model::kRefresh);
  }
}

// A token of one document is changed at a time: no loss of another moves, to the bit; its own does where it has a
// target.
template <class Made>
void expect_documents_apart(Made& engine, const data::Batch& batch) {
  engine.upload(batch);
  engine.micro_step(true);
  const std::vector<float> before = engine.losses();
  for (std::int64_t d = 0; d < batch.documents; ++d) {
    const auto begin = static_cast<std::size_t>(batch.doc_offsets[static_cast<std::size_t>(d)]);
    const auto end = static_cast<std::size_t>(batch.doc_offsets[static_cast<std::size_t>(d) + 1]);
    data::Batch changed = batch;
    changed.tokens[begin] = (changed.tokens[begin] + 1) % static_cast<std::int32_t>(engine.model().vocab);
    engine.upload(changed);
    engine.micro_step(true);
    const std::vector<float> after = engine.losses();
    EXPECT_TRUE(end - begin < 2 || before[begin] != after[begin]) << "document " << d;
    for (std::size_t t = 0; t < before.size(); ++t)
      EXPECT_TRUE((t >= begin && t < end) || before[t] == after[t]) << "document " << d << ", token " << t;
  }
}

inline bool has_fp8_node(const program::Program& p) {
  for (const program::Node& node : p.nodes) {
    bool found = std::holds_alternative<ops::Quantize<program::ValueId>>(node.op) ||
                 std::holds_alternative<ops::Fp8Product<program::ValueId>>(node.op) ||
                 std::holds_alternative<ops::GroupedFp8Product<program::ValueId>>(node.op) ||
                 std::holds_alternative<ops::GroupedFp8WeightGrad<program::ValueId>>(node.op);
    program::each_operand(
        node.op, [&](std::string_view name, program::ValueId, Access) { found = found || name.starts_with("fp8 "); });
    if (found) return true;
  }
  return false;
}

}  // namespace redline::testing
