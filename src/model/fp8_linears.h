// The state of a run with products in eight bits, beside its parameters: copies of the linears' weights, a scale for
// every tensor that is cast, and the nodes that follow them from step to step. ops/fp8.h has the maths, program/fp8.cpp
// the products.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/lowering.h"
#include "model/parameters.h"
#include "program/passes.h"

namespace redline::model {

// Names of a linear's three products, which follow the linear's own (ParameterSpec::fp8): "qkv/forward".
inline constexpr std::string_view kFp8Forward = "forward", kFp8Input = "input", kFp8Weight = "weight";

// Rows of the state table. Scales are saved; the magnitudes that steps record are 0 between steps, and one array: ranks
// agree on all of them at once.
inline constexpr std::string_view kFp8InputScales = "fp8 input scales", kFp8GradientScales = "fp8 gradient scales";
inline constexpr std::string_view kFp8Records = "fp8 records";

// Every product that may take operands in eight bits: "qkv/forward". Extents must be multiples of 16; the tokens of a
// micro-batch only for gradients of weights.
struct Fp8Candidates {
  std::vector<std::string> products;
  bool head = false;                 // the two gradients of the head, where they are asked for
  std::vector<std::string> refused;  // sentences: which, and why
  std::vector<std::string> linears;  // of the model, each with three products
};
Fp8Candidates fp8_candidates(const ParameterTable& table, std::int64_t tokens, bool head = false);

// The products that a configuration takes, in the order of the candidates: the ones of precision.fp8_products that the
// shapes allow, or all that they allow where it names none. A name that is no product of the model is a UserError.
inline constexpr std::string_view kNoFp8Products = "none";  // alone in that list: it was chosen, and nothing was left
struct Fp8Products {
  std::vector<std::string> taken, left;  // left to bf16
  bool head = false;                     // its gradients too
  std::vector<std::string> refused;      // sentences: what the shapes do not allow
};
Fp8Products fp8_products(const config::Config& config);  // empty where matmul is not fp8
// The reasons of a choice that was made by time.
struct Fp8Reasons {
  std::string sum;                         // the gain: "9.31 ms instead of 14.02"
  std::map<std::string, std::string> why;  // why not, by product
};
// "11 of 12 products; bf16: out/weight (0.31 ms against 0.33)".
std::string in_words(const Fp8Products& products, const Fp8Reasons& reasons = {});

// The product of a linear that a node computes, in bf16 or in fp8: "qkv/forward". Empty: none.
std::string fp8_product_of(const ParameterTable& table, const program::ProgramSet& set, const program::Node& node);

class Fp8Values {
 public:
  // Declares rows of the state, and copies of the weights of the options' products and head; `weights` are the
  // parameters in the order of their table, as products read them. Where a rank updates a part of the parameters, there
  // is one array of copies by rows, which ranks send each other, and programs turn them over.
  void declare(program::Builder& b, LoweredModel& m, const LoweringOptions& options,
               const std::vector<program::ValueId>& weights);
  program::Fp8Linears* linears() {
    return linears_.by_weight.empty() && !linears_.head_weight.present() ? nullptr : &linears_;
  }

  // The array of copies by rows; absent where every linear has copies of its own.
  const program::Distribution::Array& shared_weights() const { return shared_; }

  // Appends the nodes that move the scales by the last step's records and cast the new weights. Without a result the
  // step counts as made.
  void append_update(program::Builder& b, const LoweredModel& m, program::ValueId result) const;

 private:
  // Declares the head's scales and its copy of the weight by columns, its own even for a tied head. None of it is
  // saved: all follows from the parameters.
  void declare_head(program::Builder& b, const LoweredModel& m, const std::vector<program::ValueId>& weights);
  void declare_shared(program::Builder& b, const LoweredModel& m, const std::vector<std::size_t>& rows,
                      dist::Mode mode);
  program::ValueId weight_record(program::Builder& b, std::int64_t first, std::int64_t entries) const;
  void append_largest(program::Builder& b, const LoweredModel& m) const;
  void append_casts(program::Builder& b, const LoweredModel& m) const;

  program::Fp8Linears linears_;
  bool by_parts_ = false;  // this rank updates a part of the parameters
  program::Distribution::Array shared_;
  program::ValueId records_, weight_scales_;
  std::map<program::ValueId, program::ValueId> record_of_;  // by scale: of the head's weight and of norms
  // A scale for each matrix of a weight: the first of each, by the weight, and how many there are.
  std::map<program::ValueId, std::int64_t> first_scale_;
  std::int64_t weight_entries_ = 0;
};

// The contents of a copy in eight bits, for people to look at (Engine::watched_micro_step).
struct Fp8Seen {
  std::string name;  // "layer 3/qkv gradient"
  DType format = DType::e4m3;
  double scale = 0;
  double amax = 0;       // its largest magnitude; of a norm's output, as its copy in eight bits has it
  double saturated = 0;  // share of its elements that are the largest number of the format; 0 where all fit
  double zero = 0;       // share that is zero in eight bits: zero before, or too small
};

}  // namespace redline::model
