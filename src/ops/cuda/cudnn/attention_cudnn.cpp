// Attention by cuDNN, through its header-only frontend. The library is loaded when it is first asked for: a program
// that was built with it runs without it. A plan is built once a case (about half a second) and then only launched; all
// that changes from batch to batch is read from device memory, so a captured graph stays true.
#include <dlfcn.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/dtype.h"
#include "base/words.h"
#include "device/cuda/handles.h"
#include "ops/cuda/attention_backends.h"
#include "ops/cuda/cudnn/frontend.h"

void* cudnn_frontend::cudnn_dlhandle = nullptr;  // the frontend calls the library through it

namespace redline::ops::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using TensorPointer = std::shared_ptr<Tensor_attributes>;

// Rows of one token are refused; a row that is longer than any document costs nothing.
constexpr std::int64_t kShortestRow = 64;
constexpr std::size_t kOldestVersion = 90600;  // ragged batches with grouped queries, backward

enum Uid : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kDout,
  kDq,
  kDk,
  kDv,
  kLengths,
  kQkvOffsets,
  kOutOffsets,
  kLseOffsets
};

class Library {
 public:
  Library() {
    fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_GLOBAL);
    if (!fe::cudnn_dlhandle) {
      problem_ = "libcudnn.so.9 was not found (LD_LIBRARY_PATH names where else to look; see " +
                 std::string(troubleshooting::kCudnn) + ")";
      return;
    }
    version_ = fe::detail::get_backend_version();
    if (version_ < kOldestVersion) problem_ = fmt::format("cuDNN {} is older than 9.6", version());
  }
  std::string version() const {
    return version_ == 0 ? "" : fmt::format("{}.{}.{}", version_ / 10000, version_ / 100 % 100, version_ % 100);
  }
  const std::string& problem() const { return problem_; }

 private:
  std::size_t version_ = 0;
  std::string problem_;
};

Library& library() {
  static Library one;
  return one;
}

// One pass of one case, ready to launch.
struct CudnnPlan {
  fe::graph::Graph graph;
  std::int64_t workspace_bytes = 0;
  std::string problem;  // why cuDNN does not do it
};

// Builds the graph of a case. Queries, keys and values are stretches of the rows of one array, told apart by their
// strides alone.
class GraphOfCase {
 public:
  GraphOfCase(const AttentionCase& c, fe::graph::Graph& graph)
      : c_(c),
        graph_(graph),
        batch_(c.full_rows() ? c.n / c.longest : c.capacity),
        length_(c.full_rows() ? c.longest : std::max(c.longest, kShortestRow)) {
    graph_.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (c.full_rows()) return;
    lengths_ = integers("lengths", kLengths, batch_);
    qkv_offsets_ = integers("offsets of qkv", kQkvOffsets, batch_ + 1);
    out_offsets_ = integers("offsets of out", kOutOffsets, batch_ + 1);
    lse_offsets_ = integers("offsets of lse", kLseOffsets, batch_ + 1);
  }

  void forward() {
    auto options = masked(fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true));
    const auto [out, lse] = graph_.sdpa(heads("q", kQ, c_.layout.heads), heads("k", kK, c_.layout.kv_heads),
                                        heads("v", kV, c_.layout.kv_heads), options);
    out->set_output(true);
    describe_out(*out, kOut);
    lse->set_output(true).set_data_type(fe::DataType_t::FLOAT);
    describe_lse(*lse);
  }

  void backward() {
    auto options = masked(fe::graph::SDPA_backward_attributes().set_name("attention gradient"));
    if (!c_.full_rows()) options.set_max_total_seq_len_q(c_.n).set_max_total_seq_len_kv(c_.n);
    Tensor_attributes out, dout, lse;
    describe_out(out, kOut);
    describe_out(dout, kDout);
    describe_lse(lse);
    lse.set_data_type(fe::DataType_t::FLOAT);
    const auto [dq, dk, dv] =
        graph_.sdpa_backward(heads("q", kQ, c_.layout.heads), heads("k", kK, c_.layout.kv_heads),
                             heads("v", kV, c_.layout.kv_heads), graph_.tensor(out.set_name("out")),
                             graph_.tensor(dout.set_name("dout")), graph_.tensor(lse.set_name("lse")), options);
    describe_heads(dq->set_output(true), kDq, c_.layout.heads);
    describe_heads(dk->set_output(true), kDk, c_.layout.kv_heads);
    describe_heads(dv->set_output(true), kDv, c_.layout.kv_heads);
  }

 private:
  TensorPointer integers(const char* name, Uid uid, std::int64_t count) {
    return graph_.tensor(Tensor_attributes()
                             .set_name(name)
                             .set_uid(uid)
                             .set_dim({count, 1, 1, 1})
                             .set_stride({1, 1, 1, 1})
                             .set_data_type(fe::DataType_t::INT32));
  }
  TensorPointer heads(const char* name, Uid uid, std::int64_t count) {
    Tensor_attributes t;
    describe_heads(t.set_name(name), uid, count);
    return graph_.tensor(t);
  }
  void describe_heads(Tensor_attributes& t, Uid uid, std::int64_t count) const {
    const std::int64_t width = c_.layout.qkv_width();
    t.set_uid(uid)
        .set_dim({batch_, count, length_, c_.layout.head_dim})
        .set_stride({length_ * width, c_.layout.head_dim, width, 1});
    if (qkv_offsets_) t.set_ragged_offset(qkv_offsets_);
  }
  void describe_out(Tensor_attributes& t, Uid uid) const {
    const std::int64_t width = c_.layout.heads * c_.layout.head_dim;
    t.set_uid(uid)
        .set_dim({batch_, c_.layout.heads, length_, c_.layout.head_dim})
        .set_stride({length_ * width, c_.layout.head_dim, width, 1});
    if (out_offsets_) t.set_ragged_offset(out_offsets_);
  }
  void describe_lse(Tensor_attributes& t) const {
    const bool by_rows = c_.full_rows() && c_.backward;  // cuDNN before 9.26 takes no other strides there
    t.set_uid(kLse).set_dim({batch_, c_.layout.heads, length_, 1});
    if (by_rows)
      t.set_stride({c_.layout.heads * length_, length_, 1, 1});
    else
      t.set_stride({length_, c_.n, 1, 1});
    if (lse_offsets_) t.set_ragged_offset(lse_offsets_);
  }
  template <class Options>
  Options masked(Options options) const {
    options.set_attn_scale(c_.scale);
    options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
    if (c_.window != kNoWindow) options.set_diagonal_band_left_bound(static_cast<int>(c_.window));
    if (lengths_) options.set_padding_mask(true).set_seq_len_q(lengths_).set_seq_len_kv(lengths_);
    return options;
  }

  const AttentionCase& c_;
  fe::graph::Graph& graph_;
  std::int64_t batch_, length_;
  TensorPointer lengths_, qkv_offsets_, out_offsets_, lse_offsets_;
};

std::unique_ptr<CudnnPlan> build(const AttentionCase& c, cudnnHandle_t handle) {
  auto plan = std::make_unique<CudnnPlan>();
  if (!handle) {
    plan->problem = fmt::format("cuDNN {} does not start on this card", library().version());
    return plan;
  }
  GraphOfCase graph(c, plan->graph);
  c.backward ? graph.backward() : graph.forward();
  if (auto status = plan->graph.build(handle, {fe::HeurMode_t::A}); status.is_bad())
    plan->problem = fmt::format("cuDNN {}: {}", library().version(), status.get_message());
  else
    plan->workspace_bytes = plan->graph.get_workspace_size();
  return plan;
}

// The library's handle on a card and all plans made with it, one thread at a time. The handle is made with the first
// plan, since that takes long, and stays with the process: the library may be gone by the time the card is closed.
class CudnnPlans {
 public:
  const CudnnPlan& of(const AttentionCase& c) {
    const std::lock_guard lock(mutex_);
    return find_or_build(c);
  }

  template <class Work>
  void with(const AttentionCase& c, const Work& work) {  // work(plan, handle)
    const std::lock_guard lock(mutex_);
    const CudnnPlan& plan = find_or_build(c);
    work(plan, handle_);
  }

 private:
  const CudnnPlan& find_or_build(const AttentionCase& c) {
    if (!std::exchange(begun_, true) && fe::detail::create_handle(&handle_) != CUDNN_STATUS_SUCCESS) handle_ = nullptr;
    std::unique_ptr<CudnnPlan>& plan = plans_[c];
    if (!plan) plan = build(c, handle_);
    return *plan;
  }

  std::mutex mutex_;
  bool begun_ = false;
  cudnnHandle_t handle_ = nullptr;
  std::map<AttentionCase, std::unique_ptr<CudnnPlan>> plans_;
};
const CudnnPlan& plan_of(const AttentionCase& c) { return c.own->of<CudnnPlans>().of(c); }

// Bytes of lse as full rows want it, after the plan's own workspace.
std::int64_t lse_bytes(const AttentionCase& c) { return 4 * c.n * c.layout.heads + 256; }

using Pointers = std::unordered_map<std::int64_t, void*>;

void put_heads(Pointers& pointers, const Tensor& qkv, const HeadLayout& layout, Uid q, Uid k, Uid v) {
  auto* const row = qkv.as<std::uint16_t>();
  pointers[q] = row;
  pointers[k] = row + layout.heads * layout.head_dim;
  pointers[v] = row + (layout.heads + layout.kv_heads) * layout.head_dim;
}

std::int64_t offset_bytes(const AttentionCase& c) {
  return c.full_rows() ? 0 : aligned(ragged_offset_bytes(c.capacity));
}

// Offsets stand at the start of the workspace; the plan's own begins after them.
std::byte* put_offsets(Pointers& pointers, const AttentionCase& c, const Tensor& doc_offsets, const Tensor& workspace,
                       const Tensor& rows, const Tensor& lse, const Launch& launch) {
  std::byte* const memory = workspace.as<std::byte>();
  if (c.full_rows()) return memory;
  const RaggedOffsets offsets(memory, c.capacity);
  prepare_ragged(doc_offsets, c.layout, offsets, rows, lse, launch);
  pointers[kLengths] = offsets.lengths;
  pointers[kQkvOffsets] = offsets.qkv;
  pointers[kOutOffsets] = offsets.out;
  pointers[kLseOffsets] = offsets.lse;
  return memory + offset_bytes(c);
}

void execute(const AttentionCase& c, Pointers& pointers, void* workspace, const Launch& launch) {
  c.own->of<CudnnPlans>().with(c, [&](const CudnnPlan& plan, cudnnHandle_t handle) {
    REDLINE_CHECK(plan.problem.empty(), "{}", plan.problem);
    if (fe::detail::set_stream(handle, launch.stream) != CUDNN_STATUS_SUCCESS)
      fail_machine("attention: cuDNN did not take the stream");
    if (auto status = plan.graph.execute(handle, pointers, workspace); status.is_bad())
      fail_machine("attention: cuDNN {}: {}", library().version(), status.get_message());
  });
}

}  // namespace

std::string cudnn_version() { return library().version(); }
std::string cudnn_problem() { return library().problem(); }

std::string cudnn_why_not(const AttentionCase& c) {
  if (c.dtype != DType::bf16) return "it is asked for bf16 alone";
  if (c.backward && c.how.bits == Bits::repeat) return "its backward pass adds in the order in which blocks finish";
  if (c.longest < 1) return "the longest document is not known";
  if (c.n * c.layout.qkv_width() > std::numeric_limits<std::int32_t>::max()) return "offsets pass 32 bits";
  if (!library().problem().empty()) return library().problem();
  const CudnnPlan& plan = plan_of(c);
  if (!plan.problem.empty()) return plan.problem;
  const std::int64_t lse = c.backward && c.full_rows() ? lse_bytes(c) : 0;
  if (plan.workspace_bytes + offset_bytes(c) + lse > c.workspace_bytes)
    return fmt::format("it needs {} MiB of workspace and has {}", plan.workspace_bytes >> 20, c.workspace_bytes >> 20);
  return "";
}

void cudnn_forward(const Attention<Tensor>& op, const Launch& launch) {
  Pointers pointers;
  put_heads(pointers, op.qkv, op.layout, kQ, kK, kV);
  pointers[kOut] = op.out.data;
  pointers[kLse] = op.lse.data;
  const AttentionCase c = case_of(op, launch);
  execute(c, pointers, put_offsets(pointers, c, op.doc_offsets, op.workspace, op.out, op.lse, launch), launch);
}

void cudnn_backward(const AttentionGrad<Tensor>& op, const Launch& launch) {
  Pointers pointers;
  put_heads(pointers, op.qkv, op.layout, kQ, kK, kV);
  put_heads(pointers, op.dqkv, op.layout, kDq, kDk, kDv);
  pointers[kOut] = op.out.data;
  pointers[kDout] = op.dout.data;
  pointers[kLse] = op.lse.data;
  const AttentionCase c = case_of(op, launch);
  std::byte* const workspace = put_offsets(pointers, c, op.doc_offsets, op.workspace, op.dqkv, {}, launch);
  if (c.full_rows()) {
    std::byte* const by_rows = workspace + aligned(plan_of(c).workspace_bytes);
    lse_by_rows(op.lse, c.longest, reinterpret_cast<float*>(by_rows), launch);
    pointers[kLse] = by_rows;
  }
  execute(c, pointers, workspace, launch);
}

}  // namespace redline::ops::cuda
