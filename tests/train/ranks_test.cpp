// Whole runs on several ranks, which are threads here: the losses of one rank, checkpoints that any number of ranks
// goes on from, one stop for all, and what one rank cannot do told on all.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <limits>
#include <map>

#include "io/checkpoint_folder.h"
#include "testing/paths.h"
#include "testing/ranks_here.h"
#include "testing/temp_folder.h"
#include "testing/thread_group.h"
#include "train/memory_advice.h"
#include "train/on_ranks.h"
#include "train/run_folder.h"
#include "train/tiny_run.h"

namespace redline::train {
namespace {

using dist::Mode;
using testing::RanksHere;
using testing::ThreadGroup;

constexpr int kMicroBatches = 12;  // of a step, whoever computes them

// `ranks`, or groups of them that share rows.
config::Config config_for(int ranks, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {fmt::format("train.accumulate={}", kMicroBatches / ranks),
                             fmt::format("parallel.ranks={}", ranks), "train.max_steps=12", "train.batch_size=1"});
  return tiny_run(std::move(more));
}

// Makes one of a rank's totals no number, once.
class Spoiled final : public dist::Group {
 public:
  Spoiled(dist::Group& group, int rank, int at) : group_(group), left_(group.rank() == rank ? at : -1) {}
  int rank() const override { return group_.rank(); }
  int ranks() const override { return group_.ranks(); }
  std::string engine() const override { return group_.engine(); }
  void run(const dist::AllReduce<Tensor>& op, void* stream) override {
    if (op.data.dtype == DType::f64 && left_-- == 0) *op.data.as<double>() = std::numeric_limits<double>::quiet_NaN();
    group_.run(op, stream);
  }
  void run(const dist::ReduceShards<Tensor>& op, void* stream) override { group_.run(op, stream); }
  void run(const dist::GatherShards<Tensor>& op, void* stream) override { group_.run(op, stream); }
  void run(const dist::AllToAll<Tensor>& op, void* stream) override { group_.run(op, stream); }

 private:
  dist::Group& group_;
  int left_;
};

struct Asked {
  bool resume = false;
  int stop_rank = -1;        // asked to stop
  std::int64_t stop_at = 0;  // once this many steps are told
  std::function<void(TrainOptions&, int rank)> change = {};
  int spoil_rank = -1;  // the totals of one of its steps are no numbers
  std::function<std::unique_ptr<device::Device>(int rank)> device = [](int) {
    return std::make_unique<device::CpuDevice>(1);
  };
};

struct RanksRan {
  Recorder seen;  // by rank 0
  std::vector<TrainResult> results;
  std::vector<std::string> errors;  // by rank; empty: none
};

RanksRan train_on(int ranks, Mode mode, const config::Config& config, const Path& folder, const Asked& asked = {}) {
  RanksRan ran;
  ran.results.resize(static_cast<std::size_t>(ranks));
  RanksHere words(ranks), saving(ranks);
  ThreadGroup::Common common(ranks);
  std::vector<StopFlag> stop(static_cast<std::size_t>(ranks));
  Hears stop_at([&](const Stepped& m) {
    if (asked.stop_rank >= 0 && m.step == asked.stop_at) stop[static_cast<std::size_t>(asked.stop_rank)] = SIGTERM;
  });
  ran.errors = words.run([&](io::Communicator& communicator) {
    const int rank = communicator.rank();
    ThreadGroup threads(common, rank);
    Spoiled group(threads, asked.spoil_rank, 6);
    RanksHere::One beside(saving, rank);
    const auto device = asked.device(rank);
    TrainOptions options = options_for(config, folder, {}, &stop[static_cast<std::size_t>(rank)]);
    options.resume = asked.resume;
    if (rank == 0) options.observers = {&ran.seen, &stop_at};
    if (ranks > 1)
      options.team = {.sharing = dist::sharing_of(config.parallel, rank, ranks, mode),
                      .group = &group,
                      .communicator = &communicator,
                      .saving = &beside,
                      .warn = {},
                      .progress = {},
                      .pace = {},
                      .paces = {}};
    if (asked.change) asked.change(options, rank);
    ran.results[static_cast<std::size_t>(rank)] = train(options, *device, real_files());
  });
  return ran;
}

void expect_close(const std::vector<double>& got, const std::vector<double>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5 * want[i]) << what << ", step " << i;
}

// A part of a run.
struct Leg {
  int ranks;
  Mode mode;
  int shards = 0;
};

class RankRuns : public ::testing::Test {
 protected:
  Path folder(const std::string& name) { return temp_.path() / name; }
  std::string file(const std::string& run, std::int64_t step, const char* name) {
    return real_files().read(checkpoint(folder(run), step) / name);
  }
  // A run that goes on with other numbers of ranks and copies of its state, so many steps on each, has the losses of
  // one rank.
  void expect_moves(const std::vector<std::string>& keys, std::int64_t steps,
                    const std::vector<Leg>& legs = {
                        {4, Mode::fsdp}, {2, Mode::zero1}, {3, Mode::ddp}, {1, Mode::ddp}}) {
    const RanksRan alone = train_on(1, Mode::ddp, config_for(1, keys), folder("alone"));
    std::vector<double> all;
    std::int64_t until = 0;
    for (const auto& [ranks, mode, shards] : legs) {
      until += steps;
      const bool last = until == std::ssize(legs) * steps;
      std::vector<std::string> with = keys;
      with.push_back(fmt::format("parallel.shards={}", shards));
      const RanksRan ran =
          train_on(ranks, mode, config_for(ranks, with), folder("moved"),
                   {.resume = until > steps, .stop_rank = last ? -1 : ranks - 1, .stop_at = until - 1});
      ASSERT_EQ(ran.errors, std::vector<std::string>(static_cast<std::size_t>(ranks)));
      for (const TrainResult& r : ran.results) EXPECT_EQ(r.steps, until) << ranks;
      const std::vector<double> here = losses(ran.seen);
      all.insert(all.end(), here.begin(), here.end());
    }
    expect_close(all, losses(alone.seen), "moved");
  }
  testing::TempFolder temp_;
};

// Rank 0 reads the lines once for all: every rank has the same steps, those of a run alone.
TEST_F(RankRuns, EpochsOfAStreamAreCountedForAllRanks) {
  std::string lines;
  for (int i = 0; i < 260; ++i) lines += fmt::format("{{\"text\": \"{} {}\"}}\n", i, std::string(i % 60, 'z'));
  real_files().replace(folder("a.jsonl"), lines);
  const std::vector<std::string> keys = {"train.max_steps=0", "train.epochs=1", "data.tokenizer=bytes",
                                         "data.train=" + folder("a.jsonl").string(), "train.eval_every=0"};
  const RanksRan alone = train_on(1, Mode::ddp, config_for(1, keys), folder("alone"));
  const RanksRan ran = train_on(2, Mode::ddp, config_for(2, keys), folder("two"));
  for (const std::string& error : ran.errors) EXPECT_EQ(error, "");
  ASSERT_GT(alone.results[0].steps, 5);
  for (const TrainResult& result : ran.results) EXPECT_EQ(result.steps, alone.results[0].steps);
  expect_close(losses(ran.seen), losses(alone.seen), "two ranks");
  EXPECT_TRUE(any_has(ran.seen.notes, "was read once to count it"));
}

TEST_F(RankRuns, LossesAndFilesAreThoseOfOneRank) {
  const std::vector<std::string> steps = {"train.max_steps=6"};
  const RanksRan alone = train_on(1, Mode::ddp, config_for(1, steps), folder("alone"));
  ASSERT_EQ(alone.errors, std::vector<std::string>{""});
  ASSERT_EQ(alone.seen.steps.size(), 6u);
  for (const int ranks : {2, 4}) {
    std::map<Mode, RanksRan> by_mode;
    for (const Mode mode : {Mode::ddp, Mode::zero1, Mode::fsdp}) {
      const std::string name = fmt::format("{} {}", ranks, name_of(mode));
      RanksRan& ran = by_mode[mode] = train_on(ranks, mode, config_for(ranks, steps), folder(name));
      ASSERT_EQ(ran.errors, std::vector<std::string>(static_cast<std::size_t>(ranks))) << name;
      expect_close(losses(ran.seen), losses(alone.seen), name);
      expect_close(ran.seen.evaluations, alone.seen.evaluations, name);
      for (std::size_t i = 0; i < 6; ++i) {
        EXPECT_EQ(ran.seen.steps[i].tokens, alone.seen.steps[i].tokens);
        EXPECT_EQ(ran.seen.steps[i].padding, alone.seen.steps[i].padding);
        EXPECT_NEAR(ran.seen.steps[i].tflops * ran.seen.steps[i].step_ms,
                    alone.seen.steps[i].tflops * alone.seen.steps[i].step_ms, 1e-9);
      }
      for (const char* text : {"state.json", "config.json"}) EXPECT_EQ(file(name, 6, text).empty(), false) << text;
    }
    EXPECT_EQ(losses(by_mode[Mode::zero1].seen), losses(by_mode[Mode::ddp].seen));
    EXPECT_EQ(file(fmt::format("{} zero1", ranks), 6, "model.safetensors"),
              file(fmt::format("{} ddp", ranks), 6, "model.safetensors"));
    EXPECT_EQ(file(fmt::format("{} zero1", ranks), 6, "optimizer.safetensors"),
              file(fmt::format("{} ddp", ranks), 6, "optimizer.safetensors"));
  }
}

// Every setting with every way to share a run: it runs, with the losses of one rank and the same bits in all of them,
// or one sentence refuses it. docs/ranks.md has the table.
struct PairOf {
  std::string_view setting;
  std::vector<std::string> keys = {};
  config::Placement placement = {};
  double tolerance = 1e-5;  // of losses, to those of one rank: sums in another order move what is rounded
};
const std::vector<PairOf> kPairs = {
    {"`optim.name = \"muon\"`", {"optim.name=muon"}, {}, 1e-3},
    {"`optim.name = \"muon\"` with `optim.muon_beta2`", {"optim.name=muon", "optim.muon_beta2=0.9"}, {}, 1e-3},
    {"`optim.moments = \"bf16\"`", {"optim.moments=bf16"}, {}, 1e-3},
    {"`optim.moments = \"8bit\"`", {"optim.moments=8bit"}, {}, 1e-2},
    {"`train.average = \"ema\"`", {"train.average=ema", "train.average_steps=2"}},
    {"`train.average = \"last\"`", {"train.average=last", "train.average_steps=2"}},
    {"moments in the host's memory", {}, {.moments = true}},
    {"moments, masters, averages and residuals there, in fp8",
     {"precision.matmul=fp8", "train.average=ema", "train.average_steps=2"},
     {.moments = true, .masters = true, .averages = true, .residuals = true, .recompute = "block"},
     2e-2},
    {"`precision.matmul = \"fp8\"`", {"precision.matmul=fp8"}, {}, 2e-2},
    {"`precision.matmul = \"fp8\"` with `precision.head`", {"precision.matmul=fp8", "precision.head=fp8"}, {}, 2e-2},
    {"`precision.matmul = \"fp8\"` with Muon", {"precision.matmul=fp8", "optim.name=muon"}, {}, 2e-2},
    {"`precision.gradients = \"bf16\"`", {"precision.gradients=bf16"}},
    {"`precision.masters = \"bf16\"`", {"precision.masters=bf16"}},
    {"`model.experts`", {"model.family=olmoe", "model.experts=4", "model.experts_per_token=2"}, {}, 1e-3},
    {"`train.recompute = \"mlp\"`", {"train.recompute=mlp"}},
    {"`train.recompute = \"block\"`", {"train.recompute=block"}},
    {"`data.packing = \"pack\"`", {"data.packing=pack"}},
    {"`data.packing = \"stream\"`", {"data.packing=stream"}},
    {"`data.packing = \"bucket\"`", {"data.packing=bucket"}},
    {"`data.packing = \"pad\"`", {"data.packing=pad"}},
    {"`train.z_loss`", {"train.z_loss=1e-4"}},
    {"`log.norms_every`", {"log.norms_every=1"}},
    {"`log.norms_every` with Muon and short rows",
     {"log.norms_every=1", "optim.name=muon", "train.seq_len=8"},
     {},
     1e-3},
    {"`train.accumulate_from = 1`", {"train.accumulate_from=1", "train.accumulate_ramp_steps=1"}},
    {"`train.seq_len_from`", {"train.seq_len_from=16", "train.seq_len_ramp_steps=2"}},
    {"`train.max_hours`", {"train.max_hours=1"}},
    {"`train.max_hours` with `train.fit_hours`", {"train.max_hours=1", "train.fit_hours=true"}},
    {"`train.patience`", {"train.patience=2", "train.eval_every=1"}},
    {"`guard.spike`", {"guard.spike=50"}},
    {"`parallel.wire = \"bf16\"`", {"parallel.wire=bf16"}, {}, 1e-3},
};

TEST_F(RankRuns, EverySettingGoesWithEveryModeOrIsRefused) {
  constexpr int kRanks = 4;
  struct Shared {
    Mode mode;
    int shards = 0, sequence = 1;
  };
  constexpr Shared kAll[] = {{Mode::ddp},     {Mode::zero1},       {Mode::fsdp},
                             {Mode::fsdp, 2}, {Mode::zero1, 0, 2}, {Mode::fsdp, 2, 2}};
  std::string table =
      "| setting | `ddp` | `zero1` | `fsdp` | `fsdp`, `parallel.shards` | `zero1`, `parallel.sequence` | "
      "`fsdp`, both |\n|---|---|---|---|---|---|---|\n";
  for (std::size_t i = 0; i < kPairs.size(); ++i) {
    const PairOf& pair = kPairs[i];
    const bool ramp = pair.keys.size() == 2 && pair.keys[0] == "train.accumulate_from=1";
    const auto config = [&](int groups, int shards = 0, int sequence = 1) {  // of ranks that share rows
      std::vector<std::string> keys = {fmt::format("train.accumulate={}", (ramp ? 2 * kRanks : kRanks) / groups),
                                       fmt::format("parallel.shards={}", shards),
                                       fmt::format("parallel.sequence={}", sequence),
                                       "train.batch_size=1",
                                       "train.max_steps=3",
                                       "train.eval_every=3",
                                       "checkpoint.every=0",
                                       "model.dropout=0",
                                       "train.seq_len=32",
                                       fmt::format("parallel.ranks={}", groups)};
      keys.insert(keys.end(), pair.keys.begin(), pair.keys.end());
      config::Config c = tiny_run(std::move(keys));
      c.memory.placement = pair.placement;
      if (ramp) c.train.accumulate_from = kRanks / groups;
      return c;
    };
    table += fmt::format("| {} |", pair.setting);
    std::optional<RanksRan> alone, ddp;
    for (const auto& [mode, shards, sequence] : kAll) {
      const std::string name = fmt::format("{} {} {} {}", i, name_of(mode), shards, sequence);
      const std::string what = fmt::format("{} {}", pair.setting, name);
      const config::Config asked = config(kRanks / sequence, shards, sequence);
      const RanksRan ran = train_on(kRanks, mode, asked, folder(name));
      if (const NotOnRanks* const row = refused_by(asked, mode)) {
        for (const std::string& error : ran.errors) EXPECT_EQ(error, refusal(asked, mode)) << what;
        table += fmt::format(" no: {} |", row->because);
        continue;
      }
      table += " yes |";
      ASSERT_EQ(ran.errors, std::vector<std::string>(kRanks)) << what;
      EXPECT_EQ(ran.seen.warnings, std::vector<std::string>{}) << what;
      if (!alone) alone = train_on(1, Mode::ddp, config(1), folder(fmt::format("{} alone", i)));
      const std::vector<double> want = losses(alone->seen), got = losses(ran.seen);
      ASSERT_EQ(got.size(), 3u) << what;
      for (std::size_t step = 0; step < 3; ++step)
        EXPECT_NEAR(got[step], want[step], pair.tolerance * want[step]) << what;
      ASSERT_EQ(ran.seen.evaluations.size(), alone->seen.evaluations.size()) << what;
      EXPECT_NEAR(ran.seen.evaluations.back(), alone->seen.evaluations.back(),
                  pair.tolerance * alone->seen.evaluations.back())
          << what;
      if (mode == Mode::ddp) ddp = ran;
      if (mode == Mode::ddp || !ddp) continue;
      // With several micro-batches fsdp adds up in another order, and ranks that share rows always do; a sum that
      // travels as bf16 to all ranks is rounded once more than one that goes to its owner.
      if (sequence > 1 || (mode == Mode::fsdp && ramp) || asked.parallel.wire == "bf16") continue;
      EXPECT_EQ(got, losses(ddp->seen)) << what;
      EXPECT_EQ(ran.seen.evaluations, ddp->seen.evaluations) << what;
      EXPECT_TRUE(file(name, 3, "model.safetensors") == file(fmt::format("{} ddp 0 1", i), 3, "model.safetensors"))
          << what;
    }
    table += "\n";
  }
  const Path page = testing::source_folder() + "/docs/ranks.md";
  std::string text = real_files().read(page);
  const std::size_t begin = text.find("| setting | `ddp`"), end = text.find("\n\n", begin);
  ASSERT_NE(end, text.npos);
  if (std::getenv("REDLINE_UPDATE_DOCS")) real_files().replace(page, text.replace(begin, end + 1 - begin, table));
  EXPECT_TRUE(says(text, "\n\n" + table + "\n"))
      << "run tests_train once with REDLINE_UPDATE_DOCS=1 --gtest_filter='RankRuns.EverySetting*'";
}

// A rank's part of the gradients may lie in the host's memory in fsdp: the sums of several micro-batches find it there.
TEST_F(RankRuns, GradientsInTheHostsMemoryAreThoseOnTheDevice) {
  for (const int shards : {0, 2}) {
    config::Config c = config_for(4, {fmt::format("parallel.shards={}", shards), "train.max_steps=3"});
    const RanksRan here = train_on(4, Mode::fsdp, c, folder(fmt::format("here {}", shards)));
    c.memory.placement = {.moments = true, .gradients = true};
    const RanksRan there = train_on(4, Mode::fsdp, c, folder(fmt::format("there {}", shards)));
    ASSERT_EQ(there.errors, std::vector<std::string>(4)) << shards;
    ASSERT_EQ(losses(there.seen).size(), 3u);
    EXPECT_EQ(losses(there.seen), losses(here.seen)) << shards;
  }
}

// A dry run says on rank 0 what any of them would.
TEST_F(RankRuns, ADryRunIsAboutTheRankThatNeedsMost) {
  config::Config c = config_for(4, {"optim.name=muon", "model.layers=5", "train.seq_len=32", "memory.fit=none"});
  const std::int64_t most = memory_needed(c, device::Kind::cpu, {0, 4, Mode::fsdp});
  model::LoweringOptions first = model::lowering_options(c, device::Kind::cpu);
  first.sharing = {0, 4, Mode::fsdp};
  const std::int64_t of_first = model::lower(c.model, first).set.memory.device.total;
  ASSERT_LT(of_first, most);
  const Asked dry{.change = [](TrainOptions& o, int) { o.dry_run = true; }};
  for (const auto& [kib, fits] : {std::pair{of_first / 1024 + 1, false}, {most / 1024 + 1, true}}) {
    c.memory.limit = fmt::format("{}KiB", kib);
    const RanksRan ran = train_on(4, Mode::fsdp, c, folder("dry"), dry);
    EXPECT_EQ(ran.errors, std::vector<std::string>(4));
    EXPECT_EQ(any_has(ran.seen.warnings, "the run needs"), !fits);
  }
}

TEST_F(RankRuns, ARunGoesOnWithAnyNumberOfRanks) { expect_moves({}, 3); }

TEST_F(RankRuns, ARunGoesOnWithOtherCopiesOfItsState) {
  expect_moves({}, 3, {{4, Mode::fsdp, 2}, {6, Mode::zero1, 3}, {6, Mode::fsdp, 2}, {2, Mode::ddp}});
}
TEST_F(RankRuns, ARunOfMuonInFewBitsGoesOnWithOtherCopiesOfItsState) {
  expect_moves({"optim.name=muon", "optim.muon_beta2=0.9", "train.max_steps=6", "optim.moments=bf16"}, 2,
               {{4, Mode::fsdp, 2}, {4, Mode::zero1, 2}, {1, Mode::ddp}});
}

// Momentum and the moments of rows are shared out by matrices, and a checkpoint is the same for all.
TEST_F(RankRuns, ARunOfMuonGoesOnWithAnyNumberOfRanks) {
  expect_moves({"optim.name=muon", "optim.muon_beta2=0.9", "train.max_steps=8"}, 2);
}

// Scales are saved once for all ranks. With one micro-batch a rank all modes have the same bits, so a run that goes on
// in others has those of one that was not stopped.
TEST_F(RankRuns, ARunInFp8GoesOnInAnyModeToTheBit) {
  const config::Config c = config_for(2, {"train.accumulate=1", "train.max_steps=9", "precision.matmul=fp8",
                                          "precision.head=fp8", "checkpoint.every=0"});
  const RanksRan straight = train_on(2, Mode::ddp, c, folder("straight"));
  ASSERT_EQ(straight.errors, std::vector<std::string>(2));
  std::vector<double> all;
  for (const auto& [mode, until] : {std::pair{Mode::zero1, 3}, std::pair{Mode::fsdp, 6}, std::pair{Mode::zero1, 9}}) {
    const RanksRan ran = train_on(2, mode, c, folder("moved"),
                                  {.resume = until > 3, .stop_rank = until < 9 ? 1 : -1, .stop_at = until - 1});
    ASSERT_EQ(ran.errors, std::vector<std::string>(2)) << name_of(mode);
    for (const double loss : losses(ran.seen)) all.push_back(loss);
  }
  EXPECT_EQ(all, losses(straight.seen));
  for (const char* const name : {"model.safetensors", "optimizer.safetensors", optim::kFp8File})
    EXPECT_TRUE(file("moved", 9, name) == file("straight", 9, name)) << name;
}

// The ramp is of each rank's micro-batches: with as many for all of them, the same steps.
TEST_F(RankRuns, AStepThatGrowsDoesSoOnAllRanks) {
  const auto config = [](int ranks) {
    config::Config c = config_for(ranks, {"train.max_steps=8", "checkpoint.every=0"});
    c.train.accumulate_from = 4 / ranks;
    c.train.accumulate_ramp_steps = 1;
    return c;
  };
  const RanksRan alone = train_on(1, Mode::ddp, config(1), folder("alone"));
  EXPECT_LT(alone.seen.steps[0].tokens, alone.seen.steps[1].tokens / 2);
  for (const Mode mode : {Mode::ddp, Mode::zero1, Mode::fsdp}) {
    const std::string name(name_of(mode));
    const RanksRan ran = train_on(2, mode, config(2), folder(name));
    ASSERT_EQ(ran.errors, std::vector<std::string>(2)) << name;
    expect_close(losses(ran.seen), losses(alone.seen), name);
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(ran.seen.steps[i].tokens, alone.seen.steps[i].tokens) << name;
  }
  // Gradients of a first step of one micro-batch on each rank are added up after it, those of others after their last.
  for (const Mode mode : {Mode::ddp, Mode::zero1, Mode::fsdp}) {
    const std::string name = fmt::format("4 {}", name_of(mode));
    const RanksRan ran = train_on(4, mode, config(4), folder(name));
    ASSERT_EQ(ran.errors, std::vector<std::string>(4)) << name;
    expect_close(losses(ran.seen), losses(alone.seen), name);
  }
}

// Packed documents, dropout, evaluation and what a step counts, in whole runs.
TEST_F(RankRuns, RowsThatRanksShareAreThoseOfOneRank) {
  const std::vector<std::string> keys = {"train.max_steps=6", "model.heads=4", "model.kv_heads=2", "model.head_dim=8"};
  const RanksRan alone = train_on(1, Mode::ddp, config_for(1, keys), folder("alone"));
  ASSERT_EQ(alone.errors, std::vector<std::string>{""});
  for (const auto& [ranks, sequence] : {std::pair{2, 2}, std::pair{4, 2}, std::pair{4, 4}})
    for (const Mode mode : {Mode::ddp, Mode::zero1, Mode::fsdp}) {
      const std::string name = fmt::format("rows of {} on {}, {}", sequence, ranks, name_of(mode));
      std::vector<std::string> with = keys;
      with.push_back(fmt::format("parallel.sequence={}", sequence));
      const RanksRan ran = train_on(ranks, mode, config_for(ranks / sequence, with), folder(name));
      ASSERT_EQ(ran.errors, std::vector<std::string>(static_cast<std::size_t>(ranks))) << name;
      expect_close(losses(ran.seen), losses(alone.seen), name);
      expect_close(ran.seen.evaluations, alone.seen.evaluations, name);
      for (std::size_t i = 0; i < 6; ++i) {
        const StepMetrics &got = ran.seen.steps[i], &want = alone.seen.steps[i];
        EXPECT_EQ(got.tokens, want.tokens) << name;
        EXPECT_EQ(got.padding, want.padding) << name;
        EXPECT_EQ(got.eval_tokens, want.eval_tokens) << name;
        EXPECT_NEAR(got.tflops * got.step_ms, want.tflops * want.step_ms, 1e-9) << name;
      }
    }
}

// A resume may share rows otherwise: a step keeps its rows, and a checkpoint knows nothing of it.
TEST_F(RankRuns, ARunGoesOnWithAnotherSequence) {
  const std::vector<std::string> keys = {"train.max_steps=9", "model.heads=4", "model.head_dim=8",
                                         "train.sample_every=4", "train.sample_tokens=3"};
  const RanksRan alone = train_on(1, Mode::ddp, config_for(1, keys), folder("alone"));
  std::vector<double> all;
  std::int64_t until = 0;
  for (const auto& [ranks, sequence, mode] :
       {std::tuple{4, 4, Mode::fsdp}, std::tuple{4, 2, Mode::zero1}, std::tuple{2, 1, Mode::ddp}}) {
    until += 3;
    std::vector<std::string> with = keys;
    with.push_back(fmt::format("parallel.sequence={}", sequence));
    const RanksRan ran = train_on(ranks, mode, config_for(ranks / sequence, with), folder("moved"),
                                  {.resume = until > 3, .stop_rank = until == 9 ? -1 : 1, .stop_at = until - 1});
    ASSERT_EQ(ran.errors, std::vector<std::string>(static_cast<std::size_t>(ranks)));
    for (const TrainResult& r : ran.results) EXPECT_EQ(r.steps, until) << ranks;
    const std::vector<double> here = losses(ran.seen);
    all.insert(all.end(), here.begin(), here.end());
  }
  expect_close(all, losses(alone.seen), "moved");
}

TEST_F(RankRuns, OneThatIsAskedToStopStopsAllBehindTheSameStepAndResumeIsExact) {
  const RanksRan straight = train_on(2, Mode::zero1, config_for(2), folder("straight"));
  const RanksRan stopped = train_on(2, Mode::zero1, config_for(2), folder("stopped"), {.stop_rank = 1, .stop_at = 7});
  ASSERT_EQ(stopped.results[0].steps, stopped.results[1].steps);
  EXPECT_EQ(stopped.results[0].outcome, Outcome::stopped);
  EXPECT_LE(stopped.results[0].steps, 9);
  const RanksRan rest = train_on(2, Mode::zero1, config_for(2), folder("stopped"), {.resume = true});
  std::vector<double> all = losses(stopped.seen);
  for (const double loss : losses(rest.seen)) all.push_back(loss);
  EXPECT_EQ(all, losses(straight.seen));
  EXPECT_EQ(file("stopped", 12, "model.safetensors"), file("straight", 12, "model.safetensors"));
}

// By the clock of one rank its steps are long, so that each would be waited for; those of the other run ahead. Ranks
// that did both would stop after different steps, or wait for each other for ever.
TEST_F(RankRuns, StopAfterTheSameStepThoughOneOfThemIsSlow) {
  const auto config = config_for(2, {"checkpoint.every=0", "train.eval_every=0", "train.max_steps=60"});
  for (const int slow : {0, 1}) {
    Asked asked{.stop_rank = 1, .stop_at = 5};
    asked.device = [&](int rank) {
      auto device = std::make_unique<testing::AheadDevice>(1);
      if (rank == slow) device->stretch = 1000;
      return device;
    };
    const RanksRan ran = train_on(2, Mode::ddp, config, folder(fmt::format("slow {}", slow)), asked);
    ASSERT_EQ(ran.errors, std::vector<std::string>(2));
    EXPECT_EQ(ran.results[0].steps, ran.results[1].steps);
    EXPECT_EQ(ran.results[0].outcome, Outcome::stopped);
    EXPECT_EQ(ran.seen.saves, std::vector<std::int64_t>{ran.results[0].steps});
  }
}

TEST_F(RankRuns, WhatIsNotFiniteOnOneRankIsLeftOutOnAll) {
  for (const Mode mode : {Mode::ddp, Mode::zero1, Mode::fsdp}) {
    const std::string name(name_of(mode));
    const RanksRan ran = train_on(2, mode, config_for(2, {"checkpoint.every=0"}), folder(name), {.spoil_rank = 1});
    ASSERT_EQ(ran.errors, std::vector<std::string>(2)) << name;
    ASSERT_EQ(ran.seen.skipped.size(), 1u) << name;
    EXPECT_EQ(ran.seen.skipped[0].step, 7) << name;
    EXPECT_EQ(ran.results[0].steps, 12);
    EXPECT_EQ(ran.results[1].steps, 12);
    EXPECT_LT(ran.seen.evaluations.back(), ran.seen.evaluations.front()) << name;
  }
}

TEST_F(RankRuns, AFolderThatIsNotSharedIsRefused) {
  const RanksRan ran =
      train_on(2, Mode::zero1, config_for(2), folder("mine"), {.change = [&](TrainOptions& o, int rank) {
                 if (rank == 1) o.folder = folder("another");
               }});
  EXPECT_TRUE(says(ran.errors[0], {"not the same folder on every rank"}));
}

double rank_0_clock = 0;  // seconds
double clock_of_rank_0() { return rank_0_clock; }
double clock_of_others() { return 1e9 * rank_0_clock; }  // whatever it says

// Ranks save together: the clock of rank 0 decides, and all of them hear of it with a step's result.
TEST_F(RankRuns, SaveAfterTheSameStepByTheClockOfRank0) {
  for (const auto& [ranks, mode] : {std::pair{2, Mode::ddp}, std::pair{3, Mode::fsdp}}) {
    Hears clock([](const Stepped&) { rank_0_clock += 60; });
    const std::string name = fmt::format("timed {}", ranks);
    const RanksRan ran = train_on(ranks, mode, config_for(ranks, {"checkpoint.every=0", "checkpoint.minutes=3"}),
                                  folder(name), {.change = [&](TrainOptions& options, int rank) {
                                    options.hours_clock = rank == 0 ? clock_of_rank_0 : clock_of_others;
                                    if (rank == 0) options.observers.push_back(&clock);
                                  }});
    EXPECT_EQ(ran.errors, std::vector<std::string>(static_cast<std::size_t>(ranks)));
    // Three minutes are over after step 3, step 4 carries the word, and step 5 is followed by the save.
    EXPECT_EQ(ran.seen.saves, (std::vector<std::int64_t>{5, 10, 12}));
    EXPECT_EQ(io::checkpoint_problem(real_files(), checkpoint(folder(name), 10)), "");
  }
}

// Clocks of other ranks say anything: rank 0 counts the hours and the steps that fit, and rates are the same on all.
TEST_F(RankRuns, TheHoursAreThoseOfRank0) {
  const auto run = [&](const std::string& name, std::vector<std::string> keys) {
    rank_0_clock = 0;
    Hears clock([](const Stepped&) { rank_0_clock += 60; });
    keys.insert(keys.end(), {"train.max_steps=100", "checkpoint.every=0", "train.eval_every=0"});
    return train_on(2, Mode::zero1, config_for(2, keys), folder(name),
                    {.resume = real_files().exists(folder(name)), .change = [&](TrainOptions& options, int rank) {
                       options.hours_clock = rank == 0 ? clock_of_rank_0 : clock_of_others;
                       if (rank == 0) options.observers.push_back(&clock);
                     }});
  };
  const RanksRan ended = run("ended", {"train.max_hours=0.25"});
  ASSERT_EQ(ended.errors, std::vector<std::string>(2));
  EXPECT_EQ(ended.results[0].outcome, Outcome::finished);
  EXPECT_GT(ended.results[0].steps, 5);
  EXPECT_LT(ended.results[0].steps, 18);
  EXPECT_EQ(ended.results[1].steps, ended.results[0].steps);
  EXPECT_TRUE(any_has(ended.seen.endings, "train.max_hours = 0.25 are over"));

  const RanksRan longer = run("ended", {"train.max_hours=0.4"});
  ASSERT_EQ(longer.errors, std::vector<std::string>(2));
  EXPECT_GT(longer.results[0].steps, ended.results[0].steps);
  EXPECT_EQ(longer.results[1].steps, longer.results[0].steps);

  const RanksRan fitted = run("fitted", {"train.max_hours=0.75", "train.fit_hours=true"});
  ASSERT_EQ(fitted.errors, std::vector<std::string>(2));
  EXPECT_LT(fitted.results[0].steps, 50);
  EXPECT_EQ(fitted.results[1].steps, fitted.results[0].steps);
  EXPECT_LT(fitted.seen.steps.back().lr, 0.2 * fitted.seen.steps[15].lr) << "the rate falls to the end of the hours";
}

TEST_F(RankRuns, HeldOutTokensAreThoseOfOneRank) {
  const std::vector<std::string> keys = {"train.max_steps=1", "train.eval_tokens=700", "optim.lr=0", "optim.min_lr=0",
                                         "model.dropout=0"};
  const RanksRan alone = train_on(1, Mode::ddp, config_for(1, keys), folder("one"));
  const RanksRan three = train_on(3, Mode::ddp, config_for(3, keys), folder("three"));
  const StepMetrics &one = alone.seen.steps.back(), &many = three.seen.steps.back();
  ASSERT_TRUE(one.eval_tokens && many.eval_tokens);
  EXPECT_EQ(*one.eval_tokens, *many.eval_tokens);
  EXPECT_NEAR(*one.eval_loss, *many.eval_loss, 1e-6 * *one.eval_loss);
}

// Each rank judges by the losses that it knows: where they begin anew, they do so on all of them.
TEST_F(RankRuns, OtherHeldOutTokensBeginTheComparisonAnewOnEveryRank) {
  const auto with = [](const char* tokens, const char* steps) {
    return config_for(2, {tokens, steps, "train.eval_every=2", "train.patience=2", "checkpoint.every=0", "optim.lr=0",
                          "optim.min_lr=0"});
  };
  train_on(2, Mode::ddp, with("train.eval_tokens=500", "train.max_steps=4"), folder("run"));
  const RanksRan ran =
      train_on(2, Mode::ddp, with("train.eval_tokens=400", "train.max_steps=20"), folder("run"), {.resume = true});
  EXPECT_EQ(ran.errors, std::vector<std::string>(2));
  for (const TrainResult& result : ran.results) EXPECT_EQ(result.steps, 10);
  EXPECT_EQ(ran.seen.saves, (std::vector<std::int64_t>{6, 10})) << "step 6 is the best of its kind";
}

}  // namespace
}  // namespace redline::train
