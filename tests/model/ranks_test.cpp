// A step on several ranks is the step of one: the same losses, norms and parameters, whatever the ranks share out; and
// all modes have the same bits.
#include <map>
#include <mutex>
#include <numeric>

#include "model/fp8_linears.h"
#include "testing/check_plan.h"
#include "testing/thread_group.h"
#include "tiny.h"

namespace redline::model {
namespace {

using namespace redline::testing;
using dist::Mode;

constexpr Mode kModes[] = {Mode::ddp, Mode::zero1, Mode::fsdp};

enum class Fp8 { none, all, head };  // head: its gradients, too

struct RankCase {
  std::string family = "llama";
  bool tied = false;
  int micro_batches = 4;  // of a step, over all ranks
  DType compute = DType::f32;
  bool bf16_wire = false;
  program::Recompute recompute = program::Recompute::none;
  std::string moments = "fp32";
  std::int64_t vocab = 53;
  const Optimizer* optimizer = &kAdamW;
  int sequence = 1;  // ranks that share every row
  int shards = 0;    // ranks that share out one copy of the state
  std::int64_t kv_heads = 2;
  double dropout = 0;
  Fp8 fp8 = Fp8::none;
  std::vector<std::string> fp8_only = {};  // of the products; empty: all
  bool sixteens = false;                   // extents as products in eight bits want them
};

config::Model model_of(const RankCase& c) {
  config::Model model = tiny_model(c.family, c.tied);
  model.vocab = c.vocab;
  model.kv_heads = c.kv_heads;
  model.dropout = c.dropout;
  if (c.fp8 != Fp8::none || c.sixteens) model.hidden = 32, model.head_dim = 16, model.ffn = 48, model.vocab = 64;
  // All experts of every token, so that casts send none to another one.
  if (c.fp8 != Fp8::none && model.experts > 0) model.expert_ffn = 32, model.experts_per_token = model.experts;
  if (model.experts > 0) model.router_aux = 0.1, model.router_z_loss = 0.01;  // of each micro-batch, wherever it is
  return model;
}

// Documents of unequal lengths: every rank has another number of pairs.
data::Batch batch_number(std::int64_t step, std::int64_t k, std::int64_t vocab) {
  const auto key = static_cast<std::uint64_t>(100 * step + k);
  return batch_of(kShortShape, {random_document(key, 3 + 2 * k % 13, vocab), random_document(key + 50, 14 - k, vocab)});
}

struct RankRun {
  std::vector<double> losses, norms;
  std::vector<float> parameters, scales;
  double held_out = 0;
  std::int64_t arena = 0;  // of the rank that has most
  bool operator==(const RankRun&) const = default;
};

LoweringOptions options_of(const RankCase& c, int ranks) {
  LoweringOptions o;
  o.batch = kShortShape;
  o.accumulate = c.micro_batches * c.sequence / ranks > 1;
  o.compute = c.compute;
  o.recompute = c.recompute;
  o.optim.clip = 0.5;
  o.optim.moments = c.moments;
  o.optimizer = c.optimizer;
  if (c.optimizer == &kNorMuon) o.optim.muon_beta2 = 0.9;
  if (c.fp8 == Fp8::none) return o;
  const config::Model model = model_of(c);
  const Fp8Candidates found = fp8_candidates(family_of(model).table(model), kShortShape.tokens(), c.fp8 == Fp8::head);
  o.compute = DType::bf16;
  o.fp8 = c.fp8_only.empty() ? found.products : c.fp8_only;
  o.fp8_head = found.head;
  return o;
}

// Three steps; every rank's result must be the same.
RankRun train_on(int ranks, Mode mode, const RankCase& c) {
  const config::Model model = model_of(c);
  RankRun result;
  std::vector<double> held_out(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  on_ranks(ranks, [&](dist::Group& group) {
    LoweringOptions o = options_of(c, ranks);
    o.sharing = {.rank = group.rank(),
                 .ranks = ranks,
                 .mode = mode,
                 .bf16_wire = c.bf16_wire,
                 .sequence = c.sequence,
                 .shards = c.shards};
    o.execution.group = &group;
    device::CpuDevice device(1);
    TinyEngine engine(model, o, device);
    const int micros = c.micro_batches / o.sharing.groups();
    RankRun mine;
    for (std::int64_t step = 0; step < 3; ++step) {
      double pairs = 0;
      for (int micro = 0; micro < micros; ++micro) {
        const std::int64_t k = micro * o.sharing.groups() + o.sharing.group();
        const data::Batch batch = batch_number(step, k, model.vocab);
        const data::TokenCounts here = engine.counts_here(batch);
        pairs += static_cast<double>(here.pairs);
        engine.upload(batch);
        engine.set_step(static_cast<std::uint64_t>(step), 1e-2, 0,
                        static_cast<std::uint64_t>(k * kShortShape.tokens() + here.first));
        engine.micro_step(micro == 0, micro + 1 == micros);
      }
      engine.set_step(static_cast<std::uint64_t>(step), 1e-2, pairs, 0);
      engine.update();
      engine.post_result();
      const UpdateResult update = engine.take_result().update;
      mine.losses.push_back(update.loss_sum / update.counts.pairs);
      mine.norms.push_back(static_cast<double>(update.grad_norm));
    }
    engine.upload(batch_number(99, 1, model.vocab));
    held_out[static_cast<std::size_t>(group.rank())] = engine.evaluate();
    mine.arena = engine.executor().arena_bytes();
    EXPECT_TRUE(engine.parameters_finite());
    if (!o.fp8.empty()) mine.scales = array_of(engine, kFp8InputScales);
    const Range here = engine.lowered().state[engine.lowered().row(optim::kParameters)].range;
    const std::vector<float> parameters = array_of(engine, optim::kParameters);
    const std::scoped_lock lock(mutex);
    result.parameters.resize(static_cast<std::size_t>(engine.layout().total));
    const Range own = engine.lowered().own;
    std::copy(parameters.begin() + (own.begin - here.begin), parameters.begin() + (own.end - here.begin),
              result.parameters.begin() + own.begin);
    result.arena = std::max(result.arena, mine.arena);
    if (result.losses.empty()) {
      result.losses = mine.losses;
      result.norms = mine.norms;
      result.scales = mine.scales;
    } else {
      EXPECT_EQ(mine.losses, result.losses);
      EXPECT_EQ(mine.norms, result.norms);
      EXPECT_EQ(mine.scales, result.scales);
    }
  });
  for (auto first = held_out.begin(); first != held_out.end(); first += c.sequence) {
    const double sum = std::accumulate(first, first + c.sequence, 0.0);
    if (first == held_out.begin()) result.held_out = sum;
    EXPECT_EQ(sum, result.held_out);
  }
  return result;
}

void expect_close(const RankRun& got, const RankRun& want, double tolerance, const std::string& what) {
  for (std::size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], tolerance * want.losses[i]) << what << ", step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], 10 * tolerance * want.norms[i]) << what << ", step " << i;
  }
  EXPECT_NEAR(got.held_out, want.held_out, tolerance * want.held_out) << what;
}

TEST(Ranks, AnyNumberInAnyModeIsOneRanksStep) {
  for (const RankCase& c :
       {RankCase{}, RankCase{.family = "qwen3", .tied = true}, RankCase{.family = "olmo2"}, RankCase{.family = "qwen2"},
        RankCase{.family = "gemma3", .tied = true}, RankCase{.family = "olmoe"}, RankCase{.family = "qwen3_moe"},
        RankCase{.family = "mixtral"}, RankCase{.micro_batches = 12, .recompute = program::Recompute::block}}) {
    const RankRun alone = train_on(1, Mode::ddp, c);
    for (const int ranks : {2, 3, 4}) {
      if (c.micro_batches % ranks != 0) continue;
      std::map<Mode, RankRun> by_mode;
      for (const Mode mode : kModes) {
        by_mode[mode] = train_on(ranks, mode, c);
        const std::string what = fmt::format("{} on {} ranks, {}", c.family, ranks, name_of(mode));
        expect_close(by_mode[mode], alone, 1e-5, what);
        EXPECT_EQ(by_mode[mode], train_on(ranks, mode, c)) << what << ": again";
      }
      const auto expect_same = [&](Mode a, Mode b) {
        EXPECT_EQ(by_mode[a].losses, by_mode[b].losses) << ranks;
        EXPECT_EQ(by_mode[a].norms, by_mode[b].norms) << ranks;
        EXPECT_EQ(by_mode[a].parameters, by_mode[b].parameters) << ranks;
        EXPECT_EQ(by_mode[a].held_out, by_mode[b].held_out) << ranks;
      };
      expect_same(Mode::ddp, Mode::zero1);
      // fsdp adds ranks before micro-steps, the others micro-steps before ranks.
      if (c.micro_batches == ranks) expect_same(Mode::ddp, Mode::fsdp);
    }
  }
}

// Documents cross the cut, positions and dropout go on behind it, windows and grouped queries see over it, and keys
// that ranks outnumber are repeated.
TEST(Ranks, RowsThatRanksShareAreOneRanksRows) {
  using program::Recompute;
  for (const RankCase& c :
       {RankCase{.micro_batches = 2}, RankCase{.family = "qwen3", .tied = true, .micro_batches = 4, .kv_heads = 1},
        RankCase{.family = "olmo2", .micro_batches = 2, .kv_heads = 4}, RankCase{.family = "qwen2", .micro_batches = 2},
        RankCase{.family = "gemma3", .tied = true, .micro_batches = 2},
        RankCase{.micro_batches = 4, .recompute = Recompute::block, .dropout = 0.2},
        RankCase{.micro_batches = 2, .recompute = Recompute::rest, .kv_heads = 1}}) {
    const RankRun alone = train_on(1, Mode::ddp, c);
    for (const auto& [ranks, sequence] : {std::pair{2, 2}, std::pair{4, 2}, std::pair{4, 4}}) {
      std::map<Mode, RankRun> by_mode;
      for (const Mode mode : kModes) {
        RankCase shared = c;
        shared.sequence = sequence;
        by_mode[mode] = train_on(ranks, mode, shared);
        const std::string what = fmt::format("{} with {} of keys, rows of {} on {} ranks, {}", c.family, c.kv_heads,
                                             sequence, ranks, name_of(mode));
        expect_close(by_mode[mode], alone, 1e-5, what);
        EXPECT_EQ(by_mode[mode], train_on(ranks, mode, shared)) << what << ": again";
      }
      EXPECT_EQ(by_mode[Mode::zero1].parameters, by_mode[Mode::ddp].parameters) << c.family;
      if (c.micro_batches * sequence == ranks) {
        EXPECT_EQ(by_mode[Mode::fsdp].parameters, by_mode[Mode::ddp].parameters) << c.family;
      }
    }
  }
}

// Sums within a copy of the state and then between copies are those of all ranks: with one micro-batch a rank the bits
// are ddp's.
TEST(Ranks, CopiesOfTheStateHaveTheBitsOfDdp) {
  for (const RankCase& c :
       {RankCase{.shards = 2}, RankCase{.family = "qwen3", .tied = true, .compute = DType::bf16, .shards = 2},
        RankCase{.family = "gemma3", .tied = true, .recompute = program::Recompute::block, .shards = 2},
        RankCase{.moments = "8bit", .vocab = 50, .shards = 2}, RankCase{.optimizer = &kNorMuon, .shards = 2},
        RankCase{.family = "olmoe", .compute = DType::bf16, .moments = "8bit", .shards = 2},
        RankCase{.family = "qwen3_moe", .shards = 2, .fp8 = Fp8::head}, RankCase{.shards = 2, .fp8 = Fp8::head},
        RankCase{.optimizer = &kMuon, .shards = 2, .fp8 = Fp8::head},
        RankCase{.micro_batches = 2, .sequence = 2, .shards = 2, .dropout = 0.2},
        RankCase{.micro_batches = 1, .sequence = 4, .shards = 2}}) {
    const RankRun ddp = train_on(4, Mode::ddp, c);
    RankCase flat = c;
    flat.shards = 0;
    for (const Mode mode : {Mode::zero1, Mode::fsdp}) {
      const RankRun copies = train_on(4, mode, c), whole = train_on(4, mode, flat);
      const std::string what = fmt::format("{} {} in rows of {}", name_of(mode), c.family, c.sequence);
      EXPECT_EQ(copies.losses, ddp.losses) << what;
      EXPECT_EQ(copies.norms, ddp.norms) << what;
      EXPECT_EQ(copies.held_out, ddp.held_out) << what;
      EXPECT_EQ(copies.scales, ddp.scales) << what;
      EXPECT_TRUE(copies.parameters == ddp.parameters) << what;
      EXPECT_LT(copies.arena, ddp.arena) << what;
      EXPECT_GT(copies.arena, whole.arena) << what;
    }
  }
}

// Other numbers of holders and copies, several micro-batches and a wire in bf16 add up in other orders.
TEST(Ranks, CopiesOfTheStateOnAnyNumberAreOneRanksStep) {
  for (const auto& [ranks, shards] : {std::pair{4, 2}, std::pair{6, 2}, std::pair{6, 3}, std::pair{3, 3}})
    for (const bool bf16_wire : {false, true}) {
      const RankCase c{.micro_batches = 12, .bf16_wire = bf16_wire, .shards = shards};
      const RankRun alone = train_on(1, Mode::ddp, c);
      for (const Mode mode : {Mode::zero1, Mode::fsdp}) {
        const RankRun ran = train_on(ranks, mode, c);
        const std::string what = fmt::format("{} on {} in {}s", name_of(mode), ranks, shards);
        expect_close(ran, alone, bf16_wire ? 1e-2 : 1e-5, what);
        EXPECT_EQ(ran, train_on(ranks, mode, c)) << what << ": again";
      }
    }
}

// Half of the tokens take less than two thirds of what all of them do.
TEST(Ranks, RanksOfARowKeepAPartOfItsActivations) {
  config::Model model = tiny_model("llama");
  model.kv_heads = 4;
  const auto transient = [&](int sequence) {
    LoweringOptions o = options_of({}, 4);
    o.batch = {.rows = 1, .seq_len = 512, .max_segments = 4};
    o.sharing = {.rank = 1, .ranks = 4, .mode = Mode::ddp, .sequence = sequence};
    const program::ArenaPlan& plan = lower(model, o).set.memory.device;
    return plan.total - plan.persistent;
  };
  EXPECT_LT(transient(2), 2 * transient(1) / 3);
  EXPECT_LT(transient(4), 2 * transient(2) / 3);
}

TEST(Ranks, WorkingCopiesAreThoseOfOneRank) {
  const RankCase c{.compute = DType::bf16};
  const RankRun alone = train_on(1, Mode::ddp, c);
  std::map<Mode, RankRun> by_mode;
  for (const Mode mode : kModes) {
    by_mode[mode] = train_on(4, mode, c);
    expect_close(by_mode[mode], alone, 2e-3, std::string(name_of(mode)));
  }
  for (const Mode mode : {Mode::zero1, Mode::fsdp}) {
    EXPECT_EQ(by_mode[mode].losses, by_mode[Mode::ddp].losses) << name_of(mode);
    EXPECT_EQ(by_mode[mode].parameters, by_mode[Mode::ddp].parameters) << name_of(mode);
    EXPECT_LT(by_mode[mode].arena, by_mode[Mode::ddp].arena) << name_of(mode);
  }
  EXPECT_LT(by_mode[Mode::fsdp].arena, by_mode[Mode::zero1].arena);
}

// An embedding of 50 rows ends within a block of the moments. Sums of gradients differ in their last bits with the
// number of ranks, and a moment then lies one place off, now and then.
TEST(Ranks, SmallMomentsAreThoseOfOneRank) {
  for (const char* moments : {"bf16", "8bit"}) {
    const RankCase c{.moments = moments, .vocab = 50};
    const RankRun alone = train_on(1, Mode::ddp, c);
    for (const int ranks : {2, 4}) {
      std::map<Mode, RankRun> by_mode;
      for (const Mode mode : kModes) {
        by_mode[mode] = train_on(ranks, mode, c);
        const std::string what = fmt::format("{} on {} ranks, {}", moments, ranks, name_of(mode));
        expect_close(by_mode[mode], alone, 1e-3, what);
        EXPECT_EQ(by_mode[mode], train_on(ranks, mode, c)) << what << ": again";
      }
      EXPECT_EQ(by_mode[Mode::zero1].parameters, by_mode[Mode::ddp].parameters) << moments;
      EXPECT_LT(by_mode[Mode::zero1].arena, by_mode[Mode::ddp].arena) << moments;
      if (ranks == c.micro_batches) {
        EXPECT_EQ(by_mode[Mode::fsdp].parameters, by_mode[Mode::ddp].parameters) << moments;
      }
    }
  }
}

// Weights travel in eight bits, and their scales are those of whole tensors: copies of each rank's part have the bytes
// that one rank makes of all.
TEST(Ranks, Fp8InAnyModeHasTheSameBits) {
  const std::vector<std::string> some = {"qkv/forward", "qkv/weight", "gate_up/input", "down/forward", "down/input"};
  const std::vector<std::string> experts = {"qkv/forward",         "expert_gate_up/forward", "expert_gate_up/input",
                                            "expert_down/forward", "expert_down/input",      "expert_down/weight"};
  for (const RankCase& c :
       {RankCase{.fp8 = Fp8::head}, RankCase{.family = "olmoe", .fp8 = Fp8::all, .fp8_only = experts},
        RankCase{.family = "qwen3", .tied = true, .micro_batches = 8, .fp8 = Fp8::head},
        RankCase{.family = "gemma3", .tied = true, .fp8 = Fp8::head}, RankCase{.fp8 = Fp8::all, .fp8_only = some},
        RankCase{.micro_batches = 8, .recompute = program::Recompute::block, .fp8 = Fp8::all},
        RankCase{.moments = "8bit", .fp8 = Fp8::all}, RankCase{.optimizer = &kNorMuon, .fp8 = Fp8::head}}) {
    const RankRun alone = train_on(1, Mode::ddp, c);
    for (const int ranks : {2, 4}) {
      std::map<Mode, RankRun> by_mode;
      for (const Mode mode : kModes) {
        by_mode[mode] = train_on(ranks, mode, c);
        const std::string what = fmt::format("{} on {} ranks, {}", c.family, ranks, name_of(mode));
        // A scale follows the largest of a step: other sums may move it by a factor of two.
        expect_close(by_mode[mode], alone, 2e-2, what);
        if (mode == Mode::ddp || (mode == Mode::fsdp && c.micro_batches != ranks)) continue;
        EXPECT_EQ(by_mode[mode].losses, by_mode[Mode::ddp].losses) << what;
        EXPECT_EQ(by_mode[mode].norms, by_mode[Mode::ddp].norms) << what;
        EXPECT_EQ(by_mode[mode].held_out, by_mode[Mode::ddp].held_out) << what;
        EXPECT_EQ(by_mode[mode].scales, by_mode[Mode::ddp].scales) << what;
        EXPECT_TRUE(by_mode[mode].parameters == by_mode[Mode::ddp].parameters) << what;
        EXPECT_LT(by_mode[mode].arena, by_mode[Mode::ddp].arena) << what;
      }
    }
  }
}

// A step's weights in eight bits are half the bytes of bf16, and one small collective agrees on all scales.
TEST(Ranks, Fp8SendsHalfTheBytesOfItsWeights) {
  const auto sent = [](const LoweredModel& m, std::string_view program) {
    std::int64_t bytes = 0, records = 0;
    for (const program::Node& node : m.set.find(program).nodes) {
      if (node.when == program::When::wait) continue;
      if (const auto* gather = std::get_if<dist::GatherShards<program::ValueId>>(&node.op))
        bytes += m.set.at(gather->data).bytes();
      if (const auto* all = std::get_if<dist::AllReduce<program::ValueId>>(&node.op)) records += all->largest;
    }
    return std::pair{bytes, records};
  };
  for (const Mode mode : {Mode::zero1, Mode::fsdp}) {
    const auto lowered = [&](Fp8 fp8) {
      const RankCase c{.compute = DType::bf16, .fp8 = fp8, .sixteens = true};
      LoweringOptions o = options_of(c, 4);
      o.sharing = {.rank = 1, .ranks = 4, .mode = mode};
      return lower(model_of(c), o);
    };
    const LoweredModel bf16 = lowered(Fp8::none), fp8 = lowered(Fp8::all);
    std::int64_t linears = 0;
    for (const ParameterSpec& p : fp8.table)
      if (!p.fp8.empty()) linears += p.shape.elements();
    const std::int64_t times = mode == Mode::fsdp ? 2 : 1;  // forward, and again for the way back
    const auto saved = static_cast<double>(sent(bf16, kFirst).first - sent(fp8, kFirst).first);
    // But for the gap behind the last parameter, which travels with units that travel whole.
    EXPECT_NEAR(saved, static_cast<double>(times * linears), 2 * kFlatAlignment) << name_of(mode);
    EXPECT_EQ(sent(fp8, kEvaluate).first, sent(bf16, kEvaluate).first) << name_of(mode);
    EXPECT_EQ(sent(fp8, kUpdate).second, 1) << name_of(mode);
    EXPECT_EQ(sent(bf16, kUpdate).second, 0) << name_of(mode);
  }
}

TEST(Ranks, AWireInBf16RoundsTheSums) {
  const RankCase exact{}, rounded{.bf16_wire = true};
  const RankRun want = train_on(4, Mode::zero1, exact);
  for (const Mode mode : kModes) {
    const RankRun got = train_on(4, mode, rounded);
    expect_close(got, want, 1e-2, std::string(name_of(mode)));
    EXPECT_NE(got.parameters, want.parameters);
  }
}

// Ranks have whole matrices of Muon's. Orthogonalising brings small singular values up, and with them what differs in
// the last bits of a gradient.
TEST(Ranks, MuonOnAnyNumberInAnyModeIsOneRanksStep) {
  for (const RankCase& c :
       {RankCase{.optimizer = &kMuon}, RankCase{.family = "qwen3", .tied = true, .optimizer = &kNorMuon},
        RankCase{.family = "olmoe", .optimizer = &kMuon}}) {
    const RankRun alone = train_on(1, Mode::ddp, c);
    for (const int ranks : {2, 4}) {
      std::map<Mode, RankRun> by_mode;
      for (const Mode mode : kModes) {
        by_mode[mode] = train_on(ranks, mode, c);
        expect_close(by_mode[mode], alone, 1e-5, fmt::format("{} on {} ranks, {}", c.family, ranks, name_of(mode)));
      }
      for (const Mode mode : {Mode::zero1, Mode::fsdp}) {
        if (mode == Mode::fsdp && c.micro_batches != ranks) continue;
        EXPECT_EQ(by_mode[mode].losses, by_mode[Mode::ddp].losses) << ranks << " " << name_of(mode);
        EXPECT_EQ(by_mode[mode].norms, by_mode[Mode::ddp].norms) << ranks << " " << name_of(mode);
        EXPECT_EQ(by_mode[mode].parameters, by_mode[Mode::ddp].parameters) << ranks << " " << name_of(mode);
      }
    }
  }
}

TEST(Ranks, NoRankHasAPartOfAMatrixOfMuons) {
  const config::Model model = tiny_model("llama");
  for (const int ranks : {2, 3, 4, 7}) {
    LoweringOptions o = options_of({.optimizer = &kNorMuon}, ranks);
    std::int64_t moved = 0, end = 0, momentum = 0, rows = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      o.sharing = {.rank = rank, .ranks = ranks, .mode = Mode::zero1};
      const LoweredModel m = lower(model, o);
      EXPECT_EQ(m.own.begin, end);
      end = m.own.end;
      moved += m.own.begin != Shards{m.layout.total, ranks}.begin(rank);
      for (const StoredParameter& p : m.layout.stored)
        EXPECT_TRUE(p.shape.size() != 2 || p.name.find("layers.") == p.name.npos || p.offset >= m.own.end ||
                    p.offset + p.elements <= m.own.begin ||
                    (p.offset >= m.own.begin && p.offset + p.elements <= m.own.end))
            << p.name;
      for (const optim::StateArray& a : m.state) {
        if (a.name == "momentum") momentum += a.elements();
        if (a.name == "row moments") rows += a.elements();
      }
      EXPECT_EQ(program::check_plan(m.set), std::vector<std::string>{});
      if (rank + 1 < ranks) continue;
      EXPECT_EQ(end, m.layout.total);
      EXPECT_EQ(momentum, m.state[m.row("momentum")].shared.elements());
    }
    EXPECT_GT(moved, 0) << ranks;
    EXPECT_GT(rows, 0);
  }
}

// Else they would wait for each other for ever. A copy of the weights, for the norms of updates, has room on some ranks
// alone, where these have fewer matrices.
TEST(Ranks, AllOfThemRunTheSameCollectivesInTheSameOrder) {
  const config::Model model = tiny_model("llama");
  std::map<bool, int> updates;
  for (const Optimizer* optimizer : {&kAdamW, &kMuon, &kNorMuon})
    for (const Mode mode : kModes)
      for (const auto& [ranks, shards] : {std::pair{2, 0}, {4, 0}, {7, 0}, {6, 3}})
        for (const std::int64_t seq_len : {2, 4, 8, 16, 32, 64}) {
          if (shards > 0 && mode == Mode::ddp) continue;
          LoweringOptions o = options_of({.optimizer = optimizer}, ranks);
          o.batch = {.rows = 1, .seq_len = seq_len, .max_segments = 4};
          o.norms = true;
          std::map<std::string, std::string> of_first;
          for (int rank = 0; rank < ranks; ++rank) {
            o.sharing = {.rank = rank, .ranks = ranks, .mode = mode, .shards = shards};
            const LoweredModel m = lower(model, o);
            std::map<std::string, std::string> sent;
            for (const program::Program& p : m.set.programs)
              for (const program::Node& node : p.nodes)
                if (is_collective(node.op) && node.when != program::When::wait)
                  sent[p.name] += fmt::format("{} {}; ", program::name_of(node.op), node.name);
            if (rank == 0) of_first = sent;
            EXPECT_EQ(sent, of_first) << name_of(mode) << " on " << ranks << ", rows of " << seq_len;
            ++updates[m.norms.has_updates];
          }
        }
  EXPECT_GT(updates[true], 20);
  EXPECT_GT(updates[false], 20);
}

// The plan's own checker, over the programs as ranks run them.
TEST(Ranks, ProgramsWithCollectivesKeepTheRulesOfPairs) {
  for (const Mode mode : kModes)
    for (const bool tied : {false, true})
      for (const bool accumulate : {false, true})
        for (const Fp8 fp8 : {Fp8::none, Fp8::head})
          for (const int ranks : {2, 3}) {
            RankCase c{.family = "qwen3",
                       .tied = tied,
                       .micro_batches = accumulate ? 2 * ranks : ranks,
                       .compute = DType::bf16,
                       .fp8 = fp8};
            for (int rank = 0; rank < ranks; ++rank) {
              LoweringOptions o = options_of(c, ranks);
              o.sharing = {.rank = rank, .ranks = ranks, .mode = mode, .bf16_wire = rank == 0};
              const LoweredModel m = lower(model_of(c), o);
              EXPECT_EQ(program::check_plan(m.set), std::vector<std::string>{}) << name_of(mode);
              for (const device::Kind kind : {device::Kind::cpu, device::Kind::cuda}) {
                LoweringOptions copies = o;
                copies.kind = kind;
                copies.sharing.ranks = 3 * ranks;
                copies.sharing.rank = ranks + rank;
                copies.sharing.shards = ranks;
                EXPECT_EQ(program::check_plan(lower(model_of(c), copies).set), std::vector<std::string>{})
                    << name_of(mode) << ", copies of the state";
              }
              if (ranks != 2) continue;
              o.sharing.sequence = 2;
              for (const device::Kind kind : {device::Kind::cpu, device::Kind::cuda}) {
                o.kind = kind;
                EXPECT_EQ(program::check_plan(lower(model_of(c), o).set), std::vector<std::string>{})
                    << name_of(mode) << ", shared rows";
              }
            }
          }
}

}  // namespace
}  // namespace redline::model
