// Causal attention over full rows in eight bits as graphs of cuDNN's frontend, for the benchmark beside it alone:
// nothing trains with them. Queries, keys, values and the output are E4M3; what the gradients are is the form's to say.
// Scales are numbers in device memory, one a tensor: a copy holds x * scale, products are multiplied by its inverse.
// What the frontend (1.32) says of Hopper: backward takes head_dim 128 alone and no ragged rows; results are of eight
// bits in both passes; the mask starts at the top left; statistics are natural logs in fp32, [rows, heads, length].
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/dtype.h"
#include "base/error.h"
#include "device/cuda/launch.h"
#include "ops/cuda/cudnn/frontend.h"
#include "ops/rope_qk_norm.h"

namespace redline::fp8_attention {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using TensorPointer = std::shared_ptr<Tensor_attributes>;

struct Problem {
  std::int64_t rows = 0, length = 0;
  ops::HeadLayout layout;

  std::int64_t n() const { return rows * length; }
  std::int64_t out_width() const { return layout.heads * layout.head_dim; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(layout.head_dim)); }
};

// Some columns of an array of n rows, in elements.
struct Stretch {
  std::int64_t offset = 0, stride = 0, width = 0;
};

// Where queries, keys and values (or their gradients) stand: in the rows of one array, as training has them, or one
// array behind the other, should the library refuse that.
struct Places {
  bool apart = false;
  Stretch q, k, v;

  Places(const Problem& p, bool apart_) : apart(apart_) {
    const std::int64_t d = p.layout.head_dim, q_width = p.layout.heads * d, kv_width = p.layout.kv_heads * d;
    const std::int64_t row = q_width + 2 * kv_width, rows_before = apart ? p.n() : 1;
    q = {0, apart ? q_width : row, q_width};
    k = {rows_before * q_width, apart ? kv_width : row, kv_width};
    v = {rows_before * (q_width + kv_width), apart ? kv_width : row, kv_width};
  }
  const char* name() const { return apart ? "q, k and v in arrays of their own" : "q, k and v in one array"; }
};

// What the backward pass takes and gives.
struct Form {
  DType dout, dqkv;
};

enum Uid : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kStats,
  kDout,
  kDq,
  kDk,
  kDv,
  kFirstScalar,
  kInverseQ = kFirstScalar,
  kInverseK,
  kInverseV,
  kInverseP,
  kInverseOut,
  kInverseDout,
  kInverseDs,
  kScaleP,
  kScaleOut,
  kScaleDq,
  kScaleDk,
  kScaleDv,
  kScaleDs,
  kAmaxP,
  kAmaxOut,
  kAmaxDq,
  kAmaxDk,
  kAmaxDv,
  kAmaxDs,
  kEndOfScalars
};

using Pointers = std::unordered_map<std::int64_t, void*>;

inline fe::DataType_t type_of(DType t) {
  return t == DType::e5m2 ? fe::DataType_t::FP8_E5M2 : fe::DataType_t::FP8_E4M3;
}

class GraphOfPass {
 public:
  GraphOfPass(const Problem& p, const Places& places, fe::graph::Graph& graph) : p_(p), places_(places), graph_(graph) {
    graph_.set_io_data_type(fe::DataType_t::FP8_E4M3)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  void forward() {
    auto options = masked(fe::graph::SDPA_fp8_attributes().set_name("attention").set_generate_stats(true));
    const auto q = input("q", kQ, places_.q), k = input("k", kK, places_.k), v = input("v", kV, places_.v);
    const auto inverse_q = scalar("1/scale of q", kInverseQ), inverse_k = scalar("1/scale of k", kInverseK);
    const auto inverse_v = scalar("1/scale of v", kInverseV), inverse_p = scalar("1/scale of p", kInverseP);
    const auto scale_p = scalar("scale of p", kScaleP), scale_out = scalar("scale of out", kScaleOut);
    const auto [out, stats, amax_p, amax_out] =
        graph_.sdpa_fp8(q, k, v, inverse_q, inverse_k, inverse_v, inverse_p, scale_p, scale_out, options);
    describe(out->set_output(true), kOut, out_place(), DType::e4m3);
    describe_stats(stats->set_output(true));
    describe_scalar(amax_p->set_output(true), kAmaxP);
    describe_scalar(amax_out->set_output(true), kAmaxOut);
  }

  // p is what softmax gives, ds the gradient of what it takes, with the scale of attention; ds is of dout's type.
  void backward(const Form& form) {
    auto options = masked(fe::graph::SDPA_fp8_backward_attributes().set_name("attention gradient"));
    const auto q = input("q", kQ, places_.q), k = input("k", kK, places_.k), v = input("v", kV, places_.v);
    const auto out = input("out", kOut, out_place()), dout = input("dout", kDout, out_place(), form.dout);
    Tensor_attributes described;
    describe_stats(described.set_name("stats"));
    const auto stats = graph_.tensor(described);
    const auto inverse_q = scalar("1/scale of q", kInverseQ), inverse_k = scalar("1/scale of k", kInverseK);
    const auto inverse_v = scalar("1/scale of v", kInverseV), inverse_out = scalar("1/scale of out", kInverseOut);
    const auto inverse_dout = scalar("1/scale of dout", kInverseDout), inverse_p = scalar("1/scale of p", kInverseP);
    const auto inverse_ds = scalar("1/scale of ds", kInverseDs), scale_p = scalar("scale of p", kScaleP);
    const auto scale_dq = scalar("scale of dq", kScaleDq), scale_dk = scalar("scale of dk", kScaleDk);
    const auto scale_dv = scalar("scale of dv", kScaleDv), scale_ds = scalar("scale of ds", kScaleDs);
    const auto [dq, dk, dv, amax_dq, amax_dk, amax_dv, amax_ds] =
        graph_.sdpa_fp8_backward(q, k, v, out, dout, stats, inverse_q, inverse_k, inverse_v, inverse_out, inverse_dout,
                                 inverse_p, inverse_ds, scale_p, scale_dq, scale_dk, scale_dv, scale_ds, options);
    describe(dq->set_output(true), kDq, places_.q, form.dqkv);
    describe(dk->set_output(true), kDk, places_.k, form.dqkv);
    describe(dv->set_output(true), kDv, places_.v, form.dqkv);
    describe_scalar(amax_dq->set_output(true), kAmaxDq);
    describe_scalar(amax_dk->set_output(true), kAmaxDk);
    describe_scalar(amax_dv->set_output(true), kAmaxDv);
    describe_scalar(amax_ds->set_output(true), kAmaxDs);
  }

 private:
  Stretch out_place() const { return {0, p_.out_width(), p_.out_width()}; }
  TensorPointer input(const char* name, Uid uid, const Stretch& at, DType dtype = DType::e4m3) {
    Tensor_attributes t;
    describe(t.set_name(name), uid, at, dtype);
    return graph_.tensor(t);
  }
  TensorPointer scalar(const char* name, Uid uid) {
    Tensor_attributes t;
    describe_scalar(t.set_name(name), uid);
    return graph_.tensor(t);
  }
  void describe(Tensor_attributes& t, Uid uid, const Stretch& at, DType dtype) const {
    const std::int64_t d = p_.layout.head_dim;
    t.set_uid(uid)
        .set_dim({p_.rows, at.width / d, p_.length, d})
        .set_stride({p_.length * at.stride, d, at.stride, 1})
        .set_data_type(type_of(dtype));
  }
  void describe_stats(Tensor_attributes& t) const {
    t.set_uid(kStats)
        .set_dim({p_.rows, p_.layout.heads, p_.length, 1})
        .set_stride({p_.layout.heads * p_.length, p_.length, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
  }
  static void describe_scalar(Tensor_attributes& t, Uid uid) {
    t.set_uid(uid).set_dim({1, 1, 1, 1}).set_stride({1, 1, 1, 1}).set_data_type(fe::DataType_t::FLOAT);
  }
  template <class Options>
  Options masked(Options options) const {
    options.set_attn_scale(p_.scale());
    options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
    return options;
  }

  const Problem& p_;
  const Places& places_;
  fe::graph::Graph& graph_;
};

// One pass, ready to launch.
struct Plan {
  fe::graph::Graph graph;
  std::int64_t workspace_bytes = 0;
  std::string problem;  // why the library does not do it
};

inline std::string message_of(fe::error_t status) {
  return fmt::format("{} (code {})", status.get_message(), static_cast<int>(status.get_code()));
}

// describe(graph) adds the pass. Some refusals are thrown by the frontend, others come as a status.
template <class Describe>
std::unique_ptr<Plan> build(cudnnHandle_t handle, const Describe& describe) {
  auto plan = std::make_unique<Plan>();
  try {
    describe(plan->graph);
    if (auto built = plan->graph.build(handle, {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}); built.is_bad())
      plan->problem = message_of(built);
    else if (auto known = plan->graph.get_workspace_size(plan->workspace_bytes); known.is_bad())
      plan->problem = message_of(known);
  } catch (const std::exception& e) {
    plan->problem = fmt::format("thrown by the frontend: {}", e.what());
  }
  return plan;
}

inline void execute(const Plan& plan, cudnnHandle_t handle, Pointers& pointers, void* workspace, cudaStream_t stream) {
  if (const auto status = fe::detail::set_stream(handle, stream); status != CUDNN_STATUS_SUCCESS)
    fail_machine("cuDNN did not take the stream: {}", fe::detail::get_error_string(status));
  if (auto status = plan.graph.execute(handle, pointers, workspace); status.is_bad())
    fail_machine("cuDNN did not start: {}", message_of(status));
}

}  // namespace redline::fp8_attention
