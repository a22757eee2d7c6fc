// `redline doctor` names the illness that was planted, first; and lets the healthy be. Runs on the CPU are real ones.
// Runs on a card are records that the test writes, with figures that were measured on an H200 where there are any
// (bench/results), and made up from them where there are none; each test says which.
#include "cli/doctor.h"

#include <fmt/format.h>

#include "cli/program.h"
#include "config/load.h"
#include "model/family.h"
#include "report/metrics.h"
#include "testing/page_data.h"
#include "testing/paths.h"
#include "testing/says.h"
#include "train/illness.h"

namespace redline::cli {
namespace {

using testing::says;

using train::Illness;

std::string_view key_of(Illness illness) { return train::row_of(illness).key; }

// A run of a preset on an H200, as its folder would hold it.
struct Recorded {
  std::string preset;
  std::vector<std::string> settings;
  train::StepMetrics step;  // all of them alike
  double evaluation_s = 0;  // of all evaluations, one every train.eval_every steps
  double save_s = 0, held_s = 0;
  std::vector<std::string> warnings = {}, notes = {};

  config::Config config() const { return config::load({"", preset, settings}, model::settle_family); }
};

class DoctorTest : public ProgramTest {
 protected:
  static constexpr int kSteps = 200;

  static train::StepMetrics step(double ms, double mfu) {
    train::StepMetrics m;
    m.step_ms = ms;
    m.device_ms = 0.998 * ms;
    m.idle_ms = 0.002 * ms;
    m.data_wait_ms = 0.001 * ms;
    m.tokens = 65536;
    m.mfu = mfu;
    m.tflops = 989.5 * mfu;
    m.loss = 4;
    m.grad_norm = 1;
    m.lr = 1e-3;
    return m;
  }

  Path write_run(const Recorded& run) {
    const config::Config config = run.config();
    std::string metrics, events, goodput;
    const io::Json started = {
        {"time", 1e9},           {"step", 0},
        {"kind", "started"},     {"version", 1},
        {"program", "redline"},  {"steps", std::max<std::int64_t>(kSteps, config.train.max_steps)},
        {"first_step", 0},       {"device", "NVIDIA H200"},
        {"card", true},          {"device_memory", 150.1e9},
        {"peak_flops", 989.5e12}};
    events = started.dump() + "\n";
    const auto event = [&](double time, std::int64_t step, io::Json fields) {
      io::Json row = {{"time", time}, {"step", step}};
      row.update(fields);
      events += row.dump() + "\n";
    };
    for (const std::string& text : run.warnings) event(1e9, 0, {{"kind", "warning"}, {"text", text}});
    for (const std::string& text : run.notes) event(1e9, 0, {{"kind", "note"}, {"text", text}});
    double time = 1e9;
    for (int i = 1; i <= kSteps; ++i) {
      train::StepMetrics m = run.step;
      m.step = i;
      m.loss -= 0.005 * i;
      m.time = time += 1e-3 * m.step_ms;
      if (config.train.eval_every > 0 && i % config.train.eval_every == 0) m.eval_loss = 4;
      metrics += report::metrics_row(m);
      if (run.save_s > 0 && i % config.checkpoint.every == 0)
        event(time, i,
              {{"kind", "checkpoint"}, {"folder", "c"}, {"seconds", run.save_s}, {"held_seconds", run.held_s}});
    }
    event(time, kSteps, {{"kind", "finished"}, {"text", "done"}});
    io::Json seconds = io::Json::object();
    for (const train::PartName& part : train::kParts) seconds[std::string(part.key)] = 0.0;
    seconds["steps"] = 1e-3 * kSteps * run.step.step_ms;
    seconds["evaluation"] = run.evaluation_s;
    const io::Json account = {{"time", time},    {"step", kSteps},     {"began", 1e9},
                              {"first_step", 0}, {"seconds", seconds}, {"tokens", kSteps * run.step.tokens}};
    goodput = account.dump() + "\n";
    const Path folder = folder_ / fmt::format("run{}", ++runs_);
    real_files().create_folders(folder);
    for (const auto& [name, text] : {std::pair("metrics.jsonl", metrics),
                                     {"events.jsonl", events},
                                     {"goodput.jsonl", goodput},
                                     {"config.toml", config::dump(config)}})
      real_files().replace(folder / name, text);
    return folder;
  }

  perf::Diagnosis diagnosis_of(const Recorded& run) {
    const report::RunRecord record = report::read_run(real_files(), write_run(run));
    EXPECT_EQ(record.problems, std::vector<std::string>{});
    const config::Config config = run.config();
    return perf::diagnose(config, machine_of(record), observed_in(record, config));
  }

  static std::string first_of(const perf::Diagnosis& d) {
    return d.findings.empty() ? "nothing" : std::string(d.findings[0].row().key);
  }

  // A real run on the CPU, and what doctor says of it. Batches are made between steps: beside them, a busy machine has
  // its own say in how long they take.
  io::Json trained(const std::string& name, const Words& more) {
    Words words = {"train",
                   "--device",
                   "cpu",
                   "--out",
                   name,
                   "model.layers=2",
                   "model.hidden=64",
                   "model.heads=2",
                   "model.ffn=128",
                   "train.batch_size=4",
                   "train.seq_len=128",
                   "train.eval_every=0",
                   "train.eval_batches=1",
                   "train.max_steps=30",
                   "checkpoint.every=0",
                   "optim.warmup_steps=0",
                   "data.workers=0"};
    words.insert(words.end(), more.begin(), more.end());
    const Ran ran = run(words);
    EXPECT_EQ(ran.status, 0) << ran.err;
    return doctor({"doctor", name, "--json"}, 1);
  }
  io::Json doctor(const Words& words, int status) {
    const Ran ran = run(words);
    EXPECT_EQ(ran.status, status) << ran.out << ran.err;
    return io::parse_json(ran.out, "stdout");
  }
  static io::Json first(const io::Json& said) {
    return said["findings"].empty() ? io::Json{{"illness", "nothing"}, {"set", {""}}, {"gain", 0}, {"caution", ""}}
                                    : said["findings"][0];
  }
  static void expect_first(const io::Json& said, Illness illness) {
    ASSERT_FALSE(said["findings"].empty()) << said.dump(1);
    EXPECT_EQ(said["findings"][0]["illness"], key_of(illness)) << said.dump(1);
    EXPECT_GE(said["findings"][0]["share"], 0.05) << "that is what counts as planted";
    EXPECT_EQ(said["healthy"], false);
  }

  int runs_ = 0;
};

// bench/results/h200_models.json: five models as they were measured.
TEST_F(DoctorTest, FiveHealthyRunsHaveNothingToMend) {
  struct Row {
    const char* preset;
    int rows;
    double ms, mfu;
  };
  for (const Row& row :
       {Row{"ping-95m", 128, 183.8, 0.458}, Row{"gqa-180m", 64, 155.3, 0.499}, Row{"cs336-350m", 32, 150.2, 0.503},
        Row{"llama-1.29b", 24, 653.8, 0.595}, Row{"qwen3-1.8b", 8, 282.6, 0.570}}) {
    Recorded run{
        row.preset, {fmt::format("train.batch_size={}", row.rows), "train.accumulate=1"}, step(row.ms, row.mfu)};
    run.step.gpu.emplace();  // as such a run has it: docs/monitoring.md
    run.step.gpu->clock_mhz = 1500;
    run.step.gpu->max_clock_mhz = 1980;
    run.step.gpu->throttle = "power cap";
    const perf::Diagnosis d = diagnosis_of(run);
    EXPECT_EQ(first_of(d), "nothing") << row.preset;
    EXPECT_NEAR(d.parts.ms(), d.step_ms, 0.01 * d.step_ms) << row.preset;
    EXPECT_NEAR(d.mfu, row.mfu, 1e-3) << row.preset;
    EXPECT_NEAR(d.of_plan, 1, 0.1) << row.preset;
  }
}

// A run with nothing to mend: the program says so and exits with 0; that fp8 would pay is no illness.
TEST_F(DoctorTest, AHealthyRunExitsWithZero) {
  const Path folder = write_run({"llama-1.29b", {"train.batch_size=24", "train.accumulate=1"}, step(653.8, 0.595)});
  const Ran ran = run({"doctor", folder.string()});
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(says(ran.out, {"nothing to mend", "NVIDIA H200", "products", "attention", "head", "update", "mfu 59.5%",
                             "█", "faster, for another result", "precision.matmul=fp8"}));
  EXPECT_EQ(ran.err, "");
}

// A real run: documents of ping are about 200 tokens, in rows of 1024.
TEST_F(DoctorTest, Padding) {
  const io::Json said =
      trained("a", {"data.packing=pad", "train.seq_len=1024", "train.batch_size=2", "train.max_steps=15"});
  expect_first(said, Illness::padding);
  EXPECT_EQ(first(said)["set"], io::Json({"data.packing=pack"}));
  EXPECT_GT(first(said)["gain"], 2.0);
}

// Whole documents leave gaps where no more of them close a batch: the cure is to cut them.
TEST_F(DoctorTest, PaddingOfPackedRows) {
  std::string lines;  // pieces of 64, 64 and 40 tokens: no row of 64 has room for two
  for (int i = 0; i < 100; ++i) lines += fmt::format("{{\"text\": \"{}\"}}\n", std::string(167, 'a'));
  write("gaps.jsonl", lines);
  const io::Json said = trained("a", {"data.train=gaps.jsonl", "data.tokenizer=bytes", "data.packing=pack",
                                      "train.seq_len=64", "train.max_steps=15"});
  expect_first(said, Illness::padding);
  EXPECT_EQ(first(said)["set"], io::Json({"data.packing=stream"}));
}

// Copies that computing hides cost nothing, and those that are waited for are a part.
TEST_F(DoctorTest, BytesThatMoveCostWhatThePlanSays) {
  const Words words = {"llama-1.36b", "--card", "h200", "--json", "memory.limit=24GiB"};
  const Ran planned = run(Words{"plan"} + words), examined = run(Words{"doctor"} + words);
  const io::Json plan = io::parse_json(planned.out, "stdout"), said = io::parse_json(examined.out, "stdout");
  EXPECT_GT(plan["host_arena_bytes"], 0);
  const double wanted = plan["expected"]["tokens_per_s"], rate = said["tokens_per_s"];
  EXPECT_NEAR(rate / wanted, 1, 0.01);
  const auto copies = std::ranges::find(said["parts"], "copies", [](const io::Json& part) { return part["part"]; });
  ASSERT_NE(copies, said["parts"].end()) << said["parts"].dump(1);
  EXPECT_GT((*copies)["ms"], 0);
}

// bench/results/h200_packed.json: padding on a card, which packing made 4.2 times as fast.
TEST_F(DoctorTest, PaddingOnACard) {
  Recorded run{"ping-95m", {"data.packing=pad"}, step(135.9, 0.09)};
  run.step.padding = 0.805;
  const perf::Diagnosis d = diagnosis_of(run);
  EXPECT_EQ(first_of(d), "padding");
  EXPECT_GT(d.findings[0].gain, 3);
  EXPECT_LT(d.findings[0].gain, 5.5);
}

// A real run: a step of 16 tokens moves all weights and moments for little work.
TEST_F(DoctorTest, ATinyBatch) {
  const io::Json said =
      trained("a", {"model.vocab=8192", "train.batch_size=1", "train.seq_len=16", "data.max_segments=1"});
  expect_first(said, Illness::small_batch);
  EXPECT_TRUE(says(first(said)["caution"].get<std::string>(), {"rows instead of 1"}));
}

// Made up: each of four ranks has one row of a step.
TEST_F(DoctorTest, ATinyBatchOnRanksCountsTheRowsOfAll) {
  const perf::Diagnosis d =
      diagnosis_of({"gqa-180m",
                    {"train.batch_size=1", "train.accumulate=1", "train.seq_len=256", "parallel.ranks=4"},
                    step(20, 0.05)});
  const auto tiny = std::ranges::find(d.findings, Illness::small_batch, &perf::Finding::illness);
  ASSERT_NE(tiny, d.findings.end());
  const std::string rows = tiny->changes.at(0).substr(std::string("train.batch_size=").size());
  EXPECT_TRUE(says(tiny->caution, fmt::format("{} rows instead of 4", 4 * std::stoi(rows))));
}

// A real run.
TEST_F(DoctorTest, RecomputeWithoutNeed) {
  const io::Json said = trained("a", {"train.recompute=block"});
  expect_first(said, Illness::recompute);
  EXPECT_EQ(first(said)["set"], io::Json({"train.recompute=none"}));
}

// bench/results/h200_settings.json: 196.7 ms, and 161.2 without.
TEST_F(DoctorTest, RecomputeOnACard) {
  const perf::Diagnosis d = diagnosis_of(
      {"gqa-180m", {"train.batch_size=64", "train.accumulate=1", "train.recompute=block"}, step(196.7, 0.394)});
  EXPECT_EQ(first_of(d), "recompute");
  EXPECT_NEAR(d.findings[0].gain, 196.7 / 161.2, 0.06);
}

// Where nothing else fits, recompute is needed.
TEST_F(DoctorTest, RecomputeThatIsNeededIsNoIllness) {
  const perf::Diagnosis d = diagnosis_of(
      {"llama-1.29b", {"train.batch_size=96", "train.accumulate=1", "train.recompute=block"}, step(3250, 0.48)});
  EXPECT_EQ(first_of(d), "nothing");
}

// A real run that saves after every step.
TEST_F(DoctorTest, FrequentSaves) { expect_first(trained("a", {"checkpoint.every=1"}), Illness::frequent_saves); }

// A real run that evaluates after every step.
TEST_F(DoctorTest, FrequentEvaluation) {
  const io::Json said = trained("a", {"train.eval_every=1", "train.eval_batches=4"});
  expect_first(said, Illness::frequent_evaluation);
  EXPECT_EQ(first(said)["set"], io::Json({"train.eval_every=7"})) << "of 30 steps, so that it is still evaluated";
}

// A real run that cannot learn, and one that has no time to.
TEST_F(DoctorTest, ARateOfZeroIsAnIllness) {
  const io::Json said = trained("a", {"optim.lr=0", "optim.min_lr=0"});
  expect_first(said, Illness::rate);
  EXPECT_EQ(first(said)["of"], "learning");
  EXPECT_EQ(first(said)["loss_ms"], 0.0);
  const Ran text = run({"doctor", "a"});
  EXPECT_TRUE(says(text.out, {"a rate that does not teach", "optim.lr", "all that the run learns"}));
}

TEST_F(DoctorTest, NothingButWarmUpIsAnIllness) {
  const io::Json said = trained("a", {"optim.warmup_steps=30"});
  expect_first(said, Illness::all_warm_up);
  EXPECT_EQ(first(said)["set"], io::Json({"optim.warmup_steps=2"}));
  // A configuration shows it before it runs.
  const io::Json planned =
      doctor({"doctor", "llama-1.29b", "--card", "h200", "--json", "optim.warmup_steps=150000"}, 1);
  EXPECT_EQ(first(planned)["illness"], key_of(Illness::all_warm_up));
}

// A real run: no thread makes batches beside the steps, and of every long document all is read and little is kept.
TEST_F(DoctorTest, AStarvingLoader) {
  std::string text, rows;
  for (int i = 0; i < 4000; ++i) text += "the quick brown fox jumps over the lazy dog. ";
  for (int i = 0; i < 20; ++i) rows += io::Json{{"text", fmt::format("{} {}", i, text)}}.dump() + "\n";
  write("long.jsonl", rows);
  write("short.jsonl", "{\"text\": \"the quick brown fox jumps over the lazy dog again and again\"}\n");
  const io::Json said = trained(
      "a", {"data.train=long.jsonl", "data.eval=short.jsonl", "data.tokenizer=bytes", "data.long_documents=truncate",
            "data.workers=0", "model.layers=1", "model.hidden=8", "model.ffn=8", "train.seq_len=64"});
  expect_first(said, Illness::starving_loader);
  EXPECT_EQ(first(said)["set"], io::Json({"data.workers=-1"}));
}

// Made up: a checkpoint of llama-1.29b (15.5 GB, which local disks take 9 s for) on a disk of 100 MB/s.
TEST_F(DoctorTest, ASlowDisk) {
  Recorded run{
      "llama-1.29b", {"train.batch_size=24", "train.accumulate=1", "checkpoint.every=100"}, step(653.8, 0.595)};
  run.save_s = 155;
  run.held_s = 155 - 65.4;
  const perf::Diagnosis d = diagnosis_of(run);
  ASSERT_EQ(first_of(d), "slow_disk");
  EXPECT_EQ(d.findings[0].changes, std::vector<std::string>{"checkpoint.every=500"});
  EXPECT_NEAR(d.parts[perf::StepPart::saving].ms, 896, 1);
}

// Measured on an H200: 34.7 ms, and 1.07 times as fast with 151,680 (docs/performance.md).
TEST_F(DoctorTest, AnOddVocabulary) {
  const perf::Diagnosis d =
      diagnosis_of({"gqa-180m",
                    {"train.accumulate=1", "model.vocab=151669", "precision.matmul=fp8", "precision.head=fp8"},
                    step(34.7, 0.41)});
  ASSERT_EQ(first_of(d), "vocabulary");
  EXPECT_NEAR(d.findings[0].gain, 1.07, 0.02);
  EXPECT_EQ(d.findings[0].changes, std::vector<std::string>{"model.vocab=151680"});
}

// As measured on an H200, 1% slower than 50,304: products of bf16 are cut.
TEST_F(DoctorTest, AVocabularyMayBeOddInBf16) {
  const Words settings = {"train.batch_size=32", "train.accumulate=1", "model.vocab=50257"};
  EXPECT_EQ(first_of(diagnosis_of({"cs336-350m", settings, step(166, 0.455)})), "nothing");
  const Ran planned = run({"doctor", "cs336-350m", "model.vocab=50257", "--card", "h200"});
  EXPECT_EQ(planned.status, 0);
  EXPECT_TRUE(says(planned.out, {"nothing to mend"}));
}

// Measured on an H200: 216, 272 and 315 ms, 1.28, 1.64 and 1.91 times as fast with 2,816 (docs/performance.md).
TEST_F(DoctorTest, AnOddWidthOfTheMlp) {
  struct Row {
    std::int64_t ffn;
    double ms, gain;
  };
  for (const auto& [ffn, ms, gain] : {Row{2732, 216, 1.28}, {2730, 272, 1.64}, {2731, 315, 1.91}}) {
    const Words settings = {"train.batch_size=32", "train.accumulate=1", fmt::format("model.ffn={}", ffn)};
    const perf::Diagnosis d = diagnosis_of({"cs336-350m", settings, step(ms, 0.27)});
    ASSERT_EQ(first_of(d), "ffn");
    EXPECT_NEAR(d.findings[0].gain, gain, 0.08) << ffn;
    EXPECT_EQ(d.findings[0].changes, std::vector<std::string>{"model.ffn=2816"});
    EXPECT_GT(d.parts[perf::StepPart::products].loss_ms(), 40) << ffn;
    EXPECT_EQ(first_of(diagnosis_of({"cs336-350m", settings, step(150.2, 0.503)})), "nothing")
        << "a run as fast as the plan has lost nothing to it";
  }
}

// bench/results/h200_precisions.json: 586.8 ms, and 106.2 with flash attention.
TEST_F(DoctorTest, ReferenceAttention) {
  const perf::Diagnosis d = diagnosis_of(
      {"gqa-180m",
       {"train.batch_size=16", "train.accumulate=1", "precision.matmul=tf32", "kernels.attention=reference"},
       step(586.8, 0.033)});
  ASSERT_EQ(first_of(d), "reference_attention");
  EXPECT_NEAR(d.findings[0].gain, 586.8 / 106.2, 1.5);
  ASSERT_FALSE(d.options.empty());
  EXPECT_EQ(d.options[0].illness, Illness::precision);
}

// Measured on an H200: 218 ms, 4.88 times as fast with the best attention, and 1.01 times in fp8: products are a tenth.
TEST_F(DoctorTest, Fp8DoesNotMendASlowAttention) {
  const perf::Diagnosis d = diagnosis_of({"gqa-180m",
                                          {"train.batch_size=16", "train.accumulate=1", "kernels.attention=reference",
                                           "optim.name=adamw", "optim.lr=3e-4", "optim.min_lr=0"},
                                          step(218, 0.084)});
  ASSERT_EQ(first_of(d), "reference_attention");
  EXPECT_NEAR(d.findings[0].gain, 4.88, 0.8);
  EXPECT_TRUE(d.options.empty()) << d.options[0].gain;
}

// Made up: no fast kernel takes the heads, and the run said what computes attention then.
TEST_F(DoctorTest, AHeadDimOffTheFastKernels) {
  Recorded run{"gqa-180m",
               {"train.batch_size=16", "train.accumulate=1", "model.heads=8", "model.kv_heads=4", "model.head_dim=100"},
               step(520, 0.04)};
  run.notes = {"attention forward of full rows: reference; not flash: head_dim 100"};
  const perf::Diagnosis d = diagnosis_of(run);
  ASSERT_EQ(first_of(d), "head_dim");
  EXPECT_EQ(d.findings[0].changes, std::vector<std::string>{"model.head_dim=128"});
}

// Made up: gqa-180m of h200_models.json (155.3 ms at about 1500 MHz) where heat holds the card at 1000.
TEST_F(DoctorTest, AThrottledClock) {
  Recorded run{"gqa-180m", {"train.batch_size=64", "train.accumulate=1"}, step(215, 0.36)};
  run.step.gpu.emplace();
  run.step.gpu->clock_mhz = 1000;
  run.step.gpu->max_clock_mhz = 1980;
  run.step.gpu->throttle = "heat";
  const perf::Diagnosis d = diagnosis_of(run);
  ASSERT_EQ(first_of(d), "throttled");
  EXPECT_NEAR(d.findings[0].loss_ms, 55, 12);
}

// Made up: a capture that failed, in the words of the executor, in a model whose kernels are over in microseconds.
TEST_F(DoctorTest, GraphsThatFellBack) {
  Recorded run{"quick", {}, step(3, 0.01)};
  EXPECT_NE(first_of(diagnosis_of(run)), "no_graphs");
  run.warnings = {
      fmt::format("programs run node by node from here on, without CUDA graphs; see {}", troubleshooting::kGraphs)};
  bool found = false;
  for (const perf::Finding& f : diagnosis_of(run).findings) found = found || f.illness == Illness::no_graphs;
  EXPECT_TRUE(found);
}

// Made up: rank 3 of several takes a quarter more than the others.
TEST_F(DoctorTest, ASlowRank) {
  Recorded run{"gqa-180m", {"train.batch_size=64", "train.accumulate=1"}, step(195, 0.40)};
  run.step.ranks = train::RankPaces{39, 3, 195, 156};
  const perf::Diagnosis d = diagnosis_of(run);
  ASSERT_EQ(first_of(d), "slow_rank");
  EXPECT_TRUE(says(d.findings[0].found, {"rank 3"}));
  run.step.ranks = train::RankPaces{39, 3, 157, 156};
  EXPECT_EQ(first_of(diagnosis_of(run)), "communication");
  run.step.ranks = train::RankPaces{39, {}, {}, {}};  // no pace of another rank is known yet
  EXPECT_EQ(first_of(diagnosis_of(run)), "communication");
  for (const perf::Finding& f : diagnosis_of(run).findings) EXPECT_NE(f.illness, Illness::slow_rank);
}

// The plan speaks for a card that is not here.
TEST_F(DoctorTest, AConfigurationByThePlan) {
  const io::Json healthy = doctor({"doctor", "llama-1.29b", "--card", "h200", "--json", "--html", "page.html"}, 0);
  EXPECT_EQ(healthy["healthy"], true);
  EXPECT_EQ(testing::page_data(real_files().read(folder_ / "page.html"))["page"], "doctor");
  const auto found = [&](const Words& settings) {
    Words words = {"doctor", "llama-1.29b", "--card", "h200", "--json"};
    words.insert(words.end(), settings.begin(), settings.end());
    return first(doctor(words, 1))["illness"];
  };
  EXPECT_EQ(found({"train.recompute=block"}), "recompute");
  EXPECT_EQ(found({"train.batch_size=1", "train.accumulate=1", "train.seq_len=128", "checkpoint.every=0"}),
            "small_batch");
  EXPECT_EQ(found({"kernels.attention=reference"}), "reference_attention");
  EXPECT_EQ(found({"train.eval_every=1"}), "frequent_evaluation");
  EXPECT_EQ(found({"checkpoint.every=1"}), "frequent_saves");
}

// Both take the products in eight bits that a run would.
TEST_F(DoctorTest, AStepInFp8IsThatOfThePlan) {
  const Words words = {"gqa-180m", "precision.matmul=fp8", "--card",
                       "b200",     "checkpoint.every=0",   "train.eval_every=0"};
  const io::Json plan = io::parse_json(must(Words{"plan", "--json"} + words).out, "stdout");
  const io::Json said = io::parse_json(run(Words{"doctor", "--json"} + words).out, "stdout");
  EXPECT_NEAR(said["step_ms"].get<double>(), plan["expected"]["step_ms"].get<double>(), 0.01);
}

// On this machine the step is timed, and --try measures what the change brings.
// By the lengths of the data alone: nothing runs.
TEST_F(DoctorTest, PaddingByThePlan) {
  const io::Json said = doctor({"doctor", "ping-95m", "--card", "a100-80", "--json", "data.packing=pad"}, 1);
  EXPECT_EQ(first(said)["illness"], key_of(Illness::padding));
  EXPECT_EQ(first(said)["set"], io::Json({"data.packing=pack"}));
  EXPECT_GT(first(said)["gain"], 3.5);
  EXPECT_LT(first(said)["gain"], 5.5);
  EXPECT_LT(said["mfu"], 0.12);
  EXPECT_LT(said["tokens_per_s"], 60e3);
  EXPECT_TRUE(says(said["basis"].get<std::string>(), {"lengths", "20000 documents", "ping"}));
}

TEST_F(DoctorTest, DocumentsTooShortForMaxSegmentsByThePlan) {
  std::string lines;
  for (int i = 0; i < 5'000; ++i) lines += fmt::format("{{\"text\": \"hello {}\"}}\n", i);
  write("short.jsonl", lines);
  const io::Json said =
      doctor({"doctor", "ping-95m", "--card", "h100", "--json", "data.train=short.jsonl", "data.tokenizer=bytes"}, 1);
  EXPECT_EQ(first(said)["illness"], key_of(Illness::padding));
  EXPECT_EQ(first(said)["set"], io::Json({"data.max_segments=256"}));
  EXPECT_GT(first(said)["gain"], 2.3);
}

TEST_F(DoctorTest, ARunThatDoesNotFitIsToldByThePlan) {
  const Ran ran = run({"doctor", "qwen3-1.8b", "--card", "rtx-4090", "memory.fit=none"});
  EXPECT_TRUE(says(ran.err, {"does not fit", "RTX 4090", "redline plan"}));
}

TEST_F(DoctorTest, AConfigurationIsTimedAndItsCureTried) {
  io::Json said;
  for (int times = 0; times < 3; ++times) {  // whatever else runs may slow the steps after the change alone
    said = doctor({"doctor", "--device", "cpu", "--steps", "2", "--try", "--seconds", "0.3", "--json", "model.layers=2",
                   "model.hidden=64", "model.heads=2", "model.ffn=128", "data.packing=pad", "train.seq_len=1024",
                   "checkpoint.every=0", "train.eval_every=0"},
                  1);
    expect_first(said, Illness::padding);
    if (first(said)["gain_measured"] > 1.5) break;
  }
  EXPECT_GT(first(said)["gain_measured"], 1.5) << said.dump(1);
  EXPECT_GT(said["parts"][0]["floor_ms"], 0);
}

TEST_F(DoctorTest, AChangeThatDoesNotHelpIsNothingToMend) {
  perf::Diagnosis d = diagnosis_of({"gqa-180m", {"train.recompute=block"}, step(400, 0.3)});
  ASSERT_EQ(first_of(d), "recompute");
  const auto tried = [&](double gain, double noise) {
    perf::Diagnosis after = d;
    for (perf::Finding& f : after.findings) f.measured = gain, f.noise = noise;
    after.separate_refuted();
    return after;
  };
  EXPECT_EQ(first_of(tried(1.2, 0.01)), "recompute");
  EXPECT_EQ(first_of(tried(0.99, 0.05)), "recompute") << "such a measurement says nothing";
  const perf::Diagnosis none = tried(0.97, 0.01);
  EXPECT_EQ(first_of(none), "nothing");
  EXPECT_EQ(none.refuted.size(), d.findings.size());
  const std::string words = in_words({"a", "a card", "steps", true, none}, false);
  EXPECT_TRUE(says(words, {"\nnothing to mend\n", "tried, and does not help here"}));
  EXPECT_EQ(words.find("to mend, the dearest"), std::string::npos) << words;
}

TEST_F(DoctorTest, BadInput) {
  expect_bad_input({"doctor", "nowhere"}, {"nowhere"});
  expect_bad_input({"doctor", "runs/none"}, {"runs/none", "no such folder", "of a run"});
  expect_bad_input({"doctor", "runs/none.toml"}, {"runs/none.toml", "no such file"});
  real_files().create_folders(folder_ / "empty");
  expect_bad_input({"doctor", "empty"}, {"empty", "holds no run"});
  expect_bad_input({"doctor", "quick", "--card", "h200", "--try"}, {"--try", "--card h200"});
  expect_bad_input({"doctor", "quick", "--card", "h2000"}, {"--card h2000"});
  const Path folder = write_run({"quick", {}, step(10, 0.1)});
  expect_bad_input({"doctor", folder.string(), "optim.lr=1"}, {"is a run"});
  expect_bad_input({"doctor", folder.string(), "--html", (folder / "none/a.html").string()}, {"--html", "no folder"});
  real_files().replace(folder / "metrics.jsonl", "");
  const Ran ran = run({"doctor", folder.string()});
  EXPECT_EQ(ran.status, 2);
  EXPECT_TRUE(says(ran.err, {"no step of it was recorded"}));
}

// Made up: a run of moe-1b whose first layer sends all tokens to the same four experts, and whose second one has an
// expert that nobody takes.
TEST_F(DoctorTest, ExpertsThatStarveAndARouterThatHasCollapsed) {
  const Path folder = write_run({"moe-1b", {}, step(300, 0.4)});
  std::string rows;
  for (int look = 1; look <= 16; ++look) {
    io::Json layers = io::Json::array();
    for (int layer = 0; layer < 4; ++layer) {
      std::vector<double> loads(32, layer == 0 ? 0.0 : 1.0);
      for (int e = 0; e < 4 && layer == 0; ++e) loads[static_cast<std::size_t>(e)] = 8;
      if (layer == 1) loads[9] = look == 16 ? 0.08 : 0.0;
      layers.push_back({{"layer", layer}, {"entropy", 1.5}, {"loads", loads}});
    }
    rows += io::Json{{"step", 100 * look}, {"layers", layers}}.dump() + "\n";
  }
  real_files().replace(folder / "router.jsonl", rows);
  const io::Json said = doctor({"doctor", folder.string(), "--json"}, 1);
  const auto finding = [&](Illness illness) {
    for (const io::Json& f : said["findings"])
      if (f["illness"] == key_of(illness)) return f;
    return io::Json{{"found", "nothing"}, {"costs", ""}, {"set", io::Json::array()}};
  };
  const io::Json collapsed = finding(Illness::collapsed_router), starving = finding(Illness::starving_expert);
  EXPECT_TRUE(
      says(collapsed["found"].get<std::string>(), {"layer 0", "as if it had 4.0 of its 32", "step 1300 to 1600"}));
  EXPECT_TRUE(says(collapsed["costs"].get<std::string>(), {"1 of 4 layers"}));
  EXPECT_EQ(collapsed["set"], io::Json({"model.router_aux=0.02"}));
  EXPECT_TRUE(says(starving["found"].get<std::string>(), {"expert 9 of layer 1 has 0.02"}));
  EXPECT_TRUE(says(starving["costs"].get<std::string>(), {"1 of 128 experts"}));
}

// Made up: one row of 1,024 tokens at a time gives each of 32 experts 128 rows, a tile that is seldom full.
TEST_F(DoctorTest, FewRowsForEachExpert) {
  const auto thin = [&](const Words& more, double ms) {
    const perf::Diagnosis d = diagnosis_of({"moe-1b", more, step(ms, 0.1)});
    for (const perf::Finding& f : d.findings)
      if (f.illness == Illness::thin_experts) return f;
    return perf::Finding{Illness::padding, "nothing", "", {}, ""};
  };
  const perf::Finding f = thin({"train.batch_size=1", "train.accumulate=96"}, 3000);
  EXPECT_TRUE(says(f.found, {"128 rows for each of 32 experts"}));
  EXPECT_EQ(f.changes, (std::vector<std::string>{"train.batch_size=2", "train.accumulate=48"}));
  EXPECT_EQ(thin({}, 400).found, "nothing") << "with 2,048 rows each tiles are full";
}

// docs/performance.md lists every illness by its name.
TEST_F(DoctorTest, TheDocumentationHasEveryIllness) {
  const std::string page = real_files().read(Path(testing::source_folder()) / "docs/performance.md");
  for (const train::IllnessRow& row : train::kIllnesses)
    EXPECT_NE(page.find(fmt::format("| {} | `{}` |", row.name, row.key)), std::string::npos) << row.name;
}

}  // namespace
}  // namespace redline::cli
