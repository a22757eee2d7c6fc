// The tables of rungs and tiers, and the climb. A rung stays where it makes the step no slower, so that the last row is
// the best that the rungs give together.
#include "perf/ladder.h"

#include <algorithm>
#include <variant>

#include "base/error.h"
#include "model/lowering.h"
#include "program/program.h"

namespace redline::perf {
namespace {

constexpr double kUsualDropout = 0.1;
constexpr std::int64_t kMostLogitsRows = 1 << 24;  // that kernels.logits_rows takes

constexpr const char* kOneWay = "the CPU computes in fp32, whatever this key says";
constexpr const char* kOneAttention = "the CPU has one attention, which keeps no scores";
constexpr const char* kOneRank =
    "there is one rank: redline launch -n N -- ladder ... measures it, redline plan --gpus N plans it";
constexpr const char* kNoProposals = "the CPU's library has one way to compute a product";

// An unfused AdamW in fp32: m and v (read with the gradient, written), the root of v (read, written), the step (m, root
// and weight read, weight written), the decay (weight read and written), and the working copy read from the weight.
constexpr double kAdamWBytes = 4 * (3 + 3 + 2 + 4 + 2 + 1);

// Counts passes over the operands of the nodes that are fused.
class Count {
 public:
  Count(const model::LoweredModel& model, double micro_batches)
      : table_(model.table), set_(model.set), micro_batches_(micro_batches) {}

  void node(const program::Node& node) {
    if (node.phase == program::Phase::recompute) return;
    std::visit([&](const auto& op) { add(op, node); }, node.op);
  }
  double qkv = 0, norms = 0, adamw = 0, swiglu = 0;

 private:
  double bytes(program::ValueId id) const { return id.present() ? static_cast<double>(set_.at(id).bytes()) : 0; }

  // The products beside the first that one product of this weight, or of an expert's part of it, stands for: three of
  // queries, keys and values, two of gate and up.
  double others(program::ValueId weight, std::int64_t experts = 1) const {
    const std::int32_t row = set_.at(weight).parameter;
    if (row == program::kNoParameter) return 0;
    return static_cast<double>(std::ssize(table_[static_cast<std::size_t>(row)].slices) / experts) - 1;
  }
  double others_of_experts(program::ValueId weight) const { return others(weight, set_.at(weight).shape[0]); }
  double& of_part(const program::Node& node) { return node.place.part == program::Part::attention ? qkv : swiglu; }

  template <class Op>
  void add(const Op&, const program::Node&) {}
  // Each of them reads the input once more.
  void add(const ops::Linear<program::ValueId>& op, const program::Node& node) {
    of_part(node) += others(op.weight) * micro_batches_ * bytes(op.x);
  }
  // On the way back they add to what the first has written.
  void add(const ops::LinearInputGrad<program::ValueId>& op, const program::Node& node) {
    of_part(node) += 2 * others(op.weight) * micro_batches_ * bytes(op.dx);
  }
  void add(const ops::LinearWeightGrad<program::ValueId>& op, const program::Node& node) {
    of_part(node) += others(op.dweight) * micro_batches_ * bytes(op.x);
  }
  void add(const ops::GroupedLinear<program::ValueId>& op, const program::Node& node) {
    of_part(node) += others_of_experts(op.weight) * micro_batches_ * bytes(op.x);
  }
  void add(const ops::GroupedLinearInputGrad<program::ValueId>& op, const program::Node& node) {
    of_part(node) += 2 * others_of_experts(op.weight) * micro_batches_ * bytes(op.dx);
  }
  void add(const ops::GroupedLinearWeightGrad<program::ValueId>& op, const program::Node& node) {
    of_part(node) += others_of_experts(op.dweight) * micro_batches_ * bytes(op.x);
  }
  // A norm of its own reads the sum again that the residual add has just written; on the way back its gradient would be
  // written, and read by the add of the branch's.
  void add(const ops::AddNorm<program::ValueId>& op, const program::Node&) {
    if (op.residual_out.present()) norms += micro_batches_ * bytes(op.residual_out);
  }
  void add(const ops::AddNormGrad<program::ValueId>& op, const program::Node&) {
    norms += 2 * micro_batches_ * bytes(op.dresidual);
  }
  void add(const optim::AdamW<program::ValueId>& op, const program::Node& node) {
    const double elements = static_cast<double>(set_.at(op.parameters).shape.elements());
    adamw += std::max(0.0, elements * kAdamWBytes + bytes(op.working) - node.cost.bytes);
  }

  const model::ParameterTable& table_;
  const program::ProgramSet& set_;
  double micro_batches_;
};

// The savings of fused kernels that have no slow twin here: the bytes of a step that separate kernels would move in
// addition, counted on the lowered program.
std::vector<Trial> fused_savings(const config::Config& config, device::Kind kind) {
  const model::LoweredModel lowered = model::lower(config.model, model::lowering_options(config, kind));
  Count count(lowered, static_cast<double>(config.train.accumulate));
  for (const program::Node& node : lowered.set.find(model::kFirst).nodes) count.node(node);
  for (const program::Node& node : lowered.set.find(model::kUpdate).nodes) count.node(node);
  const auto row = [](const char* name, const char* about, double bytes) {
    Trial trial;
    trial.name = name;
    trial.about = about;
    trial.state = TrialState::not_separable;
    trial.saved_bytes = bytes;
    return trial;
  };
  return {row("fused QKV",
              "one product for queries, keys and values: three read their input and add its gradient apart", count.qkv),
          row("fused gate and up", "one product for both halves of SwiGLU, likewise", count.swiglu),
          row("fused norms", "the residual add and RMSNorm in one pass, and their gradients in one", count.norms),
          row("fused AdamW", "moments, weights, decay and working copies in one pass over flat arrays", count.adamw)};
}

class Climbing {
 public:
  Climbing(const LoadConfig& load, const Bench& bench, const SearchOptions& options)
      : search_(options, without_simulations(bench), load), own_(load({})), rungs_(rungs(own_, bench.ranks)) {}

  Ladder up() {
    put_base();
    try {
      first("naive", "every rung off: fp32, plain attention, one document a row" + base_, naive_);
      for (const Rung& rung : rungs_) step_on(rung);
      add_fused();
    } catch (const Interrupted&) {
      ladder_.stopped = true;
    }
    ladder_.full = keys_;
    return std::move(ladder_);
  }

  Ladder leave_out() {
    put_base();
    KeyValues full = naive_;
    for (const Rung& rung : rungs_)
      if (rung.kind == RungKind::speed && search_.has_effect(full, rung.keys) &&
          !is_simulated(search_.bench().kind, search_.load(over(full, rung.keys))))
        full = over(full, rung.keys);
    try {
      first("the full step", "every rung on that makes it faster", full);
      KeyValues before = naive_;  // what a rung's key was below it
      for (const Rung& rung : rungs_) {
        if (rung.kind != RungKind::speed && rung.kind != RungKind::absent) {
          search_.leave_out();
          continue;
        }
        leave(rung, before);
        before = over(before, rung.keys);
      }
      add_fused();
    } catch (const Interrupted&) {
      ladder_.stopped = true;
    }
    ladder_.full = full;
    return std::move(ladder_);
  }

  Ladder tiers_up_to(std::string_view last) {
    const std::span<const Tier> wanted =
        tiers().first(static_cast<std::size_t>(&tier_called(last) - tiers().data()) + 1);
    search_.expect(wanted.size());
    try {
      for (const Tier& tier : wanted) {
        Trial row = row_of({std::string(tier.name), RungKind::speed, tier.keys, std::string(tier.about)});
        search_.measure(row, tier.keys);
        row.kept = row.measured.done();
        if (ladder_.rows.empty() || !before_.done()) before_ = first_ = row.measured;
        put_factors(row);
        if (row.kept) before_ = row.measured, ladder_.full = tier.keys;
        ladder_.rows.push_back(std::move(row));
      }
    } catch (const Interrupted&) {
      ladder_.stopped = true;
    }
    return std::move(ladder_);
  }

 private:
  static bool is_simulated(device::Kind kind, const config::Config& config) {
    return kind == device::Kind::cpu && config.precision.matmul == "fp8";
  }
  static Bench without_simulations(const Bench& bench) {
    Bench real = bench;
    real.measure = [bench](const config::Config& config, double seconds) {
      if (!is_simulated(bench.kind, config)) return bench.measure(config, seconds);
      Measured none;
      none.problem = "the CPU only simulates fp8, to be the truth for cards";
      return none;
    };
    return real;
  }

  // The rows of a micro-batch with which the naive step fits: the configuration's own, or the most below that divide
  // them.
  void put_base() {
    search_.expect(1 + static_cast<std::size_t>(std::ranges::count_if(
                           rungs_, [](const Rung& rung) { return rung.kind != RungKind::absent; })));
    Setting base = setting_of(own_);
    const Setting own = base;
    for (std::int64_t parts = 1; parts <= own.batch_size; ++parts) {
      if (own.batch_size % parts != 0) continue;
      base = {own.batch_size / parts, own.accumulate * parts, "none"};
      naive_ = naive_keys(own_, base, search_.bench().ranks);
      if (search_.bench().fits(search_.load(naive_))) break;
    }
    if (base.batch_size != own.batch_size)
      base_ = fmt::format("; {} rows x {}, since {} do not fit", base.batch_size, base.accumulate, own.batch_size);
    keys_ = naive_;
  }

  Trial row_of(const Rung& rung) const {
    Trial row;
    row.name = rung.name;
    row.keys = rung.keys;
    row.about = rung.about;
    row.changes_loss = rung.changes_loss;
    return row;
  }

  // Adds a row that is not measured.
  void add(Trial row, TrialState state, const std::string& reason) {
    row.state = state;
    row.reason = reason.empty() ? "it changes nothing here" : reason;
    if (state == TrialState::no_effect) search_.leave_out();
    ladder_.rows.push_back(std::move(row));
  }

  void first(const std::string& name, const std::string& about, const KeyValues& keys) {
    Trial row = row_of({name, RungKind::speed, keys, about});
    search_.measure(row, keys);
    first_ = before_ = row.measured;
    row.kept = row.measured.done();
    put_factors(row);
    ladder_.rows.push_back(std::move(row));
    keys_ = keys;
  }

  void put_factors(Trial& row) const {
    if (!row.measured.done()) return;
    const auto factor = [&](const Measured& m) {
      return m.done() && m.tokens_per_s > 0 ? row.measured.tokens_per_s / m.tokens_per_s : 0.0;
    };
    row.over_before = factor(before_);
    row.over_first = factor(first_);
  }

  void step_on(const Rung& rung) {
    Trial row = row_of(rung);
    if (rung.kind == RungKind::absent) return add(std::move(row), TrialState::absent, rung.lacks);
    std::string lacks = rung.lacks;
    if (rung.kind == RungKind::batch) {
      const std::vector<Setting> settings = search_.bench().settings(search_.load(keys_));
      if (!settings.empty()) row.keys = keys_of(settings.front());
      lacks = settings.empty() ? "nothing fits" : "the plan's choice is what was measured already";
    }
    const KeyValues keys = over(keys_, row.keys);
    if (row.keys.empty() || !search_.has_effect(keys_, row.keys)) {
      // Costs nothing, and the full step has no key of the naive one left.
      if (rung.kind != RungKind::another_model) keys_ = keys;
      return add(std::move(row), TrialState::no_effect, lacks);
    }
    search_.measure(row, keys);
    put_factors(row);
    decide(row, rung, keys);
    ladder_.rows.push_back(std::move(row));
  }

  // Decides whether a rung stays. A rung that could not be measured does not. Where the naive step could not, the first
  // rung that can be measured stays.
  void decide(Trial& row, const Rung& rung, const KeyValues& keys) {
    if (!row.measured.done()) return;
    if (rung.kind == RungKind::another_model) {
      row.reason = "another model: not in what follows";
      return;
    }
    const double noise = std::max(row.measured.noise, before_.noise);
    const double least = !before_.done() ? 0 : rung.kind == RungKind::memory ? 1 + noise : 1 - noise;
    row.kept = row.over_before >= least;
    if (!row.kept) {
      row.reason = rung.kind == RungKind::memory ? "saves memory and is no faster: not in what follows"
                                                 : "slower here: not in what follows";
      return;
    }
    keys_ = keys;
    before_ = row.measured;
    if (first_.done()) return;
    first_ = row.measured;
    row.over_first = 1;
  }

  void leave(const Rung& rung, const KeyValues& before) {
    Trial row = row_of(rung);
    row.name = "without " + rung.name;
    row.keys.clear();  // those that undo it
    for (const std::string& pair : rung.keys)
      for (const std::string& known : before)
        if (key_of(known) == key_of(pair)) row.keys.push_back(known);
    if (rung.kind == RungKind::absent) return add(std::move(row), TrialState::absent, rung.lacks);
    if (row.keys.empty() || !search_.has_effect(keys_, row.keys))
      return add(std::move(row), TrialState::no_effect, rung.lacks);
    search_.measure(row, over(keys_, row.keys));
    put_factors(row);
    ladder_.rows.push_back(std::move(row));
  }

  // The fused kernels have no slow twin: the plan says what they save.
  void add_fused() {
    const config::Config config = search_.load(over(keys_, {"precision.matmul=bf16"}));
    for (Trial& row : fused_savings(config, search_.bench().kind)) ladder_.rows.push_back(std::move(row));
  }

  Search search_;
  const config::Config own_;
  const std::vector<Rung> rungs_;
  KeyValues naive_, keys_;  // keys_: what has stayed
  std::string base_;        // why the naive step has other rows than the configuration's
  Measured first_, before_;
  Ladder ladder_;
};

}  // namespace

namespace {

// Weights that a run goes on from have their heads.
bool may_change_heads(const config::Config& c) { return c.model.init_from.empty() && c.model.heads > 1; }
bool shares_heads(const config::Config& c) { return c.model.kv_heads < c.model.heads; }

// Heads of keys and values of a model that shares none: a quarter of the queries', or the next fewer that divide them.
std::int64_t usual_kv_heads(std::int64_t heads) {
  std::int64_t n = std::max<std::int64_t>(1, heads / 4);
  while (heads % n != 0) --n;
  return n;
}

Rung grouped_queries(const config::Config& c) {
  Rung rung{"GQA", RungKind::speed, {}, "several heads of queries share one of keys and values", "", true};
  if (!may_change_heads(c)) {
    rung.lacks = c.model.heads == 1 ? "the model has one head" : "the weights of model.init_from have their heads";
    return rung;
  }
  if (!shares_heads(c)) rung.kind = RungKind::another_model;
  rung.keys = {fmt::format("model.kv_heads={}", shares_heads(c) ? c.model.kv_heads : usual_kv_heads(c.model.heads))};
  return rung;
}

// Models beside the one with experts: what choosing among many costs, what a token's experts do, what balance does.
// Weights that a run goes on from have as many experts as they have.
std::vector<Rung> of_experts(const config::Config& c) {
  const std::int64_t k = c.model.experts_per_token;
  if (c.model.experts == 0) return {};
  std::vector<Rung> all;
  const auto other = [&](const char* name, std::string key, const char* about, bool has_effect, const char* lacks) {
    all.push_back(
        {name, RungKind::another_model, has_effect ? KeyValues{std::move(key)} : KeyValues{}, about, lacks, true});
  };
  const bool many = c.model.experts > k;
  other("no choice of experts", fmt::format("model.experts={}", k),
        "as many experts as a token takes: the same work, fewer weights, equal loads",
        many && c.model.init_from.empty(),
        many ? "the weights of model.init_from have their experts" : "every token takes all experts");
  other("half the experts a token", fmt::format("model.experts_per_token={}", k / 2),
        "half the rows in products of experts", k > 1 && c.model.init_from.empty(),
        k > 1 ? "the weights of model.init_from have their experts" : "a token takes one expert");
  other("no balance loss", "model.router_aux=0", "routers learn from the loss alone, and loads drift apart",
        c.model.router_aux > 0, "model.router_aux is 0");
  return all;
}

}  // namespace

KeyValues naive_keys(const config::Config& c, const Setting& base, int ranks) {
  const double dropout = c.model.dropout > 0 ? c.model.dropout : kUsualDropout;
  KeyValues keys = {"precision.matmul=fp32",
                    "kernels.attention=reference",
                    "kernels.graphs=off",
                    "kernels.tuning=off",
                    "data.packing=pad",
                    "data.workers=0",
                    fmt::format("kernels.logits_rows={}", std::min(base.batch_size * c.train.seq_len, kMostLogitsRows)),
                    fmt::format("model.dropout={}", dropout),
                    "optim.moments=fp32",
                    "train.recompute=none",
                    fmt::format("train.batch_size={}", base.batch_size),
                    fmt::format("train.accumulate={}", base.accumulate)};
  if (ranks > 1) keys.emplace_back("parallel.mode=fsdp");
  if (may_change_heads(c) && shares_heads(c)) keys.push_back(fmt::format("model.kv_heads={}", c.model.heads));
  return keys;
}

std::vector<Rung> rungs(const config::Config& config, int ranks) {
  const auto on_ranks = [&](const char* key) { return ranks > 1 ? KeyValues{key} : KeyValues{}; };
  using enum RungKind;
  std::vector<Rung> all = {
      {"tf32 products", speed, {"precision.matmul=tf32"}, "fp32 operands rounded to 10 bits in products", kOneWay},
      {"bf16 products", speed, {"precision.matmul=bf16"}, "activations and working weights in 16 bits", kOneWay},
      {"flash attention", speed, {"kernels.attention=flash"}, "redline's own: scores stay on chip", kOneAttention},
      {"best attention",
       speed,
       {"kernels.attention=auto"},
       "the fastest that can, timed on the first batch",
       kOneAttention},
      {"CUDA graphs",
       speed,
       {"kernels.graphs=auto"},
       "a step is replayed, not launched kernel by kernel",
       "the CPU launches nothing"},
      {"tuned products",
       speed,
       {"kernels.tuning=on"},
       "cuBLASLt's best proposals timed, not its first taken",
       kNoProposals},
      {"all proposals", speed, {"kernels.tuning=max"}, "every algorithm that cuBLASLt proposes is timed", kNoProposals},
      {"buckets", speed, {"data.packing=bucket"}, "documents of similar length share a batch"},
      {"packing", speed, {"data.packing=pack"}, "documents fill rows: next to no padding"},
      {"loader threads", speed, {"data.workers=-1"}, "batches are made beside the steps, and not between them"},
      {"logits in chunks",
       speed,
       {"kernels.logits_rows=0"},
       "the whole logits never exist",
       "a micro-batch is one chunk"},
      {"no dropout", speed, {"model.dropout=0"}, "one pass less over each branch", "", true},
      grouped_queries(config),
      {"ZeRO-1", speed, on_ranks("parallel.mode=zero1"),
       "ranks share out masters and moments, no longer weights and gradients", kOneRank},
      {"DDP", speed, on_ranks("parallel.mode=ddp"), "every rank keeps everything", kOneRank},
      {"fp8 products",
       speed,
       {"precision.matmul=fp8", "precision.fp8=auto"},
       "linears in eight bits, where that is faster with its casts",
       "no product takes fp8 here",
       true},
      {"fp8 attention",
       absent,
       {},
       "scores and their sums in eight bits",
       "there is no such kernel here: attention takes bf16 in a run in fp8, as its softmax needs more than three bits"},
      {"bf16 moments", memory, {"optim.moments=bf16"}, "AdamW's moments in 16 bits, rounded at random", "", true},
      {"8-bit moments", memory, {"optim.moments=8bit"}, "AdamW's moments in blocks of 256", "", true},
      {"recompute mlp", memory, {"train.recompute=mlp"}, "SwiGLU's inner values are computed again"},
      {"recompute block", memory, {"train.recompute=block"}, "whole layers are computed again"},
      {"batch size", batch, {}, "rows of a micro-batch as the plan would choose them; a step keeps its rows"},
  };
  for (Rung& rung : of_experts(config)) all.push_back(std::move(rung));
  return all;
}

std::span<const Tier> tiers() {
  static const std::vector<Tier> kTiers = {
      {"safe",
       "bf16 and packing, and nothing else that could surprise: bits repeat, kernels are launched one by one",
       {"precision.matmul=bf16", "kernels.attention=auto", "kernels.deterministic=true", "kernels.graphs=off",
        "kernels.tuning=off", "data.packing=pack"}},
      {"fast",
       "what redline does by itself: the fastest attention, tuned products, CUDA graphs; the loss means the same",
       {"precision.matmul=bf16", "kernels.attention=auto", "kernels.deterministic=false", "kernels.graphs=auto",
        "kernels.tuning=on", "data.packing=pack"}},
      {"fastest",
       "products in fp8 where they are faster, every proposal timed, the batch size that the card likes",
       {"precision.matmul=fp8", "precision.fp8=auto", "kernels.attention=auto", "kernels.deterministic=false",
        "kernels.graphs=auto", "kernels.tuning=max", "data.packing=pack", "train.batch_size=auto"}},
  };
  return kTiers;
}

const Tier& tier_called(std::string_view name) {
  const auto it = std::ranges::find(tiers(), name, &Tier::name);
  if (it == tiers().end()) fail_user("--tier {}: the tiers are safe, fast and fastest", name);
  return *it;
}

Ladder climb(const LoadConfig& load, const Bench& bench, const LadderOptions& options) {
  Climbing climbing(load, bench, options);
  return options.without ? climbing.leave_out() : climbing.up();
}

Ladder climb_tiers(const LoadConfig& load, const Bench& bench, const SearchOptions& options, std::string_view last) {
  return Climbing(load, bench, options).tiers_up_to(last);
}

}  // namespace redline::perf
