// Every rung changes what runs, and the ladder keeps what pays: held on programs, options and batches, never on times.
#include "perf/ladder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "data/from_config.h"
#include "data/loader.h"
#include "model/lowering.h"
#include "perf/machines.h"
#include "testing/says.h"
#include "train/tiny_run.h"

namespace redline::perf {
namespace {

using testing::says;

using device::Kind;

// Large enough that logits come in chunks, with documents much shorter than a row.
const std::vector<std::string> kSmall = {"model.hidden=64",    "model.heads=4",       "model.ffn=128",
                                         "model.vocab=8192",   "train.seq_len=512",   "train.batch_size=64",
                                         "train.accumulate=4", "data.max_segments=32"};

config::Config small_run(const KeyValues& keys) {
  std::vector<std::string> overrides = kSmall;
  overrides.insert(overrides.end(), keys.begin(), keys.end());
  return testing::tiny_run(overrides);
}

std::map<std::string, Trial> by_name(const Ladder& ladder) {
  std::map<std::string, Trial> rows;
  for (const Trial& row : ladder.rows) rows[row.name] = row;
  return rows;
}

TEST(Ladder, EveryRungChangesWhatACardRuns) {
  const KeyValues naive = naive_keys(small_run({}), {64, 4, "none"});
  KeyValues keys = naive;
  int measured = 0;
  for (const Rung& rung : rungs(small_run({}))) {
    if (rung.keys.empty()) continue;
    const KeyValues before = keys;
    keys.insert(keys.end(), rung.keys.begin(), rung.keys.end());
    const Workload was = workload_of(small_run(before), Kind::cuda), is = workload_of(small_run(keys), Kind::cuda);
    EXPECT_NE(was, is) << rung.name;
    // And it changes it where its key says: a precision in the program, not in the batches.
    const std::string& key = rung.keys[0];
    EXPECT_EQ(was.batches != is.batches, key.starts_with("data.packing")) << rung.name;
    EXPECT_EQ(was.loader != is.loader, key.starts_with("data.workers")) << rung.name;
    EXPECT_EQ(was.execution != is.execution, key.starts_with("kernels.graphs")) << rung.name;
    EXPECT_EQ(was.products != is.products, key.starts_with("kernels.tuning")) << rung.name;
    const bool elsewhere =
        key.starts_with("data.") || key.starts_with("kernels.graphs") || key.starts_with("kernels.tuning");
    EXPECT_EQ(was.program != is.program, !elsewhere) << rung.name;
    ++measured;
  }
  EXPECT_EQ(measured, 18);
}

// A model that shares heads climbs from one that does not; another is only shown what sharing would give.
TEST(Ladder, GroupedQueriesStayWhereTheModelHasThem) {
  const Bench bench =
      bench_of(Kind::cuda, [](const config::Config& c) { return c.model.kv_heads == 4 ? 1000.0 : 1100.0; });
  const Ladder whole = climb(small_run, bench, {});
  const Trial asked = by_name(whole).at("GQA");
  EXPECT_EQ(asked.keys, (KeyValues{"model.kv_heads=1"}));
  EXPECT_NEAR(asked.over_before, 1.1, 1e-9);
  EXPECT_FALSE(asked.kept);
  EXPECT_TRUE(says(asked.reason, {"another model"}));
  for (const std::string& key : whole.full) EXPECT_FALSE(key.starts_with("model.kv_heads")) << key;

  const LoadConfig shared = [](const KeyValues& keys) { return small_run(over({"model.kv_heads=2"}, keys)); };
  const Ladder grouped = climb(shared, bench, {});
  EXPECT_EQ(std::ranges::count(grouped.rows[0].keys, "model.kv_heads=4"), 1) << "the naive step shares none";
  EXPECT_TRUE(by_name(grouped).at("GQA").kept);
  EXPECT_EQ(std::ranges::count(grouped.full, "model.kv_heads=2"), 1);
}

// Experts have rows of their own, of other models, and what fused products save is counted for an expert's parts.
TEST(Ladder, ExpertsAreShownBesideOtherModels) {
  const LoadConfig load = [](const KeyValues& keys) {
    return small_run(over({"model.family=mixtral", "model.experts=8", "model.experts_per_token=2"}, keys));
  };
  const Bench bench = bench_of(Kind::cpu, [](const config::Config& c) {
    return 1000.0 * (c.model.experts == 2 ? 1.2 : 1) / static_cast<double>(c.model.experts_per_token);
  });
  const Ladder ladder = climb(load, bench, {});
  const std::map<std::string, Trial> rows = by_name(ladder);
  EXPECT_EQ(rows.at("no choice of experts").keys, (KeyValues{"model.experts=2"}));
  EXPECT_NEAR(rows.at("no choice of experts").over_before, 1.2, 1e-9);
  EXPECT_NEAR(rows.at("half the experts a token").over_before, 2, 1e-9);
  EXPECT_EQ(rows.at("no balance loss").keys, (KeyValues{"model.router_aux=0"}));
  for (const char* name : {"no choice of experts", "half the experts a token", "no balance loss"})
    EXPECT_FALSE(rows.at(name).kept) << name;
  for (const std::string& key : ladder.full) EXPECT_FALSE(key.starts_with("model.experts")) << key;
  // Weights that a run goes on from have as many experts as they have, and so do their tokens.
  config::Config goes_on = load({});
  goes_on.model.init_from = "hf";
  for (const Rung& rung : rungs(goes_on, 1))
    if (rung.name == "no choice of experts" || rung.name == "half the experts a token") {
      EXPECT_TRUE(rung.keys.empty() && says(rung.lacks, "model.init_from")) << rung.name;
    }
  // Each row of an expert's input is read once more by a product of its own, its gradient is read and written once
  // more, and it is read once more for that of weights: four passes over rows x k of 64 floats, in two layers and four
  // micro-batches.
  const double passes = 4.0 * 64 * 512 * 2 * 64 * sizeof(float) * 2 * 4;
  EXPECT_NEAR(rows.at("fused gate and up").saved_bytes, passes, 1e-3 * passes);
  EXPECT_FALSE(by_name(climb(small_run, bench, {})).contains("no balance loss"));
}

TEST(Ladder, RanksHaveRungsForHowTheyShare) {
  Bench bench = bench_of(Kind::cuda, [](const config::Config& c) { return c.parallel.mode == "ddp" ? 900.0 : 1000.0; });
  const Trial alone = by_name(climb(small_run, bench, {})).at("DDP");
  EXPECT_EQ(alone.state, TrialState::no_effect);
  EXPECT_TRUE(says(alone.reason, {"one rank", "launch", "--gpus"}));
  bench.ranks = 2;
  const Ladder ladder = climb(small_run, bench, {});
  EXPECT_EQ(std::ranges::count(ladder.rows[0].keys, "parallel.mode=fsdp"), 1);
  auto rows = by_name(ladder);
  EXPECT_TRUE(rows.at("ZeRO-1").kept);
  EXPECT_NEAR(rows.at("DDP").over_before, 0.9, 1e-9);
  EXPECT_FALSE(rows.at("DDP").kept);
  EXPECT_EQ(std::ranges::count(ladder.full, "parallel.mode=zero1"), 1);
}

TEST(Ladder, RowsOfLogitsComeInSixteens) {
  for (const Kind kind : {Kind::cpu, Kind::cuda}) {
    EXPECT_EQ(model::lowering_options(small_run({"kernels.logits_rows=1000"}), kind).loss_chunk, 1008);
    EXPECT_EQ(model::lowering_options(small_run({"kernels.logits_rows=1"}), kind).loss_chunk, 16);
    EXPECT_GE(model::lowering_options(small_run({}), kind).loss_chunk, 512);
  }
}

// The packing of the options is that of the batches.
TEST(Ladder, PackingsMakeOtherBatches) {
  std::vector<std::vector<std::int32_t>> seen;
  std::vector<std::int64_t> real;
  for (const char* packing : {"pad", "bucket", "pack"}) {
    const config::Config c = small_run({fmt::format("data.packing={}", packing)});
    data::Loader loader(data::open_training_corpus(data::corpus_options(c.data)),
                        data::loader_options(c.data, model::batch_shape(c), true));
    data::Batch batch(model::batch_shape(c));
    ASSERT_TRUE(loader.next(batch));
    for (const auto& other : seen) EXPECT_NE(other, batch.tokens) << packing;
    seen.push_back(batch.tokens);
    real.push_back(batch.real_tokens);
  }
  EXPECT_LT(real[0], real[1]);
  EXPECT_LT(real[1], real[2]);
}

TEST(Ladder, ARungStaysOnlyWhereItMakesTheStepNoSlower) {
  // Graphs are slower here, fp8 does not run, and all else is a tenth faster.
  const Bench bench = bench_of(Kind::cuda, [](const config::Config& c) {
    if (c.precision.matmul == "fp8") return 0.0;
    double rate = c.kernels.graphs == "auto" ? 500 : 1000;
    if (c.precision.matmul != "fp32") rate *= 1.1;
    if (c.precision.matmul == "bf16") rate *= 1.1;
    if (c.data.packing == "pack") rate *= 2;
    if (c.train.recompute != "none") rate *= 0.9;
    return rate;
  });
  LadderOptions options;
  std::vector<std::string> names;
  options.progress = [&](const std::string& name, std::size_t number, std::size_t of) {
    names.push_back(name);
    EXPECT_LE(number, of);
  };
  const Ladder ladder = climb(small_run, bench, options);
  EXPECT_FALSE(ladder.stopped);
  auto rows = by_name(ladder);
  EXPECT_EQ(rows.at("naive").over_first, 1);
  EXPECT_TRUE(rows.at("tf32 products").kept);
  EXPECT_NEAR(rows.at("bf16 products").over_first, 1.21, 1e-9);
  EXPECT_NEAR(rows.at("bf16 products").over_before, 1.1, 1e-9);
  EXPECT_FALSE(rows.at("CUDA graphs").kept);
  EXPECT_NEAR(rows.at("CUDA graphs").over_before, 0.5, 1e-9);
  EXPECT_NEAR(rows.at("tuned products").over_before, 1, 1e-9) << "held against what stayed";
  EXPECT_EQ(rows.at("fp8 products").state, TrialState::failed);
  EXPECT_EQ(rows.at("fp8 products").reason, "no memory for it");
  EXPECT_EQ(rows.at("fp8 attention").state, TrialState::absent);
  EXPECT_FALSE(rows.at("fp8 attention").reason.empty());
  EXPECT_FALSE(rows.at("recompute mlp").kept);
  EXPECT_FALSE(rows.at("8-bit moments").kept) << "no faster: it only buys memory";
  EXPECT_EQ(rows.at("batch size").keys, (KeyValues{"train.batch_size=32", "train.accumulate=8"}));
  EXPECT_EQ(rows.at("fused AdamW").state, TrialState::not_separable);
  EXPECT_GT(rows.at("fused AdamW").saved_bytes, 0);
  EXPECT_GT(rows.at("fused QKV").saved_bytes, 0);
  // Eight passes over the input of three products, four over that of two, of the same size.
  EXPECT_EQ(rows.at("fused QKV").saved_bytes, 2 * rows.at("fused gate and up").saved_bytes);
  EXPECT_GT(rows.at("fused norms").saved_bytes, 0);
  EXPECT_NE(std::ranges::find(ladder.full, "data.packing=pack"), ladder.full.end());
  EXPECT_NE(std::ranges::find(ladder.full, "kernels.graphs=off"), ladder.full.end());
  EXPECT_EQ(std::ranges::count(ladder.full, "precision.matmul=bf16"), 1);
  EXPECT_EQ(names.front(), "naive");
  EXPECT_EQ(names.size(), 20u);
}

TEST(Ladder, ANaiveStepThatDoesNotFitIsARowAndNoEnd) {
  const Bench bench =
      bench_of(Kind::cuda, [](const config::Config& c) { return c.precision.matmul == "fp32" ? 0.0 : 1000.0; });
  const Ladder ladder = climb(small_run, bench, {});
  auto rows = by_name(ladder);
  EXPECT_EQ(rows.at("naive").state, TrialState::failed);
  EXPECT_EQ(rows.at("naive").reason, "no memory for it");
  EXPECT_TRUE(rows.at("tf32 products").kept);
  EXPECT_EQ(rows.at("bf16 products").over_first, 1) << "over the first that ran";
}

TEST(Ladder, TheNaiveStepGetsABatchThatFits) {
  Bench bench = bench_of(Kind::cuda, [](const config::Config&) { return 1000.0; });
  bench.fits = [](const config::Config& c) { return c.train.batch_size <= 16; };
  const Ladder ladder = climb(small_run, bench, {});
  const KeyValues& keys = ladder.rows[0].keys;
  EXPECT_NE(std::ranges::find(keys, "train.batch_size=16"), keys.end());
  EXPECT_NE(std::ranges::find(keys, "train.accumulate=16"), keys.end());
}

TEST(Ladder, TheCpuSaysWhatItCannotDo) {
  const Ladder ladder = climb(small_run, bench_of(Kind::cpu, [](const config::Config&) { return 100.0; }), {});
  auto rows = by_name(ladder);
  for (const char* name : {"tf32 products", "bf16 products", "flash attention", "best attention", "CUDA graphs",
                           "tuned products", "all proposals"}) {
    EXPECT_EQ(rows.at(name).state, TrialState::no_effect) << name;
    EXPECT_TRUE(says(rows.at(name).reason, {"CPU"}));
  }
  EXPECT_EQ(rows.at("fp8 products").state, TrialState::failed);
  EXPECT_TRUE(says(rows.at("fp8 products").reason, {"simulates"}));
  for (const char* name : {"buckets", "packing", "logits in chunks", "no dropout", "recompute block", "bf16 moments"})
    EXPECT_EQ(rows.at(name).state, TrialState::measured) << name;
}

TEST(Ladder, LeavesOneOutOfTheFullStep) {
  const Bench bench =
      bench_of(Kind::cuda, [](const config::Config& c) { return c.kernels.attention == "reference" ? 250.0 : 1000.0; });
  LadderOptions options;
  options.without = true;
  const Ladder ladder = climb(small_run, bench, options);
  auto rows = by_name(ladder);
  EXPECT_EQ(rows.at("the full step").measured.tokens_per_s, 1000);
  EXPECT_EQ(rows.at("without flash attention").keys, (KeyValues{"kernels.attention=reference"}));
  EXPECT_EQ(rows.at("without flash attention").over_before, 0.25);
  EXPECT_EQ(rows.at("without best attention").keys, (KeyValues{"kernels.attention=flash"}));
  EXPECT_EQ(rows.at("without best attention").over_before, 1);
  EXPECT_EQ(rows.at("without all proposals").keys, (KeyValues{"kernels.tuning=on"}));
  EXPECT_EQ(rows.at("without packing").keys, (KeyValues{"data.packing=bucket"}));
}

TEST(Ladder, ASignalEndsItWithTheRowsSoFar) {
  StopFlag stop = 0;
  int measured = 0;
  Bench bench = bench_of(Kind::cuda, [&](const config::Config&) {
    if (++measured == 3) stop = 2;
    return 1000.0;
  });
  LadderOptions options;
  options.stop = &stop;
  const Ladder ladder = climb(small_run, bench, options);
  EXPECT_TRUE(ladder.stopped);
  EXPECT_EQ(ladder.rows.size(), 3u);
}

TEST(Ladder, TiersAreListsOfKeysThatLoad) {
  const Bench bench = bench_of(Kind::cuda, [](const config::Config& c) {
    return c.kernels.deterministic ? 100.0 : c.precision.matmul == "fp8" ? 300.0 : 200.0;
  });
  const Ladder ladder = climb_tiers(small_run, bench, {}, "fastest");
  ASSERT_EQ(ladder.rows.size(), 3u);
  EXPECT_EQ(ladder.rows[0].name, "safe");
  EXPECT_EQ(ladder.rows[2].over_first, 3);
  EXPECT_EQ(ladder.rows[2].over_before, 1.5);
  EXPECT_EQ(climb_tiers(small_run, bench, {}, "safe").rows.size(), 1u);
  EXPECT_THROW(climb_tiers(small_run, bench, {}, "fasted"), UserError);
}

}  // namespace
}  // namespace redline::perf
