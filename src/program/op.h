// The op set as one variant, over ValueId in a program and over Tensor when bound. docs/tour.md lists the other parts
// of an op; once its line is here the compiler asks for them.
#pragma once

#include <string_view>
#include <variant>

#include "dist/group.h"
#include "ops/add_norm.h"
#include "ops/attention.h"
#include "ops/copy.h"
#include "ops/custom.h"
#include "ops/dropout.h"
#include "ops/embed.h"
#include "ops/experts.h"
#include "ops/fp8.h"
#include "ops/grouped.h"
#include "ops/linear.h"
#include "ops/lm_loss.h"
#include "ops/orthogonalize.h"
#include "ops/rope_qk_norm.h"
#include "ops/split_heads.h"
#include "ops/swiglu.h"
#include "optim/adamw.h"
#include "optim/muon.h"
#include "optim/norms.h"
#include "optim/rounded.h"
#include "program/program_set.h"

namespace redline::program {

template <class T>
using OpOver = std::variant<
    ops::Embed<T>, ops::EmbedGrad<T>, ops::SortTokens<T>, ops::DocumentTiles<T>, ops::Copy<T>, ops::Add<T>,
    ops::AddNorm<T>, ops::AddNormGrad<T>, ops::NormAdd<T>, ops::Linear<T>, ops::LinearInputGrad<T>,
    ops::LinearWeightGrad<T>, ops::BiasGrad<T>, ops::GroupedLinear<T>, ops::GroupedLinearInputGrad<T>,
    ops::GroupedLinearWeightGrad<T>, ops::GroupedFp8Product<T>, ops::GroupedFp8WeightGrad<T>, ops::Route<T>,
    ops::RouteGrad<T>, ops::SortByExpert<T>, ops::GatherRows<T>, ops::Combine<T>, ops::CombineGrad<T>,
    ops::RouterLoad<T>, ops::BalanceLoss<T>, ops::RopeQkNorm<T>, ops::RopeQkNormGrad<T>, ops::Attention<T>,
    ops::AttentionGrad<T>, ops::SwiGlu<T>, ops::SwiGluGrad<T>, ops::LmLoss<T>, ops::Dropout<T>, ops::CacheStore<T>,
    ops::AttentionCached<T>, ops::Quantize<T>, ops::QuantizeWeight<T>, ops::BoundScale<T>, ops::MoveScales<T>,
    ops::Largest<T>, ops::SetScales<T>, ops::Fp8Product<T>, optim::SumSquares<T>, optim::GradNorm<T>, optim::AdamW<T>,
    optim::Refresh<T>, optim::Average<T>, optim::Exchange<T>, optim::TensorSums<T>, ops::Orthogonalize<T>,
    optim::MuonMomentum<T>, optim::Muon<T>, optim::RoundAtRandom<T>, optim::Widen<T>, ops::Custom<T>,
    dist::AllReduce<T>, dist::ReduceShards<T>, dist::GatherShards<T>, dist::AllToAll<T>, ops::SplitHeads<T>>;

using Op = OpOver<ValueId>;
using BoundOp = OpOver<Tensor>;

// Whether an op is a collective of ranks.
template <class Op>
inline constexpr bool kCollective = false;
template <class T>
inline constexpr bool kCollective<dist::AllReduce<T>> = true;
template <class T>
inline constexpr bool kCollective<dist::ReduceShards<T>> = true;
template <class T>
inline constexpr bool kCollective<dist::GatherShards<T>> = true;
template <class T>
inline constexpr bool kCollective<dist::AllToAll<T>> = true;
template <class T>
bool is_collective(const OpOver<T>& op) {
  return std::visit([]<class O>(const O&) { return kCollective<O>; }, op);
}

template <class T>
std::string_view name_of(const OpOver<T>& op) {
  return std::visit([](const auto& o) { return o.kName; }, op);
}

// Calls visit(operand name, value, access) for each operand that is present.
template <class Visit>
void each_operand(const Op& op, Visit visit) {
  std::visit(
      [&](const auto& o) {
        o.map([&](std::string_view name, ValueId value, Access access) {
          if (value.present()) visit(name, value, access);
          return 0;
        });
      },
      op);
}

}  // namespace redline::program
