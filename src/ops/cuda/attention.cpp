// Chooses who computes attention on the GPU. The kernels are in attention_hopper.cu, attention_flash.cu,
// attention_reference.cu and cudnn/.
#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "base/log.h"
#include "device/cuda/handles.h"
#include "ops/cuda/attention_backends.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/start_budgets.h"

namespace redline::ops::cuda {
namespace {

// Where none may be timed, the first that can is taken.
constexpr AttentionBackend kBackends[] = {
    {AttentionBy::cudnn, cudnn_why_not, cudnn_forward, cudnn_backward},
    {AttentionBy::hopper, hopper_why_not, hopper_forward, hopper_backward},
    {AttentionBy::flash, flash_why_not, flash_forward, flash_backward},
    {AttentionBy::reference, reference_why_not, reference_forward, reference_backward},
};

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
  const std::string window = c.window == kNoWindow ? "" : fmt::format(" with a window of {}", c.window);
  return fmt::format("{} of {}{}", c.backward ? "backward" : "forward",
                     c.full_rows() ? "full rows" : "packed documents", window);
}

// The choices on a card. A pass may run again and again on the same operands with the same result, so the batch at hand
// is what candidates are timed on.
class Choices {
 public:
  template <class Op>
  const AttentionBackend& of(const Op& op, const Launch& launch) {
    const AttentionCase c = case_of(op, launch);
    const std::lock_guard lock(mutex_);
    const AttentionBackend*& chosen = chosen_[c];
    if (!chosen)
      launch.own->of<StartBudgets>().choosing.spend(
          [&] { chosen = c.how.by == AttentionBy::automatic ? choose(op, c, launch) : &named(c); });
    return *chosen;
  }

 private:
  // Heads that flash is not built for are the reference's.
  static const AttentionBackend& named(const AttentionCase& c) {
    const std::string why_not = c.how.by == AttentionBy::flash ? flash_why_not(c) : "";
    if (why_not.empty() || !reference_why_not(c).empty()) return find_attention(c, c.how.by);
    log::note("attention {}: reference; not flash: {}", describe_pass(c), why_not);
    return find_attention(c, AttentionBy::reference);
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
        refusals += fmt::format("; not {}: {}", name_of(backend.by), why_not);
    }
    if (able.empty()) fail_user("no attention backend can do {}{}", describe(c), refusals);
    if (able.size() > 1) able.pop_back();  // the slowest by far
    // The fastest may change from run to run, and with it the bits. So the first is taken: for packed documents the
    // first of our own, since cuDNN is several times slower where they are short.
    const bool repeat = c.how.bits == Bits::repeat;
    if (repeat && !c.full_rows() && able.size() > 1 && able[0]->by == AttentionBy::cudnn) able.erase(able.begin());
    if (able.size() == 1 || repeat || device::cuda::capturing(launch.stream)) {
      log::note("attention {}: {}{}", describe_pass(c), name_of(able[0]->by), refusals);
      return able[0];
    }
    const device::cuda::Stopwatch watch(launch.stream);
    const TimedChoice choice =
        fastest_within(launch.own->of<StartBudgets>().attention, able.size(), [&](std::size_t i) {
          watch.start();
          launch_with(*able[i], op, launch);
          return watch.stop();
        });
    std::string times, untried;
    for (std::size_t i = 0; i < able.size(); ++i) {
      const std::string_view name = name_of(able[i]->by);
      if (i < choice.seconds.size())
        times += fmt::format("{}{} {:.3f} ms", times.empty() ? "" : ", ", name, 1e3 * choice.seconds[i]);
      else
        untried += fmt::format("{}{}", untried.empty() ? "" : ", ", name);
    }
    // Nothing was measured: as where bits repeat.
    const bool own = choice.seconds.empty() && !c.full_rows() && able[0]->by == AttentionBy::cudnn;
    const AttentionBackend* const taken = able[own ? 1 : choice.fastest];
    log::note("attention {}: {} ({}{}){}", describe_pass(c), name_of(taken->by),
              times.empty() ? "not measured" : "measured: " + times,
              untried.empty() ? "" : fmt::format("; not tried within {:g} s: {}", kAttentionBudget, untried), refusals);
    return taken;
  }

  std::mutex mutex_;
  std::map<AttentionCase, const AttentionBackend*> chosen_;
};

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
  c.window = op.longest > 0 && op.window >= op.longest ? kNoWindow : op.window;
  c.how = op.how;
  c.workspace_bytes = op.workspace.present() ? op.workspace.bytes() : 0;
  c.own = launch.own;
  return c;
}

template <class Op>
void run_chosen(const Op& op, const Launch& launch) {
  launch_with(launch.own->of<Choices>().of(op, launch), op, launch);
}

}  // namespace

AttentionCase case_of(const Attention<Tensor>& op, const Launch& launch) { return common_case(op, launch); }
AttentionCase case_of(const AttentionGrad<Tensor>& op, const Launch& launch) {
  AttentionCase c = common_case(op, launch);
  c.backward = true;
  return c;
}

std::span<const AttentionBackend> attention_backends() { return kBackends; }

const AttentionBackend& find_attention(const AttentionCase& c, AttentionBy by) {
  const auto* const backend = std::ranges::find(kBackends, by, &AttentionBackend::by);
  REDLINE_CHECK(backend != std::end(kBackends), "no backend of attention is {}", name_of(by));
  if (const std::string why_not = backend->why_not(c); !why_not.empty())
    fail_user("attention backend \"{}\" cannot do {}: {}; use kernels.attention = \"auto\"", name_of(by), describe(c),
              why_not);
  return *backend;
}

void run(const Attention<Tensor>& op, const Launch& launch) { run_chosen(op, launch); }
void run(const AttentionGrad<Tensor>& op, const Launch& launch) { run_chosen(op, launch); }

}  // namespace redline::ops::cuda
