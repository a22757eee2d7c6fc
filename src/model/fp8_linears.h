// What a run with products in eight bits keeps beside its parameters: copies of the linears' weights, a scale for every tensor that is
// cast, and the nodes that follow them from step to step. ops/fp8.h has the maths, program/fp8.h the products.
#pragma once

#include <string>
#include <vector>

#include "model/lowering.h"
#include "model/parameters.h"
#include "program/fp8.h"

namespace redline::model {

// A linear's products, by the linear's name in the parameter table ("qkv") and which of the three it is.
inline constexpr std::string_view kFp8Forward = "forward", kFp8Input = "input", kFp8Weight = "weight";

// Every product that operands in eight bits may have: "qkv/forward". Extents must be multiples of 16, the tokens of a
// micro-batch only for gradients of weights.
struct Fp8Candidates {
  std::vector<std::string> products;
  bool head = false;                 // the two gradients of the head, where they are asked for
  std::vector<std::string> refused;  // sentences: which, and why
};
Fp8Candidates fp8_candidates(const ParameterTable& table, std::int64_t tokens, bool head = false);

class Fp8Values {
 public:
  // Declares rows of the state, and copies of the weights of those products and of the head; `weights` are the parameters in
  // the order of their table, as products read them.
  void declare(program::Builder& b, LoweredModel& m, const std::vector<std::string>& products, bool head,
               const std::vector<program::ValueId>& weights);
  program::Fp8Linears* linears() {
    return linears_.by_weight.empty() && !linears_.head_weight.present() ? nullptr : &linears_;
  }

  // Scales of the step that was, then the weights as they are now. Without a result the step is taken to have been made.
  void follow(program::Builder& b, const LoweredModel& m, program::ValueId result) const;

 private:
  // A copy of the weight by columns, which a tied head has for itself, and scales. Nothing of it is saved: all of it follows
  // from the parameters.
  void declare_head(program::Builder& b, const LoweredModel& m, const std::vector<program::ValueId>& weights);

  program::Fp8Linears linears_;
};

}  // namespace redline::model
