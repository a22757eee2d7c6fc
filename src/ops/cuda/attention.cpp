// Chooses who computes attention on the GPU. The kernels are in attention_hopper*.cu, attention_flash*.cu,
// attention_reference.cu and cudnn/.
#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "base/log.h"
#include "device/cuda/stopwatch.h"
#include "ops/cuda/attention_backends.h"
#include "ops/cuda/kernels.h"

namespace redline::ops::cuda {
namespace {

// Where none may be timed, the first that can is taken.
constexpr AttentionBackend kBackends[] = {
    {"cudnn", cudnn_why_not, cudnn_forward, cudnn_backward},
    {"hopper", hopper_why_not, hopper_forward, hopper_backward},
    {"flash", flash_why_not, flash_forward, flash_backward},
    {"reference", reference_why_not, reference_forward, reference_backward},
};
constexpr int kTimedRuns = 3;

void launch_with(const AttentionBackend& b, const Attention<Tensor>& op, const Launch& launch) {
  b.forward(op, launch);
}
void launch_with(const AttentionBackend& b, const AttentionGrad<Tensor>& op, const Launch& launch) {
  b.backward(op, launch);
}

std::string describe(const AttentionCase& c) {
  return fmt::format("{} with {} heads, {} key/value heads and head_dim {} on compute capability {}.{}",
                     name_of(c.dtype), c.layout.heads, c.layout.kv_heads, c.layout.head_dim, c.major, c.minor);
}

std::string describe_pass(const AttentionCase& c) {
  return fmt::format("{} of {}", c.backward ? "backward" : "forward", c.full_rows ? "full rows" : "packed documents");
}

// The choices of this process, which uses one card. A pass may run again and again on the same operands with the same
// result, so the batch at hand is what candidates are timed on.
class Choices {
 public:
  template <class Op>
  const AttentionBackend& of(const Op& op, const Launch& launch, std::string_view backend) {
    const AttentionCase c = case_of(op, launch);
    const Key key{backend, c.backward, c.dtype,   c.layout.heads, c.layout.kv_heads, c.layout.head_dim,
                  c.n,     c.capacity, c.longest, c.full_rows,    c.deterministic,   c.workspace_bytes,
                  c.scale};
    const std::lock_guard lock(mutex_);
    if (const auto it = chosen_.find(key); it != chosen_.end()) return *it->second;
    return *(chosen_[key] = backend == "auto" ? choose(op, c, launch) : &named(c, backend));
  }

 private:
  using Key = std::tuple<std::string, bool, DType, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                         std::int64_t, bool, bool, std::int64_t, float>;

  // Heads that flash is not built for are the reference's.
  static const AttentionBackend& named(const AttentionCase& c, std::string_view name) {
    const std::string why_not = name == "flash" ? flash_why_not(c) : "";
    if (why_not.empty() || !reference_why_not(c).empty()) return find_attention(c, name);
    log::note("attention {}: reference; not flash: {}", describe_pass(c), why_not);
    return find_attention(c, "reference");
  }

  template <class Op>
  const AttentionBackend* choose(const Op& op, const AttentionCase& c, const Launch& launch) {
    std::vector<const AttentionBackend*> able;
    std::string refusals;
    for (const AttentionBackend& backend : kBackends) {
      const std::string why_not = backend.why_not(c);
      if (why_not.empty())
        able.push_back(&backend);
      else
        refusals += fmt::format("; not {}: {}", backend.name, why_not);
    }
    if (able.empty()) fail_user("no attention backend can do {}{}", describe(c), refusals);
    if (able.size() > 1) able.pop_back();  // the slowest by far
    // Which one is fastest may change from run to run, and with it the bits: the first is taken, for packed documents the
    // first of our own, since cuDNN is several times slower where they are short.
    if (c.deterministic && !c.full_rows && able.size() > 1 && able[0]->name == "cudnn") able.erase(able.begin());
    if (able.size() == 1 || c.deterministic || device::cuda::capturing(launch.stream)) {
      log::note("attention {}: {}{}", describe_pass(c), able[0]->name, refusals);
      return able[0];
    }
    const AttentionBackend* fastest = nullptr;
    double best = std::numeric_limits<double>::infinity();
    std::string times;
    for (const AttentionBackend* backend : able) {
      const double seconds = time(*backend, op, launch);
      times += fmt::format("{}{} {:.3f} ms", times.empty() ? "" : ", ", backend->name, 1e3 * seconds);
      if (seconds < best) {
        best = seconds;
        fastest = backend;
      }
    }
    log::note("attention {}: {} (measured: {}){}", describe_pass(c), fastest->name, times, refusals);
    return fastest;
  }

  template <class Op>
  static double time(const AttentionBackend& backend, const Op& op, const Launch& launch) {
    launch_with(backend, op, launch);  // loads its kernels
    const device::cuda::Stopwatch watch(launch.stream);
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kTimedRuns; ++i) {
      watch.start();
      launch_with(backend, op, launch);
      best = std::min(best, watch.stop());
    }
    return best;
  }

  std::mutex mutex_;
  std::map<Key, const AttentionBackend*> chosen_;
};

Choices& choices() {
  static Choices all;
  return all;
}

template <class Op>
AttentionCase common_case(const Op& op, const Launch& launch) {
  AttentionCase c;
  c.dtype = op.qkv.dtype;
  c.layout = op.layout;
  c.scale = op.scale;
  c.major = launch.major;
  c.minor = launch.minor;
  c.n = op.qkv.rows();
  c.capacity = op.doc_offsets.elements() - 1;
  c.longest = op.longest;
  c.full_rows = launch.full_rows;
  c.deterministic = launch.deterministic;
  return c;
}

template <class Op>
void run_with(const Op& op, const Launch& launch, std::string_view backend) {
  launch_with(choices().of(op, launch, backend), op, launch);
}

}  // namespace

AttentionCase case_of(const Attention<Tensor>& op, const Launch& launch) {
  AttentionCase c = common_case(op, launch);
  c.workspace_bytes = launch.workspace_bytes;
  return c;
}

AttentionCase case_of(const AttentionGrad<Tensor>& op, const Launch& launch) {
  AttentionCase c = common_case(op, launch);
  c.backward = true;
  c.workspace_bytes = op.workspace.data ? op.workspace.bytes() : 0;
  return c;
}

std::span<const AttentionBackend> attention_backends() { return kBackends; }

const AttentionBackend& find_attention(const AttentionCase& c, std::string_view name) {
  std::string names = "auto";
  for (const AttentionBackend& backend : kBackends) {
    names += fmt::format(", {}", backend.name);
    if (name != backend.name) continue;
    const std::string why_not = backend.why_not(c);
    if (why_not.empty()) return backend;
    fail_user("attention backend \"{}\" cannot do {}: {}; use kernels.attention = \"auto\"", name, describe(c),
              why_not);
  }
  fail_user("there is no attention backend \"{}\"; there are: {}", name, names);
}

void run(const Attention<Tensor>& op, const Launch& launch, std::string_view backend) { run_with(op, launch, backend); }
void run(const AttentionGrad<Tensor>& op, const Launch& launch, std::string_view backend) {
  run_with(op, launch, backend);
}
void run(const Attention<Tensor>& op, const Launch& launch) { run_with(op, launch, launch.attention); }
void run(const AttentionGrad<Tensor>& op, const Launch& launch) { run_with(op, launch, launch.attention); }

}  // namespace redline::ops::cuda
