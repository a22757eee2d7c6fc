// Writes programs: declares values, appends nodes at its place in the model, and knows the gradient of each value. The
// builder writes a forward pass with it, backward.cpp the backward pass.
#pragma once

#include <map>
#include <set>
#include <string>

#include "device/device.h"
#include "program/program.h"
#include "program/recompute.h"

namespace redline::program {

struct Fp8Linears;

struct Lowering {
  bool training = false;          // keep values for the backward pass, and draw dropout
  bool accumulate = false;        // gradients and the loss sum are added to: not the first micro-batch of a step
  bool fresh_gradients = false;   // gradients are written even with `accumulate`: another node adds them up
  std::int64_t loss_chunk = 512;  // rows of logits that exist at a time
  float z_loss = 0;               // of gradients (ops/lm_loss.h)
  DType compute = DType::f32;     // of activations; statistics and sums are always fp32
  Recompute recompute = Recompute::none;
  device::Kind kind = device::Kind::cpu;  // whose kernels: those of a card want scratch
  ops::ProductHow products = {};
  ops::AttentionHow attention = {};
  Fp8Linears* fp8 = nullptr;  // linears whose products take operands in eight bits (program/fp8.h); none: none

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

  ValueId declare(std::string name, Shape shape, DType dtype, Role role);
  ValueId view(ValueId of, std::string name, Shape shape, std::int64_t byte_offset);

  void begin(std::string name, Lowering lowering);
  void end() { set_.programs.push_back(std::move(program_)); }
  const Lowering& lowering() const { return lowering_; }
  ProgramSet& set() { return set_; }
  Program& program() { return program_; }
  const Value& at(ValueId id) const { return set_.at(id); }
  const Shape& shape(ValueId id) const { return set_.at(id).shape; }

  // Sets the place of the values and nodes that follow.
  void stand(Place place) { place_ = place; }
  const Place& place() const { return place_; }

  // Transient values, of this place.
  ValueId make(std::string_view name, Shape shape, Role role, DType dtype);
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
  std::map<ValueId, ValueId> of_parameter_;  // persistent
  std::map<ValueId, ValueId> of_activation_;
  std::map<ValueId, int> holders_;  // of a gradient's buffer
  std::set<ValueId> claimed_;       // parameters whose gradient this program has written
  std::int32_t pairs_ = 0;
  std::map<ValueId, ValueId> latest_;  // owners, and the name under which their bytes were last written
  std::set<ValueId> read_;             // owners that a forward node has read
};

}  // namespace redline::program
