// Model and batch shape to programs: declares what persists, then writes one program after the other.
#include "model/lowering.h"

#include "base/step_state.h"
#include "model/family.h"
#include "program/cost.h"
#include "program/planner.h"

namespace redline::model {
namespace {

using program::Builder;
using program::Role;
using program::ValueId;

class Lower {
 public:
  Lower(const config::Model& model, const LoweringOptions& options)
      : model_(model), options_(options), family_(family_of(model)), b_(m_.set) {
    m_.table = family_.table(model);
    m_.layout = lay_out(m_.table);
  }

  LoweredModel lower() {
    declare_parameters();
    declare_batch_and_results();
    if (options_.training) {
      micro_step(kFirst, {.training = true});
      if (options_.accumulate) micro_step(kAccumulate, {.training = true, .accumulate = true});
      update();
    }
    micro_step(kEvaluate, {});
    if (options_.logits) logits();
    if (options_.decode.slots > 0) decoding();
    if (m_.working.present()) refresh();
    program::plan_memory(m_.set);
    return std::move(m_);
  }

 private:
  ValueId flat(Flat which, const char* name, Role role) {
    return m_.flat[static_cast<int>(which)] = b_.declare(name, {m_.layout.total}, DType::f32, role);
  }

  // The table's parameters as views into a flat array.
  std::vector<ValueId> views(ValueId of, const char* suffix) {
    const auto element = static_cast<std::int64_t>(size_of(m_.set.at(of).dtype));
    std::vector<ValueId> values;
    for (std::size_t i = 0; i < m_.table.size(); ++i)
      values.push_back(b_.view(of, m_.table[i].name + suffix, m_.table[i].shape, m_.layout.offsets[i] * element));
    return values;
  }

  void declare_parameters() {
    // What the model multiplies by: the parameters themselves, or their copies in the type that products take.
    ValueId weights = flat(Flat::parameters, "parameters", Role::parameter);
    if (options_.compute != DType::f32)
      weights = m_.working = b_.declare("working copies", {m_.layout.total}, options_.compute, Role::working);
    const std::vector<ValueId> parameters = views(weights, "");
    for (std::size_t i = 0; i < parameters.size(); ++i) values_.add(m_.table[i].name, parameters[i]);
    if (!options_.training) return;
    const std::vector<ValueId> gradients = views(flat(Flat::gradients, "gradients", Role::gradient), " gradient");
    for (std::size_t i = 0; i < parameters.size(); ++i) b_.pair_gradient(parameters[i], gradients[i]);
    flat(Flat::moment1, "first moments", Role::moment);
    flat(Flat::moment2, "second moments", Role::moment);
  }

  void declare_batch_and_results() {
    const data::BatchShape& batch = options_.batch;
    const std::int64_t n = batch.tokens();
    const auto input = [&](const char* name, std::int64_t size) {
      return b_.declare(name, {size}, DType::i32, Role::input);
    };
    m_.batch = {.tokens = input("tokens", n),
                .targets = input("targets", n),
                .positions = input("positions", n),
                .doc_offsets = input("doc_offsets", batch.documents() + 1),
                .longest = batch.seq_len};
    m_.step_state = b_.declare("step state", {sizeof(StepState)}, DType::u8, Role::input);
    m_.update_result = b_.declare("update result", {sizeof(UpdateResult)}, DType::u8, Role::output);
    m_.losses = b_.declare("losses", {n}, DType::f32, Role::output);
    m_.loss_sum = b_.declare("loss sum", {1}, DType::f64, Role::output);
    b_.set_step_state(m_.step_state);
    const std::int64_t positions = std::max(batch.seq_len, options_.decode.positions);
    for (ConstantSpec& c : family_.constants(model_, positions))
      values_.add(c.name, b_.constant(c.name, c.shape, std::move(c.data)));
  }

  void begin(std::string_view name, program::Lowering lowering) {
    lowering.compute = options_.compute;
    lowering.loss_chunk = options_.loss_chunk;
    lowering.recompute = options_.recompute;
    lowering.attention_workspace = options_.attention_workspace;
    b_.begin(std::string(name), lowering);
  }

  ForwardValues forward(const program::BatchValues& batch) { return family_.forward(b_, model_, values_, batch); }

  void micro_step(std::string_view name, program::Lowering lowering) {
    begin(name, lowering);
    const auto [hidden, head] = forward(m_.batch);
    b_.lm_loss(hidden, head, m_.batch.targets, {m_.losses, m_.loss_sum});
    if (lowering.training) b_.backward();
    b_.end();
  }

  void update() {
    const config::Optim& o = options_.optim;
    const auto f = [](double x) { return static_cast<float>(x); };
    begin(kUpdate, {});
    b_.at(program::Part::update);
    b_.grad_norm({m_.at(Flat::gradients), m_.loss_sum, m_.step_state, {}, m_.update_result, f(o.clip)});
    b_.adamw({m_.at(Flat::parameters),
              m_.at(Flat::gradients),
              m_.at(Flat::moment1),
              m_.at(Flat::moment2),
              m_.working,
              m_.step_state,
              m_.update_result,
              {f(o.beta1), f(o.beta2), f(o.eps), f(o.weight_decay)},
              m_.layout.decayed});
    b_.end();
  }

  void logits() {
    m_.logits = b_.declare("logits", {options_.batch.tokens(), model_.vocab}, DType::f32, Role::output);
    begin(kLogits, {});
    copy_logits(m_.batch, m_.logits);
    b_.end();
  }

  void copy_logits(const program::BatchValues& batch, ValueId logits) {
    const auto [hidden, head] = forward(batch);
    b_.copy_logits(hidden, head, logits);
  }

  // Both programs are the model's own forward pass; what they are given decides what attention does in them.
  void decoding() {
    const DecodeShape& shape = options_.decode;
    DecodeValues& d = m_.decode;
    const auto input = [&](const char* name, Shape extents) {
      return b_.declare(name, extents, DType::i32, Role::input);
    };
    std::vector<program::LayerCache> caches;
    for (std::int64_t i = 0; i < model_.layers; ++i) {
      const Shape extents{shape.slots, model_.kv_heads, shape.positions, model_.head_dim};
      const auto cache = [&](const char* what) {
        return b_.declare(fmt::format("layer {}/cached {}", i, what), extents, options_.compute, Role::cache);
      };
      const ValueId keys = cache("keys"), values = cache("values");
      caches.push_back({keys, values});
    }
    d.prompt = {.tokens = input("prompt tokens", {shape.prompt}),
                .targets = {},
                .positions = input("prompt positions", {shape.prompt}),
                .doc_offsets = input("prompt offsets", {2}),
                .longest = shape.prompt,
                .caches = caches,
                .slot_documents = input("prompt of slots", {shape.slots})};
    d.last_row = input("last row of the prompt", {1});
    d.prompt_logits = b_.declare("prompt logits", {1, model_.vocab}, DType::f32, Role::output);
    d.next_input = input("next tokens and positions", {2, shape.rows});
    d.next = {.tokens = b_.view(d.next_input, "next tokens", {shape.rows}, 0),
              .targets = {},
              .positions = b_.view(d.next_input, "next positions", {shape.rows}, 4 * shape.rows),
              .doc_offsets = {},
              .longest = shape.positions,
              .caches = caches,
              .slot_documents = {}};
    d.next_logits = b_.declare("next logits", {shape.rows, model_.vocab}, DType::f32, Role::output);
    d.slot_logits = b_.view(d.next_logits, "slot logits", {shape.slots, model_.vocab}, 0);

    begin(kPrefill, {});
    const auto [hidden, head] = forward(d.prompt);
    b_.copy_logits(b_.pick_rows(d.last_row, hidden, "last row"), head, d.prompt_logits);
    b_.end();
    begin(kDecode, {});
    copy_logits(d.next, d.next_logits);
    b_.end();
  }

  void refresh() {
    begin(kRefresh, {});
    b_.at(program::Part::update);
    b_.refresh({m_.at(Flat::parameters), m_.working});
    b_.end();
  }

  const config::Model& model_;
  const LoweringOptions& options_;
  const Family& family_;
  LoweredModel m_;
  Builder b_;
  NamedValues values_;
};

}  // namespace

LoweredModel lower(const config::Model& model, const LoweringOptions& options) { return Lower(model, options).lower(); }

double model_flops(const LoweredModel& lowered, const data::BatchShape& shape, double real_tokens, double score_pairs) {
  return program::model_flops(lowered.set.find(kFirst))(real_tokens / static_cast<double>(shape.tokens()), score_pairs);
}

}  // namespace redline::model
