// Writes programs. A Writer declares values, appends nodes at its place in the model, and knows the gradient of each
// value; passes write with it. A Builder is what a model calls: one function an op, without devices, memory, precision
// or gradients.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "device/device.h"
#include "program/passes.h"
#include "program/program.h"

namespace redline::program {

struct Lowering {
  bool training = false;          // keep values for the backward pass, and draw dropout
  bool accumulate = false;        // gradients and the loss sum are added to: not the first micro-batch of a step
  bool fresh_gradients = false;   // gradients are written even with `accumulate`: another node adds them up
  std::int64_t loss_chunk = 512;  // rows of logits that exist at a time
  float z_loss = 0;               // of gradients (ops/lm_loss.h)
  DType compute = DType::f32;     // of activations; statistics and sums are always fp32
  Recompute recompute = Recompute::none;
  std::int64_t recompute_layers = 0;      // of the first ones; 0: of all
  bool keep_on_host = false;              // what these layers keep for their way back
  device::Kind kind = device::Kind::cpu;  // whose kernels: those of a card want scratch
  ops::ProductHow products = {};
  ops::AttentionHow attention = {};
  int sequence = 1;  // ranks that have a part of the tokens each; attention has all tokens of a part of the heads
  Fp8Linears* fp8 = nullptr;  // linears whose products take operands in eight bits (program/passes.h); none: none

  bool on_card() const { return kind == device::Kind::cuda; }
  // Whether attention may be a library's, which wants memory of its own.
  bool library_attention() const {
    return on_card() && compute == DType::bf16 &&
           (attention.by == ops::AttentionBy::automatic || attention.by == ops::AttentionBy::cudnn);
  }
};

class Writer {
 public:
  explicit Writer(ProgramSet& set) : set_(set) {}

  ValueId declare(std::string name, Shape shape, DType dtype, Role role, Memory memory = Memory::device);
  ValueId view(ValueId of, std::string name, Shape shape, std::int64_t byte_offset);

  void begin(std::string name, Lowering lowering);
  void end() { set_.programs.push_back(std::move(program_)); }
  const Lowering& lowering() const { return lowering_; }
  ProgramSet& set() { return set_; }
  Program& program() { return program_; }
  const Value& at(ValueId id) const { return set_.at(id); }
  const Shape& shape(ValueId id) const { return set_.at(id).shape; }

  void set_every(std::int32_t every) { every_ = every; }

  // Sets the place of the values and nodes that follow.
  void set_place(Place place) { place_ = place; }
  const Place& place() const { return place_; }

  // Transient values, of this place.
  ValueId make(std::string_view name, Shape shape, Role role, DType dtype, Memory memory = Memory::device);
  ValueId activation(std::string_view name, Shape shape) {
    return make(name, shape, Role::activation, lowering_.compute);
  }
  ValueId statistic(std::string_view name, Shape shape) { return make(name, shape, Role::activation, DType::f32); }
  ValueId scratch(std::string_view name, Shape shape, DType dtype = DType::f32) {
    return make(name, shape, Role::scratch, dtype);
  }

  // The workspace for a library's products, where it needs one.
  ValueId product_workspace() {
    return lowering_.on_card() ? scratch("product workspace", {ops::kProductWorkspaceBytes}, DType::u8) : kAbsent;
  }

  // A forward node may not write a value that an earlier one has read: the backward pass would find other values there.
  void append(Op op, Phase phase, std::string name);
  // A pair: work that may go on beside the nodes between its start and the wait for it.
  std::int32_t start(Op op, Phase phase, std::string name);
  void wait(std::int32_t pair);

  // Parameters: each has one place for its gradient, for all programs.
  void pair_gradient(ValueId parameter, ValueId gradient) { of_parameter_[parameter] = gradient; }
  ValueId gradient_of_parameter(ValueId parameter) const { return of_parameter_.at(parameter); }
  // Whether this contribution adds to the parameter's gradient; from now on all do.
  bool claim(ValueId parameter);
  // The same of a sum that losses add to.
  bool claim_sum(ValueId sum);

  // Activations: the gradient of a value so far, while the backward pass is written. Several values may hold one
  // buffer, as both addends of a residual sum do. Then only its last holder may add to it.
  ValueId gradient_of(ValueId value) const;  // absent: nothing has reached it
  bool holds_alone(ValueId value) const;
  void hold(ValueId value, ValueId gradient);
  void release(ValueId value);

 private:
  ProgramSet& set_;
  Program program_;
  Lowering lowering_;
  Place place_;
  std::int32_t every_ = 1;
  std::map<ValueId, ValueId> of_parameter_;  // persistent
  std::map<ValueId, ValueId> of_activation_;
  std::map<ValueId, int> holders_;  // of a gradient's buffer
  std::set<ValueId> claimed_;       // parameters whose gradient this program has written, and sums of losses
  std::int32_t pairs_ = 0;
  std::map<ValueId, ValueId> latest_;  // owners, and the name under which their bytes were last written
  std::set<ValueId> read_;             // owners that a forward node has read
};

// The weights that normalise queries and keys and the table that turns them; without a norm the weights are absent.
struct RopeValues {
  ValueId q_norm, k_norm, positions, table;
  bool one_plus = false;  // the norms' weights count as 1 + w
};

// What a layer's attention does otherwise than most.
struct AttentionForm {
  float scale = 0;  // of the scores; 0: one over the root of head_dim
  std::int64_t window = kNoWindow;
};

// Where the tokens of a layer go, and the order of rows in which experts find them (ops/experts.h).
struct RoutedValues {
  ValueId weights, offsets, rows, places;
};

struct AddNormValues {
  ValueId residual, y;
};

// The values that the loss of one micro-batch is written to.
struct LossValues {
  ValueId losses;    // [n]
  ValueId loss_sum;  // [1] f64
};

// The operands of a norm: gradients, or pieces of whole groups of them, of which each begins at `begin` of all; loss
// and step are absent where they do not count.
struct NormOf {
  struct Piece {
    ValueId value;
    std::int64_t begin = 0;
  };
  std::vector<Piece> gradients;
  std::int64_t all = 0;
  ValueId loss_sum = {}, state = {};
};

class Builder {
 public:
  explicit Builder(ProgramSet& set) : set_(set), w_(set) {}

  // Persistent values: declared once, used by any program of the set.
  ValueId declare(std::string name, Shape shape, DType dtype, Role role, Memory memory = Memory::device) {
    return w_.declare(std::move(name), shape, dtype, role, memory);
  }
  ValueId view(ValueId of, std::string name, Shape shape, std::int64_t byte_offset) {
    return w_.view(of, std::move(name), shape, byte_offset);
  }
  ValueId constant(std::string name, Shape shape, std::function<std::vector<float>()> make);
  void pair_gradient(ValueId parameter, ValueId gradient) { w_.pair_gradient(parameter, gradient); }
  void set_parameter(ValueId value, std::size_t row) { set_.at(value).parameter = static_cast<std::int32_t>(row); }
  void set_step_state(ValueId state) { step_state_ = state; }

  // A program: begin, ops, optionally backward(), end.
  void begin(std::string name, Lowering lowering);
  void end() { w_.end(); }

  // Sets the place of the values and nodes that follow.
  void at(Part part, std::size_t layer) { w_.set_place({part, static_cast<std::int32_t>(layer)}); }
  void at(Part part) { w_.set_place({part}); }

  // The nodes that follow run at steps whose number is a multiple of this; 1: at every step. What they leave to others
  // must be state.
  void every(std::int64_t steps) { w_.set_every(static_cast<std::int32_t>(steps)); }

  // The ops. Each returns the value(s) it makes.
  ValueId embed(ValueId tokens, ValueId weight, std::int64_t padding = ops::kNoPadding, float scale = 1);
  AddNormValues add_norm(ValueId residual, ValueId branch, ValueId weight, float eps, std::string_view name,
                         bool one_plus = false);
  ValueId norm_add(ValueId residual, ValueId branch, ValueId weight, float eps, std::string_view name,
                   bool one_plus = false);
  ValueId linear(ValueId x, ValueId weight, std::string_view name, ValueId bias = kAbsent);
  // Rows of x in groups, each times its own weight (ops/grouped.h).
  ValueId grouped_linear(ValueId x, ValueId weight, ValueId offsets, std::string_view name);
  // The k best experts of every token, its rows in their order, and the weighted sum of what they make of it.
  RoutedValues route(ValueId x, ValueId weight, const BatchValues& batch, std::int64_t per_token, bool normalise);
  ValueId gather_rows(ValueId x, const RoutedValues& routed);
  ValueId combine(ValueId y, const RoutedValues& routed);
  // The second loss of a program with routers; `totals` of ops/experts.h. Without coefficients it has no gradient.
  void balance_loss(const BatchValues& batch, ValueId totals, std::int64_t per_token, float coefficient,
                    float z_coefficient, bool pooled);
  ValueId rope_qk_norm(ValueId qkv, const RopeValues& rope, ops::HeadLayout layout, float eps, ops::NormOver over);
  ValueId attention(ValueId qkv, const BatchValues& batch, std::size_t layer, ops::HeadLayout layout,
                    const AttentionForm& form = {});
  ValueId swiglu(ValueId gate_up, ops::Gate gate = ops::Gate::silu);
  ValueId pick_rows(ValueId rows, ValueId x, std::string_view name);  // x[rows[i]], which is what an embedding does
  ValueId dropout(ValueId x, float p, std::string_view name);         // x itself when nothing is to be dropped
  // A program may have several: gradients of what they share add up, and so do losses with one sum.
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
  void custom(ops::Custom<ValueId> op, std::string name);
  ValueId scratch(std::string_view name, Shape shape) { return w_.scratch(name, shape); }
  void refresh(optim::Refresh<ValueId> op);
  void average(optim::Average<ValueId> op);
  void exchange(optim::Exchange<ValueId> op);
  ValueId copy(ValueId of, std::string_view name);       // in fp32, for the rest of the program
  ValueId widened(ValueId kept, std::string_view name);  // what is kept in bf16, the same
  void round_at_random(optim::RoundAtRandom<ValueId> op, std::string name);
  void copy_bytes(ValueId from, ValueId to, std::string name);        // from one memory to another, or within one
  void tensor_sums(optim::TensorSums<ValueId> op, std::string name);  // its partial sums are made here
  void move_scales(ops::MoveScales<ValueId> op, std::string name);
  void bound_scale(ops::BoundScale<ValueId> op);
  void quantize_weight(ops::QuantizeWeight<ValueId> op);
  void largest(ops::Largest<ValueId> op);
  void set_scales(ops::SetScales<ValueId> op, std::string name);
  void quantize(ops::Quantize<ValueId> op, std::string name);  // in the update

 private:
  ProgramSet& set_;
  Writer w_;
  // Of the program, made where they are first asked for.
  ValueId document_tiles(const BatchValues& batch, std::int64_t tokens);
  // All tokens of a part of the heads, where ranks have all heads of a part of the tokens; and back.
  ValueId attend(ValueId qkv, const BatchValues& batch, std::size_t layer, const ops::HeadLayout& layout,
                 const AttentionForm& form);
  ValueId heads_of_rank(ValueId x, const ops::HeadLayout& layout, const char* name);
  ValueId tokens_of_rank(ValueId x, const ops::HeadLayout& layout, const char* name);

  std::uint64_t dropouts_ = 0;
  std::int64_t routers_ = 0;          // of the program so far
  std::map<ValueId, ValueId> tiles_;  // by doc_offsets, within one program
  ValueId step_state_;
};

}  // namespace redline::program
