// Writes programs: declares values, appends nodes, and turns a forward pass into its backward pass. A model calls the
// ops here and knows nothing of devices, memory, precision or gradients.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "program/writer.h"

namespace redline::program {

// The cache of one layer: keys and values of the texts that are being continued, a slot each.
struct LayerCache {
  ValueId keys, values;  // [slots, kv_heads, positions, head_dim]
};

// The batch as programs see it. With caches, documents are texts whose keys and values are stored for the slots that
// continue them. With caches and without doc_offsets, every token is the next one of its slot.
struct BatchValues {
  ValueId tokens, targets, positions, doc_offsets;
  std::int64_t longest = 0;             // no document has more tokens
  std::vector<LayerCache> caches = {};  // by layer
  ValueId slot_documents = {};          // [slots]
};

// The weights that normalise queries and keys and the table that turns them; without a norm the weights are absent.
struct RopeValues {
  ValueId q_norm, k_norm, positions, table;
};

struct AddNormValues {
  ValueId residual, y;
};

// The values that the loss of one micro-batch is written to.
struct LossValues {
  ValueId losses;    // [n]
  ValueId loss_sum;  // [1] f64
};

// The operands of a norm: gradients that begin at `begin` of all; loss and step are absent where they do not count.
struct NormOf {
  ValueId gradients, loss_sum, state;
  std::int64_t begin = 0, all = 0;
};

class Builder {
 public:
  explicit Builder(ProgramSet& set) : set_(set), w_(set) {}

  // Persistent values: declared once, used by any program of the set.
  ValueId declare(std::string name, Shape shape, DType dtype, Role role) {
    return w_.declare(std::move(name), shape, dtype, role);
  }
  ValueId view(ValueId of, std::string name, Shape shape, std::int64_t byte_offset) {
    return w_.view(of, std::move(name), shape, byte_offset);
  }
  ValueId constant(std::string name, Shape shape, std::vector<float> data);
  void pair_gradient(ValueId parameter, ValueId gradient) { w_.pair_gradient(parameter, gradient); }
  void set_step_state(ValueId state) { step_state_ = state; }

  // A program: begin, ops, optionally backward(), end.
  void begin(std::string name, Lowering lowering);
  void end() { w_.end(); }

  // Sets the place of the values and nodes that follow.
  void at(Part part, std::size_t layer) { w_.stand({part, static_cast<std::int32_t>(layer)}); }
  void at(Part part) { w_.stand({part}); }

  // The ops. Each returns the value(s) it makes.
  ValueId embed(ValueId tokens, ValueId weight, std::int64_t padding = ops::kNoPadding);
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

  // Appends the backward pass of the nodes so far, in reverse, down to the gradients of all parameters.
  void backward();

  // The update's nodes.
  void grad_norm(const NormOf& of, optim::GradNorm<ValueId> op);  // its totals are made here
  void adamw(optim::AdamW<ValueId> op, std::string name = "adamw");
  // The three nodes of Muon over some matrices. Their intermediate values and scratch are made here. Their products are
  // in bf16 on a card.
  void muon(optim::MuonMomentum<ValueId> momentum, ops::Orthogonalize<ValueId> orthogonalize,
            optim::Muon<ValueId> update, const std::string& name);
  DType muon_type() const { return w_.lowering().on_card() ? DType::bf16 : DType::f32; }
  void refresh(optim::Refresh<ValueId> op);
  void average(optim::Average<ValueId> op);
  void exchange(optim::Exchange<ValueId> op);
  ValueId copy(ValueId of, std::string_view name);                    // in fp32, for the rest of the program
  void tensor_sums(optim::TensorSums<ValueId> op, std::string name);  // its partial sums are made here
  void move_scales(ops::MoveScales<ValueId> op, std::string name);
  void bound_scale(ops::BoundScale<ValueId> op);
  void quantize_weight(ops::QuantizeWeight<ValueId> op);

 private:
  ProgramSet& set_;
  Writer w_;
  ValueId document_tiles(const BatchValues& batch);  // of the program, made where they are first asked for

  std::uint64_t dropouts_ = 0;
  std::map<ValueId, ValueId> tiles_;  // by doc_offsets, within one program
  ValueId step_state_;
};

}  // namespace redline::program
