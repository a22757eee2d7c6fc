#include "model/lowering.h"

#include "base/step_state.h"
#include "model/family.h"
#include "program/cost.h"
#include "program/planner.h"

namespace redline::model {

using program::Builder;
using program::Role;
using program::ValueId;

LoweredModel lower(const config::Model& model, const LoweringOptions& options) {
  const Family& family = family_of(model);
  LoweredModel m;
  m.table = family.table(model);
  m.layout = lay_out(m.table);
  Builder b(m.set);
  const data::BatchShape& batch = options.batch;
  const std::int64_t n = batch.tokens(), total = m.layout.total;

  const auto flat = [&](Flat which, const char* name, Role role) {
    return m.flat[static_cast<int>(which)] = b.declare(name, {total}, DType::f32, role);
  };
  const auto views = [&](ValueId of, const char* suffix) {
    std::vector<ValueId> values;
    for (std::size_t i = 0; i < m.table.size(); ++i)
      values.push_back(b.view(of, m.table[i].name + suffix, m.table[i].shape, m.layout.offsets[i] * 4));
    return values;
  };
  const std::vector<ValueId> parameters = views(flat(Flat::parameters, "parameters", Role::parameter), "");
  if (options.training) {
    const std::vector<ValueId> gradients = views(flat(Flat::gradients, "gradients", Role::gradient), " gradient");
    for (std::size_t i = 0; i < m.table.size(); ++i) b.pair_gradient(parameters[i], gradients[i]);
    flat(Flat::moment1, "first moments", Role::moment);
    flat(Flat::moment2, "second moments", Role::moment);
  }

  m.batch.tokens = b.declare("tokens", {n}, DType::i32, Role::input);
  m.batch.targets = b.declare("targets", {n}, DType::i32, Role::input);
  m.batch.positions = b.declare("positions", {n}, DType::i32, Role::input);
  m.batch.doc_offsets = b.declare("doc_offsets", {batch.documents() + 1}, DType::i32, Role::input);
  m.step_state = b.declare("step state", {static_cast<std::int64_t>(sizeof(StepState))}, DType::u8, Role::input);
  m.update_result =
      b.declare("update result", {static_cast<std::int64_t>(sizeof(UpdateResult))}, DType::u8, Role::output);
  m.losses = b.declare("losses", {n}, DType::f32, Role::output);
  m.loss_sum = b.declare("loss sum", {1}, DType::f64, Role::output);
  b.set_step_state(m.step_state);
  const ValueId rope = b.constant("rope table", {batch.seq_len, model.head_dim}, rope_table(model, batch.seq_len));

  const Params p = decoder_params(model, m.table, parameters);
  const auto micro_step = [&](std::string_view name, program::Lowering lowering) {
    b.begin(std::string(name), lowering);
    b.lm_loss(family.forward(b, model, p, m.batch, rope), p.head, m.batch.targets, {m.losses, m.loss_sum});
    if (lowering.training) b.backward();
    b.end();
  };
  if (options.training) {
    micro_step(kFirst, {.training = true});
    if (options.accumulate) micro_step(kAccumulate, {.training = true, .accumulate = true});
    const config::Optim& o = options.optim;
    b.begin(std::string(kUpdate), {});
    b.grad_norm({m.at(Flat::gradients), m.loss_sum, m.step_state, {}, m.update_result, static_cast<float>(o.clip)});
    b.adamw({m.at(Flat::parameters),
             m.at(Flat::gradients),
             m.at(Flat::moment1),
             m.at(Flat::moment2),
             m.step_state,
             m.update_result,
             {static_cast<float>(o.beta1), static_cast<float>(o.beta2), static_cast<float>(o.eps),
              static_cast<float>(o.weight_decay)},
             m.layout.decayed});
    b.end();
  }
  micro_step(kEvaluate, {});
  if (options.logits) {
    m.logits = b.declare("logits", {n, model.vocab}, DType::f32, Role::output);
    b.begin(std::string(kLogits), {});
    b.copy_logits(family.forward(b, model, p, m.batch, rope), p.head, m.logits);
    b.end();
  }
  program::plan_memory(m.set);
  return m;
}

double model_flops(const LoweredModel& lowered, const data::BatchShape& shape, double real_tokens, double score_pairs) {
  return program::model_flops(lowered.set.find(kFirst))(real_tokens / static_cast<double>(shape.tokens()), score_pairs);
}

}  // namespace redline::model
