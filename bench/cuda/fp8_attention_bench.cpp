// Would attention in eight bits pay? Times cuDNN's attention in bf16 as training has it, and cuDNN's in fp8 with what
// its casts cost, on full rows of normal numbers, and says how far fp8 is from bf16 on the same data.
//   cuda_fp8_attention_bench [MODEL ...]      default: llama-1.36b qwen3-1.8b
// A time is the median of 40 runs in a row behind one second of the same. Scales are the best there are, from results
// that are known already; training would have those of earlier steps. What the library refuses is said with its reason,
// and the rest goes on; what was measured so far stands in stderr, should a kernel take the process down.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "fp8_attention_arrays.h"
#include "fp8_attention_graphs.h"
#include "fp8_attention_table.h"
#include "ops/cuda/attention_backends.h"
#include "ops/cuda/kernels.h"
#include "perf/peak.h"

namespace redline {
namespace {

using namespace fp8_attention;

constexpr float kMargin = 1.25f;     // results of fp8 may be a little larger than those of bf16
constexpr float kScaleOfP = 256.0f;  // p is at most 1
constexpr Form kForms[] = {{DType::e5m2, DType::e5m2}, {DType::e4m3, DType::e4m3}, {DType::e5m2, DType::e4m3}};
constexpr std::size_t kLongestReason = 600;

struct Model {
  std::string name;
  Problem problem;
};
const Model kModels[] = {{"llama-1.36b", {24, 2048, {.heads = 18, .kv_heads = 18, .head_dim = 128}}},
                         {"qwen3-1.8b", {8, 2048, {.heads = 16, .kv_heads = 8, .head_dim = 128}}}};

// A model's attention, in bf16 first: the others are held against it.
class Case {
 public:
  Case(Model model, device::CudaDevice& device, cudnnHandle_t handle, double copy_rate, std::vector<Row>& rows,
       std::vector<std::string>& notes)
      : model_(std::move(model)),
        p_(model_.problem),
        device_(device),
        on_(device.launch()),
        handle_(handle),
        copy_rate_(copy_rate),
        rows_(rows),
        notes_(notes),
        arrays_(device),
        scalars_(device, arrays_) {
    const double pairs = static_cast<double>(p_.rows * p_.length) * static_cast<double>(p_.length + 1) / 2;
    flops_ = 3.5 * 4 * pairs * static_cast<double>(p_.out_width());
  }

  // Whether fp8 was refused, in either pass.
  bool run() {
    run_bf16();
    cast_qkv();
    const double forward = run_forward();
    if (std::isnan(forward)) {
      rows_.push_back({model_.name, "fp8, refused", kNone, kNone, kNone});
      return true;
    }
    const Row& bf16 = rows_[first_row_];
    Row mixed{model_.name, kMixed, forward, bf16.backward, qkv_cast_ + out_back_, flops_};
    mixed.errors.out = out_error_;
    rows_.push_back(mixed);
    bool refused = true;
    for (const Form& form : kForms) refused = !run_backward(form, forward) && refused;
    return refused;
  }

 private:
  void run_bf16() {
    const ops::HeadLayout& layout = p_.layout;
    const std::int64_t n = p_.n(), capacity = p_.rows * 32;
    std::vector<std::int32_t> ends(static_cast<std::size_t>(capacity + 1));
    for (std::int64_t i = 0; i <= capacity; ++i)
      ends[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(std::min(i, p_.rows) * p_.length);
    const Tensor offsets = arrays_.make(DType::i32, {capacity + 1});
    device_.copy_in(offsets.data, ends.data(), offsets.bytes());
    qkv_ = arrays_.normals({n, layout.qkv_width()}, 1, qkv_amax_);
    dout_ = arrays_.normals({n, p_.out_width()}, 2, dout_amax_);
    const Tensor dqkv = arrays_.make(DType::bf16, qkv_.shape), out = arrays_.make(DType::bf16, dout_.shape);
    const Tensor lse = arrays_.make(DType::f32, {layout.heads, n}), delta = arrays_.make(DType::f32, lse.shape);
    const Tensor workspace = arrays_.make(DType::u8, {ops::library_workspace_bytes(capacity)});
    const Tensor more = arrays_.make(DType::u8, {ops::library_grad_workspace_bytes(layout, n, capacity)});
    const Tensor tiles = arrays_.make(DType::u8, {ops::tile_bytes(n, capacity)});
    const ops::AttentionHow how{.by = ops::AttentionBy::cudnn, .documents = ops::Documents::full_rows};
    const float scale = p_.scale();
    const ops::Attention<Tensor> op{qkv_, offsets, out, lse, layout, scale, p_.length, tiles, workspace, how};
    const ops::AttentionGrad<Tensor> grad{qkv_, offsets, out,   lse,       dout_, dqkv, delta,
                                          more, layout,  scale, p_.length, tiles, how};
    ops::cuda::run(ops::DocumentTiles<Tensor>{offsets, tiles, n}, on_);
    Row row{model_.name, "bf16", kNone, kNone, 0, flops_};
    row.forward = median_ms([&] { ops::cuda::run(op, on_); }, on_);
    row.backward = median_ms([&] { ops::cuda::run(grad, on_); }, on_);
    progress("{}: bf16 forward {:.3f} ms, backward {:.3f} ms", model_.name, row.forward, row.backward);
    first_row_ = rows_.size();
    rows_.push_back(row);
    out_host_ = arrays_.on_host<std::uint16_t>(out);
    dqkv_host_ = arrays_.on_host<std::uint16_t>(dqkv);
    const Places at(p_, false);
    dq_amax_ = largest(dqkv_host_, at.q, n);
    dk_amax_ = largest(dqkv_host_, at.k, n);
    dv_amax_ = largest(dqkv_host_, at.v, n);
  }

  // By the op that training casts with, which records the largest magnitude as well.
  double cast(const Tensor& x, const Tensor& to, float scale) {
    const Tensor amax = arrays_.make(DType::f32, {1});
    device_.fill(amax.data, 0, amax.bytes());
    const ops::Quantize<Tensor> op{x, {.rows = to, .columns = {}, .scale = arrays_.scale(scale), .amax = amax}};
    return median_ms([&] { ops::cuda::run(op, on_); }, on_);
  }
  // Of so many numbers from eight bits to bf16: no op does it, so at the rate of a large copy.
  double cast_back(std::int64_t elements) const { return 1e3 * 3.0 * static_cast<double>(elements) / copy_rate_; }

  void cast_qkv() {
    const float scale = ops::scale_for(qkv_amax_, kE4m3.largest);
    qkv8_ = arrays_.make(DType::e4m3, qkv_.shape);
    dqkv8_ = arrays_.make(DType::e5m2, qkv_.shape);
    out8_ = arrays_.make(DType::e4m3, dout_.shape);
    dout8_ = arrays_.make(DType::e5m2, dout_.shape);
    stats_ = arrays_.make(DType::f32, {p_.rows, p_.layout.heads, p_.length});
    qkv_cast_ = cast(qkv_, qkv8_, scale);
    for (const Uid uid : {kInverseQ, kInverseK, kInverseV}) scalars_.set(uid, 1 / scale);
    out_back_ = cast_back(out8_.elements());
    dqkv_back_ = cast_back(qkv8_.elements());
    // The same bytes once more, one array behind the other.
    apart_ = arrays_.make(DType::e4m3, qkv_.shape);
    const Places from(p_, false), to(p_, true);
    const auto move = [&](const Stretch& a, const Stretch& b) {
      REDLINE_CUDA(cudaMemcpy2DAsync(apart_.as<std::uint8_t>() + b.offset, static_cast<std::size_t>(b.stride),
                                     qkv8_.as<std::uint8_t>() + a.offset, static_cast<std::size_t>(a.stride),
                                     static_cast<std::size_t>(a.width), static_cast<std::size_t>(p_.n()),
                                     cudaMemcpyDeviceToDevice, on_.stream));
    };
    move(from.q, to.q), move(from.k, to.k), move(from.v, to.v);
    device_.wait();
    notes_.push_back(
        fmt::format("{}, casts: q, k and v to eight bits {:.3f} ms, measured; out to bf16 {:.3f} ms and dq, "
                    "dk and dv to bf16 {:.3f} ms, estimated from bytes",
                    model_.name, qkv_cast_, out_back_, dqkv_back_));
    progress("{}", notes_.back());
  }

  Pointers pointers(const Places& places) const {
    const auto put = [](const Tensor& t, const Stretch& at) { return t.as<std::uint8_t>() + at.offset; };
    const Tensor& qkv = places.apart ? apart_ : qkv8_;
    Pointers all{{kQ, put(qkv, places.q)},     {kK, put(qkv, places.k)},     {kV, put(qkv, places.v)},
                 {kOut, out8_.data},           {kDout, dout8_.data},         {kStats, stats_.data},
                 {kDq, put(dqkv8_, places.q)}, {kDk, put(dqkv8_, places.k)}, {kDv, put(dqkv8_, places.v)}};
    scalars_.put(all);
    return all;
  }

  // The pass in the first way that the library takes, and what `use` makes of it: use(places, launch of one run).
  template <class Describe, class Use>
  bool first_that_runs(const std::string& what, const Describe& describe, const Use& use) {
    for (const bool apart : {false, true}) {
      const Places places(p_, apart);
      std::string problem;
      try {
        const auto plan = build(handle_, [&](fe::graph::Graph& graph) {
          GraphOfPass pass(p_, places, graph);
          describe(pass);
        });
        problem = plan->problem;
        if (problem.empty()) {
          const auto workspace = device_.allocate(std::max<std::int64_t>(plan->workspace_bytes, 256));
          Pointers all = pointers(places);
          use(places, [&] { execute(*plan, handle_, all, workspace->data(), on_.stream); });
          device_.wait();
          if (apart) notes_.push_back(fmt::format("{}, {}: {}", model_.name, what, places.name()));
          return true;
        }
      } catch (const std::exception& e) {
        problem = e.what();
      }
      progress("{}, {} with {}: refused: {}", model_.name, what, places.name(), problem);
      std::ranges::replace(problem, '\n', ' ');
      if (problem.size() > kLongestReason) problem = problem.substr(0, kLongestReason) + "... (all of it in stderr)";
      notes_.push_back(fmt::format("{}, {} with {}: refused: {}", model_.name, what, places.name(), problem));
    }
    return false;
  }

  double run_forward() {
    double ms = kNone;
    const Stretch whole{0, p_.out_width(), p_.out_width()};
    const float amax = largest(out_host_, whole, p_.n());
    const float scale = ops::scale_for(kMargin * amax, kE4m3.largest);
    scalars_.set_pair(kScaleOut, kInverseOut, scale);
    first_that_runs(
        "fp8 forward", [](GraphOfPass& g) { g.forward(); },
        [&](const Places&, const auto& once) {
          // A kernel that lets its maximum lag has larger p than 1 meanwhile, and wants a smaller scale.
          const auto error_with = [&](float scale_of_p) {
            scalars_.set_pair(kScaleP, kInverseP, scale_of_p);
            once();
            const double error = difference(arrays_.on_host<std::uint8_t>(out8_), whole, DType::e4m3, 1 / scale,
                                            out_host_, whole, p_.n());
            progress("{}: fp8 forward with {:g} as the scale of p: error of out {:.4f}", model_.name, scale_of_p,
                     error);
            return error;
          };
          float best = kScaleOfP;
          out_error_ = error_with(best);
          for (const float other : {32.0f, 4.0f}) {
            const double error = error_with(other);
            if (better(error, out_error_)) out_error_ = error, best = other;
          }
          scalars_.set_pair(kScaleP, kInverseP, best);
          ms = median_ms(once, on_);
          notes_.push_back(
              fmt::format("{}, fp8 forward: scale of p {:g}; largest of p {:g} and of out {:g}, of out in bf16 "
                          "{:g}",
                          model_.name, best, scalars_.get(kAmaxP), scalars_.get(kAmaxOut), amax));
        });
    progress("{}: fp8 forward {:.3f} ms", model_.name, ms);
    return ms;
  }

  bool run_backward(const Form& form, double forward) {
    Row row{model_.name, fmt::format("fp8, dO {}, dQKV {}", name_of(form.dout), name_of(form.dqkv)), forward};
    row.flops = flops_;
    row.errors.out = out_error_;
    const float dout_scale = ops::scale_for(dout_amax_, fp8_format(form.dout).largest);
    dout8_.dtype = form.dout;
    const double dout_cast = cast(dout_, dout8_, dout_scale);
    scalars_.set(kInverseDout, 1 / dout_scale);
    const Places reference(p_, false);
    const auto scale_of = [&](float amax) { return ops::scale_for(kMargin * amax, fp8_format(form.dqkv).largest); };
    const float scale_dq = scale_of(dq_amax_), scale_dk = scale_of(dk_amax_), scale_dv = scale_of(dv_amax_);
    scalars_.set(kScaleDq, scale_dq), scalars_.set(kScaleDk, scale_dk), scalars_.set(kScaleDv, scale_dv);
    const auto use = [&](const Places& places, const auto& once) {
      const auto errors_with = [&](float scale_of_p, float scale_of_ds) {
        scalars_.set_pair(kScaleP, kInverseP, scale_of_p);
        scalars_.set_pair(kScaleDs, kInverseDs, scale_of_ds);
        once();
        const std::vector<std::uint8_t> got = arrays_.on_host<std::uint8_t>(dqkv8_);
        const auto error = [&](const Stretch& at, const Stretch& reference_at, float scale) {
          return difference(got, at, form.dqkv, 1 / scale, dqkv_host_, reference_at, p_.n());
        };
        const Errors e{out_error_, error(places.q, reference.q, scale_dq), error(places.k, reference.k, scale_dk),
                       error(places.v, reference.v, scale_dv)};
        progress("{}: {}: with {:g} and {:g} as the scales of p and dS: errors of dq {:.4f}, dk {:.4f}, dv {:.4f}",
                 model_.name, row.precision, scale_of_p, scale_of_ds, e.dq, e.dk, e.dv);
        return e;
      };
      // The largest of dS does not depend on its scale. Other scales are tried in case the kernel means something else.
      errors_with(kScaleOfP, 1);
      const float amax = scalars_.get(kAmaxDs);
      const float scale_of_ds = ops::scale_for(kMargin * amax, fp8_format(form.dout).largest);
      const float tried[][2] = {{kScaleOfP, scale_of_ds}, {kScaleOfP, scale_of_ds / 16}, {32.0f, scale_of_ds}};
      const float* best = nullptr;
      for (const auto& pair : tried) {
        const Errors e = errors_with(pair[0], pair[1]);
        if (best && !better(e.of_gradients(), row.errors.of_gradients())) continue;
        row.errors = e;
        best = pair;
      }
      scalars_.set_pair(kScaleP, kInverseP, best[0]);
      scalars_.set_pair(kScaleDs, kInverseDs, best[1]);
      row.backward = median_ms(once, on_);
      notes_.push_back(
          fmt::format("{}, {}: dO to eight bits {:.3f} ms, measured; scales of p {:g} and dS {:g}; largest "
                      "of dS {:g}, of dQ {:g}, in bf16 {:g}",
                      model_.name, row.precision, dout_cast, best[0], best[1], amax, scalars_.get(kAmaxDq), dq_amax_));
    };
    const bool runs = first_that_runs(
        row.precision + ", backward", [&](GraphOfPass& g) { g.backward(form); }, use);
    row.casts = runs ? qkv_cast_ + dout_cast + dqkv_back_ : kNone;
    progress("{}: {}: backward {:.3f} ms", model_.name, row.precision, row.backward);
    rows_.push_back(row);
    return runs;
  }

  const Model model_;
  const Problem& p_;
  device::CudaDevice& device_;
  const Launch& on_;
  cudnnHandle_t handle_;
  double copy_rate_, flops_ = 0;
  std::vector<Row>& rows_;
  std::vector<std::string>& notes_;
  std::size_t first_row_ = 0;
  Arrays arrays_;
  Scalars scalars_;
  Tensor qkv_, dout_, qkv8_, apart_, out8_, dout8_, dqkv8_, stats_;
  float qkv_amax_ = 0, dout_amax_ = 0, dq_amax_ = 0, dk_amax_ = 0, dv_amax_ = 0;
  std::vector<std::uint16_t> out_host_, dqkv_host_;
  double qkv_cast_ = 0, out_back_ = 0, dqkv_back_ = 0, out_error_ = kNone;
};

int run(const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (std::ranges::none_of(kModels, [&](const Model& m) { return m.name == name; })) {
      progress("no model {}; there are llama-1.36b and qwen3-1.8b", name);
      return 2;
    }
  if (device::cuda_status().cards.empty()) {
    std::puts("no GPU");
    return 0;
  }
  device::CudaDevice device;
  if (const std::string problem = ops::cuda::cudnn_problem(); !problem.empty()) {
    std::puts(problem.c_str());
    return 1;
  }
  cudnnHandle_t handle = nullptr;
  if (const auto status = fe::detail::create_handle(&handle); status != CUDNN_STATUS_SUCCESS) {
    std::printf("cuDNN does not start: %s\n", fe::detail::get_error_string(status));
    return 1;
  }
  const double copy_rate = perf::measure_copy_rate(device);
  std::vector<Row> rows;
  std::vector<std::string> notes, cases;
  const auto run_case = [&](const Model& model) {
    cases.push_back(model.name);
    try {
      return Case(model, device, handle, copy_rate, rows, notes).run();
    } catch (const std::exception& e) {
      notes.push_back(fmt::format("{}: {}", model.name, e.what()));
      progress("{}", notes.back());
      return true;
    }
  };
  for (const Model& model : kModels) {
    if (!names.empty() && std::ranges::find(names, model.name) == names.end()) continue;
    ops::HeadLayout layout = model.problem.layout;
    if (!run_case(model) || layout.heads == layout.kv_heads) continue;
    layout.kv_heads = layout.heads;  // perhaps it is grouped queries that were refused
    run_case({fmt::format("{} with {} kv heads", model.name, layout.heads),
              {model.problem.rows, model.problem.length, layout}});
  }
  std::printf("%s, cuDNN %s, a large copy %.2f TB/s; causal, full rows of normal numbers; medians of %d runs\n\n",
              device.name().c_str(), ops::cuda::cudnn_version().c_str(), 1e-12 * copy_rate, kRuns);
  print_table(rows);
  std::puts(
      "\nTFLOP/s is of the sum, casts in it. Errors are root mean square against bf16 on the same data. Casts are "
      "passes of their own:\nto eight bits by training's op, measured; back to bf16 3 bytes a number at the rate of "
      "a large copy, estimated. The output of fp8\nstays in eight bits, except before a backward pass of bf16.\n");
  for (const std::string& note : notes) std::printf("- %s\n", note.c_str());
  std::puts("");
  for (const std::string& name : cases) std::puts(verdict(name, rows).c_str());
  return 0;
}

}  // namespace
}  // namespace redline

int main(int argc, char** argv) { return redline::run(std::vector<std::string>(argv + 1, argv + argc)); }
