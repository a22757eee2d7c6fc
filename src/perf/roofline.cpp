// The table of what ops reach, and the time of a node from it.
#include "perf/roofline.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <variant>

#include "base/error.h"
#include "perf/peak.h"
#include "program/program.h"

namespace redline::perf {
namespace {

using program::ValueId;

// Shares of the datasheet's dense rate and of a large copy. All of it on one H200 (989.5 TFLOP/s bf16, copy 4.30 TB/s),
// 2026-11-15; docs/experiments.md names the programs.
constexpr Efficiency kCard[] = {
    {"linear", 0.725, 1.0, "tuned cuBLASLt, 603 to 732 TFLOP/s by shape: see kHalfRate"},
    {"linear_input_grad", 0.725, 1.0, "the same"},
    {"linear_weight_grad", 0.725, 1.0, "the same, 691 TFLOP/s before tuning"},
    {"grouped_linear", 0.63, 1.0, "587 to 662 TFLOP/s, 64 experts of OLMoE"},
    {"grouped_linear_input_grad", 0.64, 1.0, "620 to 650"},
    {"grouped_linear_weight_grad", 0.674, 1.0, "595 with 4,096 rows an expert, 550 with 2,048: see kHalfRateRows"},
    {"grouped_fp8_product", 0.52, 1.0, "930 to 1,164"},
    {"grouped_fp8_weight_grad", 0.559, 1.0, "898 with 4,096 rows an expert, 574 with 1,024: see kHalfRateRows"},
    {"route", 0.5, 0.46, "32,768 tokens of 2048, 8 of 64 experts, as those below"},
    {"route_grad", 0.5, 0.48, "the same"},
    {"sort_by_expert", 0, 0.04, "21 microseconds"},
    {"gather_rows", 0, 0.8, "87%, 75 with a copy in eight bits beside it"},
    {"combine", 0, 0.93, "96%, 92 in a step"},
    {"combine_grad", 0, 0.71, "76%, 70 with a copy in eight bits beside it"},
    {"router_load", 0, 0.07, "28 microseconds"},
    {"balance_loss", 0, 0.01, "estimated: a few microseconds of one block"},
    {"lm_loss", 0.72, 0.90, "650 TFLOP/s of llama-1.36b's, its pass over the logits included"},
    {"attention", 0.62, 0.90, "cuDNN 9.19: 334 (head_dim 64, T 1024), 498 to 505 (128, 2048), 598 (128, 8192) TFLOP/s"},
    {"attention_grad", 0.55, 0.90, "cuDNN 9.19: 250, 376 to 403, 504 TFLOP/s of 2.5 times the forward's work"},
    {"copy", 0, 1.0, "the yardstick itself; between memories it is the link that counts"},
    {"add", 0, 0.95, "estimated, as add_norm's"},
    {"add_norm", 0, 0.95, "92 to 99% (cuda_kernels_bench)"},
    {"add_norm_grad", 0, 0.87, "83 to 91%"},
    {"norm_add", 0, 0.95, "99%"},
    {"rope_qk_norm", 0, 0.86, "84 to 90%, over whole projections 89%"},
    {"rope_qk_norm_grad", 0, 0.79, "84%, 75% with QK-norm, 58% where that is over whole projections"},
    {"swiglu", 0, 1.0, "100 to 104%"},
    {"swiglu_grad", 0, 1.0, "100 to 104%"},
    {"dropout", 0, 0.67, "66 to 69%"},
    {"cache_store", 0, 0.5, "estimated, as attention_cached: no training program has them"},
    {"attention_cached", 0, 0.5, "estimated"},
    {"sort_tokens", 0, 0.1, "estimated"},
    {"document_tiles", 0, 0.01, "estimated: a few microseconds of one block"},
    {"embed", 0, 0.89, "83 to 95%"},
    {"embed_grad", 0, 0.9, "61 to 122%"},
    {"fp8_product", 0.6, 1.0, "tuned cuBLASLt, 870 to 1300 TFLOP/s by shape, under load"},
    {"quantize", 0, 0.85, "estimated; 77% seen"},
    {"quantize_weight", 0, 0.6, "estimated: it reads weights twice; 54% seen"},
    {"bound_scale", 0, 0.01, "estimated: a microsecond or two"},
    {"move_scales", 0, 0.01, "estimated: the same"},
    {"largest", 0, 0.8, "estimated"},
    {"set_scales", 0, 0.01, "estimated, as move_scales"},
    {"sum_squares", 0, 0.99, "98 to 100%"},
    {"grad_norm", 0, 0.01, "a few microseconds of one block"},
    {"adamw", 0, 0.97, "96 to 99% with moments in fp32; in fewer bits: see kBf16Moments"},
    {"refresh", 0, 0.9, "not timed apart"},
    {"average", 0, 0.95, "estimated: adamw's way through memory"},
    {"round_at_random", 0, 0.98, "99%, alone 101% (redline profile, 8B)"},
    {"widen", 0, 0.85, "85%"},
    {"exchange", 0, 0.95, "estimated: the same"},
    {"tensor_sums", 0, 0.8, "estimated"},
    {"orthogonalize", 0.6, 1.0, "522 to 657 TFLOP/s in batched products"},
    {"muon_momentum", 0, 0.57, "53 to 59%: it reads gradients and momentum twice, 22 bytes an element for 14"},
    {"muon", 0, 0.84, "76 to 90%"},
    {"all_reduce", 0, 1, "what the network takes is perf/walk's; here what a card reads and writes"},
    {"reduce_shards", 0, 1, "the same"},
    {"gather_shards", 0, 1, "the same"},
    {"all_to_all", 0, 1, "the same"},
    {"split_heads", 0, 0.85, "estimated, as rope_qk_norm's"},
};

// Shares of a measured product and a measured copy, fp32, on two cores of a Neoverse-V1: the profile in
// docs/experiments.md.
constexpr Efficiency kCpu[] = {
    {"linear", 0.98, 1.0, "117 of 117 GFLOP/s (redline profile, quick model)"},
    {"linear_input_grad", 0.98, 1.0, "116"},
    {"linear_weight_grad", 0.96, 1.0, "112"},
    {"grouped_linear", 0.9, 1.0, "estimated: a product for each expert"},
    {"grouped_linear_input_grad", 0.9, 1.0, "estimated"},
    {"grouped_linear_weight_grad", 0.9, 1.0, "estimated"},
    {"grouped_fp8_product", 0.9, 0.5, "estimated: fp32 products, and operands taken to fp32"},
    {"grouped_fp8_weight_grad", 0.9, 0.5, "estimated"},
    {"route", 0.5, 0.3, "estimated, as all of experts below"},
    {"route_grad", 0.5, 0.3, "estimated"},
    {"sort_by_expert", 0, 0.1, "estimated"},
    {"gather_rows", 0, 0.6, "estimated"},
    {"combine", 0, 0.6, "estimated"},
    {"combine_grad", 0, 0.6, "estimated"},
    {"router_load", 0, 0.1, "estimated: bound by logarithms"},
    {"balance_loss", 0, 0.1, "estimated"},
    {"lm_loss", 0.90, 1.0, "102"},
    {"attention", 0.45, 1.0, "53 GFLOP/s of counted work"},
    {"attention_grad", 0.56, 1.0, "52 GFLOP/s of counted work, 65 of 2.5 times the forward's"},
    {"copy", 0, 0.6, "one thread, which shares the memory's rate with others"},
    {"add", 0, 0.6, "estimated"},
    {"add_norm", 0, 0.6, "estimated, as all below but swiglu: together 2% of a step"},
    {"add_norm_grad", 0, 0.5, "estimated"},
    {"norm_add", 0, 0.6, "estimated"},
    {"rope_qk_norm", 0, 0.5, "estimated"},
    {"rope_qk_norm_grad", 0, 0.5, "estimated"},
    {"swiglu", 0, 0.33, "19 ms for both in the profile of docs/experiments.md: bound by exponentials"},
    {"swiglu_grad", 0, 0.32, "the same"},
    {"cache_store", 0, 0.5, "estimated"},
    {"attention_cached", 0, 0.5, "estimated"},
    {"dropout", 0, 0.13, "estimated: bound by its counters"},
    {"sort_tokens", 0, 0.1, "not used"},
    {"document_tiles", 0, 0.1, "not used"},
    {"embed", 0, 0.5, "estimated"},
    {"embed_grad", 0, 0.5, "estimated"},
    {"fp8_product", 0.9, 0.5, "estimated: fp32 products, and operands taken to fp32"},
    {"quantize", 0, 0.05, "estimated: a simulation, bit by bit"},
    {"quantize_weight", 0, 0.05, "estimated"},
    {"bound_scale", 0, 0.5, "estimated"},
    {"move_scales", 0, 0.5, "estimated"},
    {"largest", 0, 0.5, "estimated"},
    {"set_scales", 0, 0.5, "estimated"},
    {"sum_squares", 0, 0.6, "estimated"},
    {"grad_norm", 0, 0.6, "estimated"},
    {"adamw", 0, 0.6, "estimated"},
    {"refresh", 0, 0.6, "not used"},
    {"average", 0, 0.6, "estimated"},
    {"round_at_random", 0, 0.3, "estimated"},
    {"widen", 0, 0.6, "estimated"},
    {"exchange", 0, 0.6, "estimated"},
    {"tensor_sums", 0, 0.6, "estimated"},
    {"orthogonalize", 0.9, 1.0, "estimated"},
    {"muon_momentum", 0, 0.4, "estimated"},
    {"muon", 0, 0.6, "estimated"},
    {"all_reduce", 0, 0.2, "two ranks of OpenMPI on two cores"},
    {"reduce_shards", 0, 0.2, "the same"},
    {"gather_shards", 0, 0.2, "the same"},
    {"all_to_all", 0, 0.2, "estimated: the same"},
    {"split_heads", 0, 0.5, "estimated"},
};

// An op without a row: half of what the machine can do.
constexpr Efficiency kAnyOther = {"any other", 0.5, 0.5, "estimated: nobody has timed it"};

constexpr double kCopyShare = 4.30 / 4.80;          // of the bandwidth on an H200's datasheet
constexpr double kLargeProductShare = 783 / 989.5;  // of an 8192^3 product: what an unknown card is measured with

// A product whose smallest extent is this reaches half of what large ones do (a card's; fitted to extents of 640 to
// 2304).
constexpr double kHalfRate = 75;
// Attention alike, by the tokens of a row; and heads narrower than this leave the matrix units waiting for the softmax.
constexpr double kHalfRateTokens = 462, kHalfRateTokensGrad = 745, kWideHead = 128, kNarrowHeadLoss = 0.42;
// Gradients of experts' weights alike, by the rows of an expert: what is summed over.
constexpr double kHalfRateRows = 435, kHalfRateRowsFp8 = 949;
// Of adamw's share with moments in fp32: 81% of the copy rate in bf16, 43 to 53% in eight bits.
constexpr double kBf16Moments = 0.81 / 0.97, kCodedMoments = 0.45 / 0.97;
// In tf32 it is our own kernel, which reaches 0.4 to 0.6 of what cuDNN's shares would make of that rate; in fp32 about
// all of it.
constexpr double kTf32Attention = 0.5;

// Between two nodes of a graph on the card; a CPU's are function calls.
constexpr double kCardGap = 1.2e-6;

// It differs by driver and by how many of the libraries' kernels a run loads: on an H200 with CUDA 13.0 `nvidia-smi`
// showed 50 to 60 MiB less than a plan with it, for five models.
constexpr std::int64_t kContextBytes = std::int64_t{600} << 20;

// Measured on an H200 with pinned memory over PCIe 5: 55.2 GB/s one way at a time, 44.7 each way where both are busy; a
// product of 8192^3 in bf16 took 1.615 ms beside copies both ways, and 1.526 alone. Taken for the links of all cards.
constexpr BothWays kBothWays = {.share = 44.7 / 55.2, .slows = 1.615 / 1.526 - 1};

constexpr const Efficiency* find(std::span<const Efficiency> table, std::string_view op) {
  for (const Efficiency& e : table)
    if (e.op == op) return &e;
  return nullptr;
}

// How long one node takes.
class NodeTime {
 public:
  NodeTime(const program::ProgramSet& set, const Machine& machine, double rows, double seq_len)
      : set_(set), machine_(machine), rows_(rows), seq_len_(seq_len) {}

  double operator()(const program::Node& node) const {
    const Efficiency& e = efficiency(machine_.kind, program::name_of(node.op));
    if (program::copies_to(node.op, set_.values))  // what is read here is what is written there
      return seconds_between_nodes(machine_.kind) + node.cost.bytes / 2 / machine_.host_rate;
    const double share = std::visit([&](const auto& op) { return moving_share(op, e); }, node.op);
    const double moving = node.cost.bytes / (share * machine_.copy_rate);
    return seconds_between_nodes(machine_.kind) +
           std::max(moving, std::visit([&](const auto& op) { return products(op, node.cost, e); }, node.op));
  }

 private:
  double moving_share(const optim::AdamW<ValueId>& op, const Efficiency& e) const {
    if (machine_.kind == device::Kind::cpu) return e.moving;
    const DType moments = type_of(op.moment1);
    return e.moving * (moments == DType::u8 ? kCodedMoments : moments == DType::bf16 ? kBf16Moments : 1);
  }
  template <class Op>
  double moving_share(const Op&, const Efficiency& e) const {
    return e.moving;
  }

  double products(const ops::Linear<ValueId>& op, const Cost& cost, const Efficiency& e) const {
    return at_rate(cost.flops, e, smallest_extent(op.x, op.weight), type_of(op.x), op.how.math);
  }
  double products(const ops::LinearInputGrad<ValueId>& op, const Cost& cost, const Efficiency& e) const {
    return at_rate(cost.flops, e, smallest_extent(op.dy, op.weight), type_of(op.dy), op.how.math);
  }
  double products(const ops::LinearWeightGrad<ValueId>& op, const Cost& cost, const Efficiency& e) const {
    return at_rate(cost.flops, e, smallest_extent(op.x, op.dweight), type_of(op.x), op.how.math);
  }
  double products(const ops::Fp8Product<ValueId>& op, const Cost& cost, const Efficiency& e) const {
    return at_rate(cost.flops, e, smallest_extent(op.a, op.b), type_of(op.a), op.how.math);
  }
  double products(const ops::GroupedLinearWeightGrad<ValueId>& op, const Cost& cost, const Efficiency& e) const {
    return over_rows(op, set_.at(op.x).shape[0], kHalfRateRows, cost, e);
  }
  double products(const ops::GroupedFp8WeightGrad<ValueId>& op, const Cost& cost, const Efficiency& e) const {
    return over_rows(op, op.n, kHalfRateRowsFp8, cost, e);
  }
  double over_rows(const auto& op, std::int64_t rows, double half_rate, const Cost& cost, const Efficiency& e) const {
    const Shape& groups = set_.at(op.dweight).shape;
    const double each = static_cast<double>(rows) / static_cast<double>(groups[0]);
    const double filled = machine_.kind == device::Kind::cuda ? each / (each + half_rate) : 1;
    return cost.flops / (e.products * filled * rate(type_of(op.x), op.how.math));
  }
  double products(const ops::Orthogonalize<ValueId>& op, const Cost& cost, const Efficiency& e) const {
    const Shape& x = set_.at(op.x).shape;
    return at_rate(cost.flops, e, static_cast<double>(std::min(x[1], x[2])), type_of(op.x), op.how.math);
  }
  // Softmax and its gradient read and write every logit once, between the products of a chunk.
  double products(const ops::LmLoss<ValueId>& op, const Cost& cost, const Efficiency& e) const {
    const program::Value& chunk = set_.at(op.logits);
    const double logits = static_cast<double>(set_.at(op.x).shape[0]) * static_cast<double>(chunk.shape[1]);
    const double size = static_cast<double>(size_of(chunk.dtype)), extent = smallest_extent(op.logits, op.weight);
    const auto moving = [&](double bytes) { return logits * bytes / (e.moving * machine_.copy_rate); };
    if (!op.fp8.present()) return at_rate(cost.flops, e, extent, type_of(op.x), op.how.math) + moving(2 * size);
    // dlogits in eight bits are written, read and written once more by columns.
    const Efficiency& fp8 = efficiency(machine_.kind, ops::Fp8Product<ValueId>::kName);
    return at_rate(cost.flops / 3, e, extent, type_of(op.x), op.how.math) +
           at_rate(cost.flops * 2 / 3, fp8, extent, type_of(op.fp8.weight), op.how.math) + moving(size + 3);
  }
  double products(const ops::Attention<ValueId>& op, const Cost& cost, const Efficiency& e) const {
    return attention(pair_flops(cost), op.layout.head_dim, e, kHalfRateTokens, type_of(op.qkv), op.how.math);
  }
  double products(const ops::AttentionGrad<ValueId>& op, const Cost& cost, const Efficiency& e) const {
    constexpr double kDone = 2.5 / 2;  // of the work that is counted: the kernel makes the scores again
    return attention(kDone * pair_flops(cost), op.layout.head_dim, e, kHalfRateTokensGrad, type_of(op.qkv),
                     op.how.math);
  }
  // An op that only moves memory, or one whose products are nothing special: in the type of its first operand.
  template <class Op>
  double products(const Op& op, const Cost& cost, const Efficiency& e) const {
    const double flops = cost.flops + pair_flops(cost);
    if (flops == 0 || e.products == 0) return 0;
    std::optional<DType> type;
    op.map([&](std::string_view, ValueId id, Access) {
      if (!type && id.present()) type = type_of(id);
      return 0;
    });
    ops::Math math = ops::Math::full;
    if constexpr (requires { op.how.math; }) math = op.how.math;
    return flops / (e.products * rate(type.value_or(DType::f32), math));
  }

  double pair_flops(const Cost& cost) const { return cost.flops_per_pair * rows_ * kept_pairs(seq_len_, cost.window); }
  DType type_of(ValueId id) const { return set_.at(id).dtype; }
  double smallest_extent(ValueId x, ValueId weight) const {
    const Shape &rows = set_.at(x).shape, &w = set_.at(weight).shape;
    return static_cast<double>(std::min({rows[0], w[0], w[1]}));
  }

  double rate(DType type, ops::Math math) const {
    const ProductRates& r = machine_.tflops;
    if (machine_.kind == device::Kind::cpu) return 1e12 * r.fp32;  // whatever is simulated
    if (is_fp8(type)) return 1e12 * r.fp8;
    return 1e12 * (type == DType::bf16 ? r.bf16 : math == ops::Math::tf32 ? r.tf32 : r.fp32);
  }

  double at_rate(double flops, const Efficiency& e, double extent, DType type, ops::Math math) const {
    const double filled = machine_.kind == device::Kind::cuda ? extent / (extent + kHalfRate) : 1;
    return flops / (e.products * filled * rate(type, math));
  }

  double attention(double flops, std::int64_t head_dim, const Efficiency& e, double half, DType type,
                   ops::Math math) const {
    double share = e.products;
    if (machine_.kind == device::Kind::cuda) {
      const double narrow = std::max(0.0, 1 - static_cast<double>(head_dim) / kWideHead);
      share *= seq_len_ / (seq_len_ + half) * (1 - kNarrowHeadLoss * narrow);
      if (type == DType::f32 && math == ops::Math::tf32) share *= kTf32Attention;
    }
    return flops / (share * rate(type, math));
  }

  const program::ProgramSet& set_;
  const Machine& machine_;
  double rows_, seq_len_;
};

}  // namespace

std::span<const Efficiency> efficiencies(device::Kind kind) {
  if (kind == device::Kind::cpu) return kCpu;
  return kCard;
}

const Efficiency& efficiency(device::Kind kind, std::string_view op) {
  const Efficiency* const row = find(efficiencies(kind), op);
  return row ? *row : kAnyOther;
}

double seconds_between_nodes(device::Kind kind) { return kind == device::Kind::cuda ? kCardGap : 0; }

Machine machine_of(const Card& card) {
  return {.name = std::string(card.name),
          .source = "datasheet",
          .kind = device::Kind::cuda,
          .peak_flops = 1e12 * card.tflops.bf16,
          .tflops = card.tflops,
          .copy_rate = 1e9 * card.gbytes * kCopyShare,
          .host_rate = 1e9 * card.host_gbytes,
          .both_ways = kBothWays,
          .memory = static_cast<std::int64_t>(card.memory_gib * 0x1p30),
          .in_context = kContextBytes};
}

Machine machine_of(device::Device& device) {
  const Card* card = device.kind() == device::Kind::cuda ? find_card(device.name()) : nullptr;
  Machine m;
  if (card) {
    m = machine_of(*card);
  } else {
    const Peak peak = find_peak(device);
    m.source = peak.source;
    m.kind = device.kind();
    m.peak_flops = peak.flops;
    m.copy_rate = measure_copy_rate(device);
    m.host_rate = m.kind == device::Kind::cuda ? 1e9 * Card{}.host_gbytes : m.copy_rate / 2;
    if (m.kind == device::Kind::cuda) {
      // The shares above are of datasheets: of what this card's would say. Other types as cards of the table have them.
      m.tflops.bf16 = m.tflops.fp16 = 1e-12 * peak.flops / kLargeProductShare;
      m.tflops.tf32 = m.tflops.bf16 / 2;
      m.tflops.fp8 = m.tflops.bf16 * 2;
      m.tflops.fp32 = m.tflops.bf16 / 16;
      m.in_context = kContextBytes;
      m.both_ways = kBothWays;
    } else {
      m.tflops.fp32 = 1e-12 * peak.flops;
    }
  }
  m.name = device.name();
  m.memory = device.memory_bytes();
  m.host_memory = device::available_host_bytes();
  return m;
}

std::vector<double> node_seconds(const program::ProgramSet& set, const program::Program& program, double rows,
                                 double seq_len, const Machine& machine) {
  const NodeTime time(set, machine, rows, seq_len);
  std::vector<double> seconds;
  for (const program::Node& node : program.nodes) seconds.push_back(time(node));
  return seconds;
}

std::optional<Sent> sent_by(const program::Node& node, const program::ProgramSet& set) {
  const auto bytes = [&](ValueId wire, ValueId data) {
    return data.present() ? static_cast<double>(set.at(wire.present() ? wire : data).bytes()) : 0;
  };
  if (const auto* all = std::get_if<dist::AllReduce<ValueId>>(&node.op))
    return Sent{Collective::all_reduce, bytes(all->wire, all->data), 0, all->apart};
  if (const auto* own = std::get_if<dist::ReduceShards<ValueId>>(&node.op))
    return Sent{Collective::reduce_shards, bytes(own->wire, own->data), own->shards.ranks};
  if (const auto* whole = std::get_if<dist::GatherShards<ValueId>>(&node.op))
    return Sent{Collective::gather_shards, bytes({}, whole->data), whole->shards.ranks};
  if (const auto* blocks = std::get_if<dist::AllToAll<ValueId>>(&node.op))
    return Sent{Collective::all_to_all, bytes({}, blocks->from), blocks->among};
  REDLINE_CHECK(!program::is_collective(node.op), "what {} sends is not known here", program::name_of(node.op));
  return {};
}

}  // namespace redline::perf
