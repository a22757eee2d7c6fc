// Declares values and appends nodes. Costs are taken as a node is appended, from the shapes of its operands.
#include "program/builder.h"

#include <cmath>

#include "base/step_state.h"
#include "program/cost.h"

namespace redline::program {

const Program& ProgramSet::find(std::string_view name) const {
  for (const Program& p : programs)
    if (p.name == name) return p;
  fail_machine("ProgramSet::find: no program {}", name);
}

ValueId ProgramSet::owner(ValueId id) const {
  while (at(id).alias_of.present()) id = at(id).alias_of;
  return id;
}

ValueId Builder::declare(std::string name, Shape shape, DType dtype, Role role) {
  set_.values.push_back({.name = std::move(name), .shape = shape, .dtype = dtype, .role = role, .alias_of = {}});
  return {static_cast<std::int32_t>(set_.values.size()) - 1};
}

ValueId Builder::view(ValueId of, std::string name, Shape shape, std::int64_t byte_offset) {
  const Value whole = set_.at(of);
  const ValueId id = declare(std::move(name), shape, whole.dtype, whole.role);
  Value& v = set_.values[static_cast<std::size_t>(id.index)];
  v.alias_of = of;
  v.alias_offset = byte_offset;
  REDLINE_CHECK(byte_offset >= 0 && byte_offset + v.bytes() <= whole.bytes(), "view {} leaves {}", v.name, whole.name);
  return id;
}

ValueId Builder::constant(std::string name, Shape shape, std::vector<float> data) {
  REDLINE_CHECK(shape.elements() == static_cast<std::int64_t>(data.size()), "constant {}", name);
  const ValueId id = declare(std::move(name), shape, DType::f32, Role::constant);
  set_.constants.push_back({id, std::move(data)});
  return id;
}

void Builder::begin(std::string name, Lowering lowering) {
  program_ = {.name = std::move(name), .nodes = {}};
  lowering_ = lowering;
  scope_.clear();
  dropouts_ = 0;
  gradient_.clear();
  parameter_written_.clear();
}

void Builder::end() { set_.programs.push_back(std::move(program_)); }

ValueId Builder::make(std::string_view name, Shape shape, Role role, DType dtype) {
  return declare(scope_.empty() ? std::string(name) : fmt::format("{}/{}", scope_, name), shape, dtype, role);
}

void Builder::append(Op op, Phase phase, std::string name) {
  if (!scope_.empty()) name = scope_ + "/" + name;
  if (phase == Phase::backward) name += "/backward";
  const Cost cost = cost_of(op, set_.values);
  program_.nodes.push_back({std::move(op), phase, cost, std::move(name)});
}

ValueId Builder::embed(ValueId tokens, ValueId weight) {
  const ValueId y = activation("embedding", {shape(tokens)[0], shape(weight)[1]});
  append(ops::Embed<ValueId>{tokens, weight, y}, Phase::forward, "embed");
  return y;
}

AddNormValues Builder::add_norm(ValueId residual, ValueId branch, ValueId weight, float eps, std::string_view name) {
  const Shape s = shape(residual);
  const ValueId out = branch.present() ? activation(fmt::format("{} residual", name), s) : kAbsent;
  const ValueId y = activation(name, s);
  const ValueId rstd = statistic(fmt::format("{} rstd", name), {s[0]});
  append(ops::AddNorm<ValueId>{residual, branch, weight, out, y, rstd, eps}, Phase::forward, std::string(name));
  return {out.present() ? out : residual, y};
}

ValueId Builder::norm_add(ValueId residual, ValueId branch, ValueId weight, float eps, std::string_view name) {
  const ValueId out = activation(fmt::format("{} residual", name), shape(residual));
  const ValueId rstd = statistic(fmt::format("{} rstd", name), {shape(residual)[0]});
  append(ops::NormAdd<ValueId>{residual, branch, weight, out, rstd, eps}, Phase::forward, std::string(name));
  return out;
}

ValueId Builder::linear(ValueId x, ValueId weight, std::string_view name) {
  const ValueId y = activation(name, {shape(x)[0], shape(weight)[0]});
  append(ops::Linear<ValueId>{x, weight, y}, Phase::forward, std::string(name));
  return y;
}

ValueId Builder::rope_qk_norm(ValueId qkv, const RopeValues& rope, ops::HeadLayout layout, float eps,
                              ops::NormOver over) {
  const bool norm = rope.q_norm.present(), keep = norm && lowering_.training;
  const std::int64_t n = shape(qkv)[0];
  const ValueId raw = keep ? activation("qk before norm", {n, layout.qk_heads() * layout.head_dim}) : kAbsent;
  const ValueId rstd = keep ? statistic("qk rstd", {n, ops::norm_parts(layout, over)}) : kAbsent;
  append(
      ops::RopeQkNorm<ValueId>{qkv, rope.q_norm, rope.k_norm, rope.positions, rope.table, raw, rstd, layout, eps, over},
      Phase::forward, norm ? "rope and qk-norm" : "rope");
  return qkv;
}

ValueId Builder::attention(ValueId qkv, const BatchValues& batch, std::size_t layer, ops::HeadLayout layout) {
  const std::int64_t n = shape(qkv)[0];
  const ValueId out = activation("attention", {n, layout.heads * layout.head_dim});
  const float scale = 1.0f / std::sqrt(static_cast<float>(layout.head_dim));
  if (!batch.doc_offsets.present()) {
    const LayerCache& cache = batch.caches.at(layer);
    const std::int64_t slots = shape(cache.keys)[0], splits = ops::key_splits(shape(cache.keys)[2]);
    const ValueId partial =
        make("attention splits", {slots, layout.heads, splits, layout.head_dim + 2}, Role::scratch, DType::f32);
    append(ops::AttentionCached<ValueId>{qkv, batch.positions, cache.keys, cache.values, out, partial, layout, scale},
           Phase::forward, "attention");
    return out;
  }
  if (!batch.caches.empty()) {
    const LayerCache& cache = batch.caches.at(layer);
    append(ops::CacheStore<ValueId>{qkv, batch.doc_offsets, batch.slot_documents, cache.keys, cache.values, layout},
           Phase::forward, "cache");
  }
  const ValueId lse = statistic("attention lse", {layout.heads, n});
  append(ops::Attention<ValueId>{qkv, batch.doc_offsets, out, lse, layout, scale, batch.longest}, Phase::forward,
         "attention");
  return out;
}

ValueId Builder::swiglu(ValueId gate_up) {
  const ValueId y = activation("swiglu", {shape(gate_up)[0], shape(gate_up)[1] / 2});
  append(ops::SwiGlu<ValueId>{gate_up, y}, Phase::forward, "swiglu");
  return y;
}

ValueId Builder::pick_rows(ValueId rows, ValueId x, std::string_view name) {
  const ValueId y = activation(name, {shape(rows)[0], shape(x)[1]});
  append(ops::Embed<ValueId>{rows, x, y}, Phase::forward, std::string(name));
  return y;
}

ValueId Builder::dropout(ValueId x, float p, std::string_view name) {
  if (!lowering_.training || p == 0) return x;
  // In place: a linear's backward does not need its output. A new value all the same (a view), so that each has its own
  // gradient: the branch's differs from the residual stream's by the mask.
  const ValueId y = view(x, fmt::format("{}/{}", scope_, name), shape(x), 0);
  append(ops::Dropout<ValueId>{x, step_state_, y, p, dropouts_++}, Phase::forward, std::string(name));
  return y;
}

void Builder::lm_loss(ValueId x, ValueId weight, ValueId targets, LossValues loss) {
  const std::int64_t n = shape(x)[0], chunk = std::min(n, lowering_.loss_chunk);
  const ValueId logits = make("logits chunk", {chunk, shape(weight)[0]}, Role::scratch, lowering_.compute);
  ops::LmLoss<ValueId> op{.x = x,
                          .weight = weight,
                          .targets = targets,
                          .losses = loss.losses,
                          .loss_sum = loss.loss_sum,
                          .logits = logits,
                          .dx = {},
                          .dweight = {}};
  op.accumulate_loss = lowering_.accumulate;
  if (lowering_.training) {
    op.dx = gradient_[x] = activation("final norm gradient", shape(x));
    op.dweight = gradient_of_parameter_.at(weight);
    op.accumulate_weight = lowering_.accumulate || parameter_written_[weight];
    parameter_written_[weight] = true;
  }
  append(op, Phase::forward, "lm_loss");
}

void Builder::copy_logits(ValueId x, ValueId weight, ValueId logits) {
  append(ops::Linear<ValueId>{x, weight, logits}, Phase::forward, "logits");
}

void Builder::grad_norm(optim::GradNorm<ValueId> op) {
  op.partial = make("norm partial sums", {optim::kNormGroups}, Role::scratch, DType::f64);
  append(op, Phase::update, "grad_norm");
}

void Builder::adamw(optim::AdamW<ValueId> op) { append(op, Phase::update, "adamw"); }
void Builder::refresh(optim::Refresh<ValueId> op) { append(op, Phase::update, "refresh"); }

}  // namespace redline::program
