// Writes programs: declares values, appends nodes, and turns a forward pass into its backward pass. A model calls the
// ops here and knows nothing of devices, memory, precision or gradients.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "program/program.h"
#include "program/recompute.h"

namespace redline::program {

// What one layer remembers of the texts that are being continued, a slot each.
struct LayerCache {
  ValueId keys, values;  // [slots, kv_heads, positions, head_dim]
};

// The batch as programs see it. With caches, documents are texts whose keys and values are stored for the slots that
// continue them; without doc_offsets as well, every token is the next one of its slot.
struct BatchValues {
  ValueId tokens, targets, positions, doc_offsets;
  std::int64_t longest = 0;             // no document has more tokens
  std::vector<LayerCache> caches = {};  // by layer
  ValueId slot_documents = {};          // [slots]
};

// What queries and keys are normalised by and turned with; without a norm its weights are absent.
struct RopeValues {
  ValueId q_norm, k_norm, positions, table;
};

struct AddNormValues {
  ValueId residual, y;
};

// What the loss of one micro-batch is written to.
struct LossValues {
  ValueId losses;    // [n]
  ValueId loss_sum;  // [1] f64
};

struct Lowering {
  bool training = false;          // keep what the backward pass needs, and draw dropout
  bool accumulate = false;        // gradients and the loss sum are added to: not the first micro-batch of a step
  std::int64_t loss_chunk = 512;  // rows of logits that exist at a time
  DType compute = DType::f32;     // of activations; statistics and sums are always fp32
  Recompute recompute = Recompute::none;
  bool attention_workspace = false;  // room for a library's attention kernel
};

class Builder {
 public:
  explicit Builder(ProgramSet& set) : set_(set) {}

  // Persistent values: declared once, used by any program of the set.
  ValueId declare(std::string name, Shape shape, DType dtype, Role role);
  ValueId view(ValueId of, std::string name, Shape shape, std::int64_t byte_offset);
  ValueId constant(std::string name, Shape shape, std::vector<float> data);
  void pair_gradient(ValueId parameter, ValueId gradient) { gradient_of_parameter_[parameter] = gradient; }
  void set_step_state(ValueId state) { step_state_ = state; }

  // A program: begin, ops, optionally backward(), end.
  void begin(std::string name, Lowering lowering);
  void end();

  // Names of values and nodes that follow start with it: "layer 3".
  void scope(std::string name) { scope_ = std::move(name); }

  // The ops. Each returns the value(s) it makes.
  ValueId embed(ValueId tokens, ValueId weight);
  AddNormValues add_norm(ValueId residual, ValueId branch, ValueId weight, float eps, std::string_view name);
  ValueId norm_add(ValueId residual, ValueId branch, ValueId weight, float eps, std::string_view name);
  ValueId linear(ValueId x, ValueId weight, std::string_view name);
  ValueId rope_qk_norm(ValueId qkv, const RopeValues& rope, ops::HeadLayout layout, float eps, ops::NormOver over);
  ValueId attention(ValueId qkv, const BatchValues& batch, std::size_t layer, ops::HeadLayout layout);
  ValueId swiglu(ValueId gate_up);
  ValueId pick_rows(ValueId rows, ValueId x, std::string_view name);  // x[rows[i]], which is what an embedding does
  ValueId dropout(ValueId x, float p, std::string_view name);         // x itself when nothing is to be dropped
  void lm_loss(ValueId x, ValueId weight, ValueId targets, LossValues loss);
  void copy_logits(ValueId x, ValueId weight, ValueId logits);  // the whole logits, into a persistent output

  // Appends the backward pass of what stands in the program, in reverse, down to the gradients of all parameters.
  void backward();

  // The update's nodes.
  void grad_norm(optim::GradNorm<ValueId> op);
  void adamw(optim::AdamW<ValueId> op);
  void refresh(optim::Refresh<ValueId> op);

 private:
  friend class Backward;
  ValueId make(std::string_view name, Shape shape, Role role, DType dtype);
  ValueId activation(std::string_view name, Shape shape) {
    return make(name, shape, Role::activation, lowering_.compute);
  }
  ValueId statistic(std::string_view name, Shape shape) { return make(name, shape, Role::activation, DType::f32); }
  void append(Op op, Phase phase, std::string name);
  const Shape& shape(ValueId id) const { return set_.at(id).shape; }

  ProgramSet& set_;
  Program program_;
  Lowering lowering_;
  std::string scope_;
  std::uint64_t dropouts_ = 0;
  ValueId step_state_;
  std::map<ValueId, ValueId> gradient_of_parameter_;  // persistent
  std::map<ValueId, ValueId> gradient_;               // of activations, within one program
  std::map<ValueId, bool> parameter_written_;         // has this program written the parameter's gradient yet?
};

}  // namespace redline::program
