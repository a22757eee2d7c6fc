// redline plan, redline peaks and an automatic batch size, as a user meets them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "cli/program.h"
#include "testing/says.h"

namespace redline::cli {
namespace {

using testing::says;

using Json = nlohmann::json;

class PlanCommand : public ProgramTest {
 protected:
  Json json_of(Words words) {
    words.push_back("--json");
    const Ran ran = run(words);
    EXPECT_EQ(ran.status, 0) << ran.err;
    // Progress, where it takes long, and the hint of the rate for other rows than a preset's.
    EXPECT_TRUE(ran.err.empty() || ran.err.starts_with("planning") || says(ran.err, "by the root of the ratio"))
        << ran.err;
    return Json::parse(ran.out);
  }
};

TEST_F(PlanCommand, TellsAllOfARunAsJson) {
  const Json j =
      json_of({"plan", "gqa-180m", "--card", "h200", "train.batch_size=64", "train.accumulate=1", "optim.name=adamw"});
  EXPECT_EQ(j.at("parameters"), 180910080);
  EXPECT_EQ(j.at("tokens_per_step"), 65536);
  EXPECT_EQ(j.at("checkpoint_bytes"), std::int64_t{180910080} * 3 * 4);  // parameters and two moments
  EXPECT_LT(j.at("flops_per_token").get<double>(), j.at("flops_per_token_palm").get<double>());
  double parts = 0;
  for (const auto& [name, part] : j.at("flops_per_token_by_part").items()) parts += part.get<double>();
  EXPECT_NEAR(parts / j.at("flops_per_token").get<double>(), 1, 1e-12);
  std::int64_t sum = 0;
  for (const auto& [kind, bytes] : j.at("memory").items())
    if (kind != "total") sum += bytes.get<std::int64_t>();
  EXPECT_EQ(j.at("memory").at("total"), sum);
  for (const char* kind : {"masters", "working_copies", "gradients", "moments", "activations", "workspace"})
    EXPECT_GT(j.at("memory").at(kind).get<std::int64_t>(), 0) << kind;
  const Json& expected = j.at("expected");
  EXPECT_NEAR(expected.at("tokens_per_s").get<double>() * expected.at("step_ms").get<double>(), 65536e3, 1);
  const double flops_per_s = expected.at("tokens_per_s").get<double>() * j.at("flops_per_token").get<double>();
  EXPECT_NEAR(expected.at("mfu").get<double>() / (flops_per_s / j.at("peak_flops").get<double>()), 1, 1e-12);
  EXPECT_EQ(j.at("choice").at("batch_size"), 64);
  EXPECT_EQ(j.at("choice").at("recompute"), "none");
  EXPECT_FALSE(j.at("why").get<std::string>().empty());
}

TEST_F(PlanCommand, Fp8IsFasterWhereTheCardHasItAndElseBf16) {
  const auto plan = [&](const char* card, const char* matmul) {
    return json_of({"plan", "llama-1.36b", "--card", card, fmt::format("precision.matmul={}", matmul)});
  };
  const auto step = [](const Json& j) { return j.at("expected").at("step_ms").get<double>(); };
  const Json bf16 = plan("h200", "bf16"), fp8 = plan("h200", "fp8"), none = plan("a100-80", "fp8");
  EXPECT_EQ(fp8.at("precision"), "fp8");
  EXPECT_EQ(fp8.at("fp8_products").size(), 12u);
  EXPECT_LT(step(fp8), 0.9 * step(bf16));
  EXPECT_GT(step(fp8), 0.6 * step(bf16));
  EXPECT_GT(fp8.at("checkpoint_bytes"), bf16.at("checkpoint_bytes"));
  EXPECT_EQ(none.at("precision"), "bf16");
  EXPECT_EQ(none.at("fp8_products").size(), 0u);
  EXPECT_EQ(step(none), step(plan("a100-80", "bf16")));
  const Ran text = run({"plan", "llama-1.36b", "--card", "h200", "precision.matmul=fp8"});
  EXPECT_TRUE(says(text.out, {"fp8       12 of 12 products, ", " ms of a micro-batch instead of "}));
}

// A plan leaves out what a run leaves out: gradients of experts' weights are slower in eight bits.
TEST_F(PlanCommand, ProductsInFp8AreThoseThatARunTakes) {
  const Words words = words_of(  // of which one has too few rows for the smallest linear
      "plan moe-1b --card h200 model.layers=2 precision.matmul=fp8 train.batch_size=1");
  const auto with = [&](const std::string& word) {
    Words w = words;
    w.push_back(word);
    return w;
  };
  const Json chosen = json_of(words), all = json_of(with("precision.fp8=all"));
  EXPECT_EQ(all.at("fp8_products").size(), 12u);
  EXPECT_EQ(chosen.at("fp8_products").size(), 9u);
  for (const Json& product : chosen.at("fp8_products"))
    EXPECT_FALSE(product.get<std::string>().starts_with("out/")) << product;
  EXPECT_LT(chosen.at("expected").at("step_ms").get<double>(), all.at("expected").at("step_ms").get<double>());
  EXPECT_TRUE(says(run(words).out, {"fp8       9 of 12 products, ", "bf16: out/forward (", " ms against "}));
  EXPECT_TRUE(says(run(with("precision.fp8=all")).out, {"fp8       12 of 12 products\n"}));
}

TEST_F(PlanCommand, ALittleMemoryChangesTheChoice) {
  const Words words = {"plan", "--preset", "llama-1.36b", "--card", "h200", "--memory"};
  const auto with = [&](const char* gib) {
    Words w = words;
    w.emplace_back(gib);
    return json_of(w);
  };
  const Json some = with("40");
  EXPECT_FALSE(some.at("fits").get<bool>());
  EXPECT_LT(some.at("choice").at("batch_size").get<int>(), 24);
  EXPECT_LE(some.at("choice").at("memory").get<double>(), 40 * 0x1p30);
  EXPECT_EQ(some.at("choice").at("batch_size").get<int>() * some.at("choice").at("accumulate").get<int>(), 96);
  const Json none = with("10");
  EXPECT_TRUE(none.at("choice").is_null());
  EXPECT_TRUE(says(none.at("why").get<std::string>(), {"lie in the host's memory", "--gpus"}));
}

// One GPU of several is the one-card plan, padded or not.
TEST_F(PlanCommand, ForManyGpusCountsRealTokens) {
  const Words words = {"plan", "ping-95m", "--card", "a100-80", "data.packing=pad", "train.batch_size=128"};
  Words many = words;
  many.insert(many.end(), {"--gpus", "8"});
  const Json one = json_of(words).at("expected"), j = json_of(many), alone = j.at("scaling")[0];
  ASSERT_EQ(alone.at("gpus"), 1);
  EXPECT_NEAR(alone.at("tokens_per_s").get<double>() / one.at("tokens_per_s").get<double>(), 1, 0.01);
  EXPECT_NEAR(alone.at("mfu").get<double>() / one.at("mfu").get<double>(), 1, 0.01);
  EXPECT_NEAR(alone.at("step_ms").get<double>() / one.at("step_ms").get<double>(), 1, 0.01);
  EXPECT_NEAR(j.at("filling").at("padding").get<double>(), 0.805, 0.02);
  EXPECT_NEAR(j.at("run_tokens").get<double>() / (8 * 10'000 * 131'072.0), 0.195, 0.02);
  for (const Json& mode : j.at("modes")) EXPECT_LT(mode.at("mfu"), 0.12) << mode.at("mode");
  const Ran text = must(many);
  EXPECT_TRUE(says(text.out, {"real tokens", "padding   data.packing = \"pad\"", "data.packing=pack fills"}));
  many.emplace_back("data.train=gone.jsonl");
  EXPECT_TRUE(says(must(many).out, {"how much that pads is not known", "gone.jsonl"}));
  EXPECT_TRUE(json_of(many).at("filling").contains("problem"));
}

// The picture of a step is of the step of the table: with padding, and with bytes that were moved.
TEST_F(PlanCommand, ATraceComputesAsLongAsItsPlan) {
  for (const char* line : {"plan ping-95m --card a100-80 data.packing=pad train.batch_size=16 train.accumulate=2",
                           "plan qwen3-1.8b --card rtx-4090 --memory 12 train.batch_size=2 train.accumulate=1 "
                           "optim.name=adamw"}) {
    const Words words = words_of(line) + words_of("--gpus 2 --trace step.json");
    const Json plan = json_of(words), trace = Json::parse(real_files().read(folder_ / "step.json"));
    EXPECT_EQ(plan.at("moved").is_null(), words[1] == "ping-95m") << plan.at("why");
    const Json* choice = nullptr;
    for (const Json& mode : plan.at("modes"))
      if (mode.at("mode") == plan.at("choice") && !choice) choice = &mode;
    ASSERT_TRUE(choice) << line;
    double computing = 0;
    for (const Json& event : trace.at("traceEvents"))
      if (event.at("ph") == "X" && event.at("tid") == 0 && event.at("cat") != "wait")
        computing += event.at("dur").get<double>();
    EXPECT_NEAR(computing / 1e3 / choice->at("compute_ms").get<double>(), 1, 1e-6) << line;
  }
}

// The copy for a checkpoint lies where what it is of lies, and padded rows are padded in every way to fit.
TEST_F(PlanCommand, FiguresOfMovedBytesAgree) {
  const Words moved = words_of("plan llama-1.36b --card rtx-4090");
  const Json plan = json_of(moved);
  EXPECT_EQ(plan.at("snapshot_host_bytes"), plan.at("snapshot_bytes"));
  EXPECT_EQ(plan.at("snapshot_on_device"), false);
  EXPECT_TRUE(says(must(moved).out, {"in the host's memory, where the state lies"}));
  const Json padded = json_of(words_of(
      "plan gqa-180m train.batch_size=101 train.accumulate=1 data.packing=pad data.train=ping --card rtx-4090"));
  EXPECT_EQ(padded.at("expected").at("step_ms"), padded.at("fit").at("ways")[0].at("step_ms"));
  EXPECT_GT(padded.at("expected").at("step_ms"), padded.at("fit").at("asked_step_ms"));
}

TEST_F(PlanCommand, HoursOfCardsEndWithTheRun) {
  const Json j = json_of(words_of("plan quick --cards train.max_hours=0.001"));
  EXPECT_EQ(j.at("max_hours"), 0.001);
  for (const Json& card : j.at("cards")) EXPECT_LE(card.at("hours").get<double>(), 0.001);
  EXPECT_TRUE(says(must(words_of("plan quick --cards train.max_hours=0.001")).out,
                   {"or until train.max_hours = 0.001 ends the run"}));
}

// Of one card, with the way in which it fits: copies both ways, and a step that ends when the plan says.
TEST_F(PlanCommand, ATraceOfOneCardShowsWhatMoves) {
  const Words words = words_of(
      "plan qwen3-1.8b --card rtx-4090 --memory 12 train.batch_size=2 train.accumulate=3 optim.name=adamw --trace "
      "s.json");
  const Json plan = json_of(words), trace = Json::parse(real_files().read(folder_ / "s.json"));
  ASSERT_TRUE(plan.at("fit").is_object()) << "it fits as it is";
  double end = 0, copying[2] = {};
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    if (event.at("tid") == 4)
      end = std::max(end, event.at("ts").get<double>() + event.at("dur").get<double>());
    else if (event.at("tid") == 1 || event.at("tid") == 2)
      copying[event.at("tid") == 1] += event.at("dur").get<double>();
  }
  EXPECT_NEAR(end / 1e3 / plan.at("expected").at("step_ms").get<double>(), 1, 1e-6);
  EXPECT_GT(copying[0], 0);
  EXPECT_GT(copying[1], 0);
  EXPECT_EQ(plan.at("snapshot_on_device"), plan.at("snapshot_host_bytes") != plan.at("snapshot_bytes"));
  EXPECT_TRUE(says(must(words).out, {"trace     s.json (a planned step of qwen3-1.8b, 2 rows x 3;"}));
}

TEST_F(PlanCommand, ForEachCardCountsRealTokens) {
  const Words words = {"plan", "ping-95m", "--cards", "data.packing=bucket"};
  const Json one = json_of({"plan", "ping-95m", "--card", "a100-80", "data.packing=bucket"}), j = json_of(words);
  EXPECT_EQ(j.at("filling").at("padding"), one.at("filling").at("padding"));
  int seen = 0;
  for (const Json& card : j.at("cards")) {
    if (card.at("card") != "a100-80") continue;
    ++seen;
    for (const char* const key : {"tokens_per_s", "mfu"}) EXPECT_EQ(card.at(key), one.at("expected").at(key)) << key;
    EXPECT_NEAR(card.at("hours").get<double>(), one.at("expected").at("hours").get<double>(), 1e-6);
  }
  EXPECT_EQ(seen, 1);
  const Ran pad = must({"plan", "ping-95m", "--cards", "data.packing=pad"});
  EXPECT_TRUE(says(pad.out, {"real tokens", "51.9k tok/s  9.8%", "padding   data.packing = \"pad\": 80.4%"}));
  const Ran none = must({"plan", "ping-95m", "--cards", "data.packing=pad", "data.train=gone.jsonl"});
  EXPECT_TRUE(says(none.out, {"how much that pads is not known", "gone.jsonl"}));
}

// Documents so short that data.max_segments closes packed batches before they are full.
TEST_F(PlanCommand, DocumentsTooShortForMaxSegmentsAreCounted) {
  std::string lines;
  for (int i = 0; i < 20'000; ++i) lines += fmt::format("{{\"text\": \"hello {}\"}}\n", i);
  write("short.jsonl", lines);
  must({"data", "prepare", "short.jsonl", "--tokenizer", "bytes", "--out", "short"});
  const Json stats = json_of({"data", "stats", "short", "--seq-len", "1024", "--batch-size", "128"});
  for (const char* const packing : {"pack", "stream"}) {
    const Words words = {"plan", "ping-95m",         "--card",
                         "h100", "data.train=short", fmt::format("data.packing={}", packing)};
    const Json j = json_of(words), &filling = j.at("filling");
    EXPECT_NEAR(filling.at("padding").get<double>(), 1 - 32 * 11.44 / 1024, 0.01) << packing;
    EXPECT_NEAR(filling.at("padding").get<double>(), stats.at("modes").at(packing).at("wasted").get<double>(), 1e-6);
    EXPECT_EQ(filling.at("packed").at("set"), "data.max_segments=256");
    EXPECT_LT(filling.at("packed").at("padding"), 0.01);
    EXPECT_NEAR(filling.at("packed").at("gain").get<double>(), 2.7, 0.3);
    EXPECT_TRUE(says(must(words).out, {"padded rows", "data.max_segments = 32 closes batches before they are full",
                                       "data.max_segments=256 fills"}));
    Words mended = words;
    mended.emplace_back("data.max_segments=256");
    EXPECT_TRUE(json_of(mended).at("filling").is_null()) << packing;
    Words large = words;
    large.emplace_back("train.batch_size=1024");
    EXPECT_NEAR(json_of(large).at("filling").at("padding").get<double>(), filling.at("padding").get<double>(), 0.01)
        << "more than the documents";
  }
}

TEST_F(PlanCommand, OtherRowsThanAPresetsGetTheHintOfTheRate) {
  for (const char* const rows : {"train.batch_size=256", "train.accumulate=2"})
    EXPECT_TRUE(says(must({"plan", "ping-95m", "--card", "h100", rows}).err,
                     {rows[6] == 'b' ? "= 256" : "= 2", "optim.lr=1.41e-4"}));
  EXPECT_EQ(must({"plan", "ping-95m", "--card", "h100"}).err, "");
}

// The choice's own words, given to plan again, fit.
TEST_F(PlanCommand, TheChoiceIsWhatTrainTakes) {
  const Words words = {
      "plan", "olmo2-1.5b", "--card", "rtx-4090", "optim.name=adamw", "train.batch_size=2", "train.accumulate=1"};
  const Json first = json_of(words);
  EXPECT_FALSE(first.at("fits").get<bool>());
  Words again = words;
  for (const Json& key : first.at("choice").at("set")) again.push_back(key.get<std::string>());
  EXPECT_TRUE(json_of(again).at("fits").get<bool>()) << first.at("choice").dump();
  const Ran text = run(words);
  EXPECT_TRUE(says(text.out, {"\nchoice    optim.moments=", "train.batch_size=", "as it was asked for nothing fits"}));

  Words many = {"plan", "qwen3-1.8b", "--card", "rtx-4090", "--gpus", "2", "--memory", "12", "memory.fit=none"};
  const Json none = json_of(many);
  EXPECT_TRUE(none.at("choice").is_null());
  EXPECT_EQ(none.at("set").size(), 0u);
  const Ran said = run(many);
  EXPECT_TRUE(says(said.out, {"\nchoice    none: no mode fits", "--gpus"}));
}

TEST_F(PlanCommand, ARunNeedsNoEndToBePlanned) {
  write("a.toml", "[model]\nlayers = 2\nvocab = 512\n[data]\ntrain = \"random:512\"\n");
  const Json j = json_of({"plan", "a.toml", "--card", "h200"});
  EXPECT_TRUE(j.at("expected").at("steps").is_null());
  EXPECT_TRUE(j.at("expected").at("hours").is_null());
  EXPECT_GT(j.at("expected").at("step_ms").get<double>(), 0);
  const Ran text = run({"plan", "a.toml", "--card", "h200"});
  EXPECT_TRUE(says(text.out, {"time of the run is not known", "train.max_steps"}));
  const Json many = json_of({"plan", "a.toml", "--card", "h200", "--gpus", "8"});
  EXPECT_TRUE(many.at("run_tokens").is_null());
}

TEST_F(PlanCommand, AFolderIsARunOrAModel) {
  must({"train", "--device", "cpu", "--out", "a", "model.layers=1", "model.hidden=32", "model.heads=2",
        "model.head_dim=16", "model.ffn=48", "train.seq_len=64", "train.max_steps=1", "train.eval_batches=1"});
  const Json run_of = json_of({"plan", "a", "--card", "h200"});
  EXPECT_EQ(run_of.at("config"), "a");
  EXPECT_EQ(run_of.at("seq_len"), 64);
  must({"export", "--checkpoint", "a", "--out", "hf"});
  const Json model = json_of({"plan", "hf", "--card", "h200", "train.max_steps=10", "optim.lr=1e-4"});
  EXPECT_EQ(model.at("parameters"), run_of.at("parameters"));
  EXPECT_EQ(model.at("config"), "hf");
  // Where a folder is no configuration, the sentence says what it is.
  expect_bad_input({"train", "hf"}, {"model.init_from=hf"});
  expect_bad_input({"train", "a"}, {"a/config.toml", "--resume --out a"});
}

// The micro-batches of a configuration are those of as many ranks as it was made for; others share them.
TEST_F(PlanCommand, AStepKeepsItsRowsOnAnotherNumberOfGpus) {
  write("a.toml",
        "[model]\nlayers = 1\nhidden = 64\nheads = 2\nhead_dim = 32\nffn = 128\nvocab = 512\n[data]\n"
        "train = \"random:512\"\n[train]\nseq_len = 64\nbatch_size = 2\naccumulate = 2\n[parallel]\nranks = 4\n");
  const Words words = {"plan", "a.toml", "--card", "h100"};
  const auto plan = [&](Words more) { return json_of(words + more); };
  constexpr int kTokens = 2 * 64 * 2 * 4;
  const Json one = plan({});
  EXPECT_EQ(one.at("tokens_per_step"), kTokens);
  EXPECT_EQ(one.at("accumulate"), 8);
  for (const char* gpus : {"1", "2", "4", "8"})
    EXPECT_EQ(plan({"--gpus", gpus}).at("tokens_per_step"), kTokens) << gpus;
  EXPECT_EQ(plan({"train.accumulate=2"}).at("tokens_per_step"), kTokens / 4) << "as it is given";
  EXPECT_TRUE(says(must({"plan", "a.toml", "--cards"}).out, {"1,024 tokens a step"}));
  expect_bad_input(words + Words{"--gpus", "3"},
                   {"a step has 8 micro-batches (train.accumulate = 2 on 4 ranks), which 3 ranks cannot share alike"});
  const Ran doctor = run({"doctor", "a.toml", "--card", "h100", "--json"});
  const Json said = Json::parse(doctor.out);
  EXPECT_NEAR(said.at("tokens_per_s").get<double>() * said.at("step_ms").get<double>(), kTokens * 1e3, 1);
}

// What a run on several ranks refuses is not planned.
TEST_F(PlanCommand, ForManyGpusRefusesWhatARunRefuses) {
  expect_bad_input({"plan", "gqa-180m", "--card", "h200", "--gpus", "64", "parallel.sequence=32"},
                   {"parallel.sequence", "model.heads"});
  const Json j = json_of({"plan", "gqa-180m", "--card", "h200", "--gpus", "8", "precision.matmul=fp8"});
  EXPECT_EQ(j.at("modes").size(), 3u);
}

// In eight bits half the bytes of the linears' weights travel.
TEST_F(PlanCommand, ForManyGpusWeightsInFp8TravelSo) {
  for (const char* const mode : {"zero1", "fsdp"}) {
    const auto gathered = [&](const char* matmul) {
      const Json j = json_of({"plan", "llama-1.36b", "--card", "h200", "--gpus", "8",
                              fmt::format("precision.matmul={}", matmul), "train.batch_size=1", "train.accumulate=1"});
      double bytes = 0;
      for (const Json& plan : j.at("modes"))
        for (const Json& row : plan.at("collectives"))
          if (plan.at("mode") == mode && row.at("collective") == "gather_shards")
            bytes += row.at("bytes").get<double>();
      return bytes;
    };
    const double bf16 = gathered("bf16"), fp8 = gathered("fp8");
    EXPECT_GT(bf16, 0) << mode;
    EXPECT_LT(fp8, 0.6 * bf16) << mode;
    EXPECT_GT(fp8, 0.5 * bf16) << mode;
  }
}

TEST_F(PlanCommand, ReadsWellAndSaysWhatItPlansFor) {
  const Ran card = run({"plan", "cs336-350m", "--card", "b200"});
  EXPECT_EQ(card.status, 0) << card.err;
  EXPECT_TRUE(says(card.out, {"B200", "datasheet", "attention projections", "scores", "working copies", "moments",
                              "largest activations", "disk ", "that are kept", "gate_up", "expected", "mfu", "choice",
                              "train.batch_size="}));
  const Ran cpu = run({"plan", "--card", "cpu"});
  EXPECT_EQ(cpu.status, 0) << cpu.err;
  EXPECT_TRUE(says(cpu.out, {"CPU (", "measured: fp32 product"}));
}

TEST_F(PlanCommand, PaddingIsCountedByTheLengthsOfTheData) {
  const Json j = json_of({"plan", "ping-95m", "--card", "a100-80", "data.packing=pad"});
  const Json full = json_of({"plan", "ping-95m", "--card", "a100-80"});
  EXPECT_TRUE(full.at("filling").is_null());
  EXPECT_NEAR(j.at("filling").at("padding").get<double>(), 0.805, 0.02);
  const double rate = j.at("expected").at("tokens_per_s"), of_full = full.at("expected").at("tokens_per_s");
  EXPECT_LT(rate, 0.3 * of_full);
  EXPECT_NEAR(j.at("filling").at("packed").at("gain").get<double>(), 4.5, 0.7);
  EXPECT_LT(j.at("choice").at("tokens_per_s"), 0.3 * of_full) << "the table is of real tokens, too";
  const Ran text = must({"plan", "ping-95m", "--card", "a100-80", "data.packing=pad"});
  EXPECT_TRUE(
      says(text.out, {"real ", "padding   data.packing = \"pad\"", "hold no document", "data.packing=pack fills"}));
  const Ran none = must({"plan", "ping-95m", "--card", "a100-80", "data.packing=pad", "data.train=gone.jsonl"});
  EXPECT_TRUE(says(none.out, {"how much that pads is not known", "gone.jsonl", "full rows"}));
}

TEST_F(PlanCommand, GrowsTheBatchUpToTheMemory) {
  const Json j = json_of({"plan", "ping-95m", "--card", "a100-80", "--grow"});
  const Json &rows = j.at("growth").at("rows"), &filling = j.at("growth").at("filling");
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[2].at("batch_size"), 256);
  EXPECT_NEAR(rows[2].at("lr").get<double>(), 1.414e-4, 1e-7);
  EXPECT_GE(filling.at("of_memory"), 0.85);
  EXPECT_LE(filling.at("of_memory"), 0.95);
  Words words = {"plan", "ping-95m", "--card", "a100-80"};
  for (const Json& key : filling.at("set")) words.push_back(key.get<std::string>());
  EXPECT_EQ(json_of(words).at("memory").at("total"), filling.at("memory")) << "what is proposed is what was planned";
  const Ran text = must({"plan", "ping-95m", "--card", "a100-80", "--grow"});
  EXPECT_TRUE(says(text.out, {"1.5 times", "3 times", "fills it", "grow      train.batch_size=", "optim.lr="}));
  expect_bad_input({"plan", "ping-95m", "--card", "a100-80", "--grow", "--gpus", "8"}, {"--grow", "--gpus"});
}

TEST_F(PlanCommand, GrowthToFewerRowsSaysSo) {
  const Ran little = must({"plan", "ping-95m", "--card", "a100-80", "--memory", "20", "--grow"});
  EXPECT_TRUE(says(little.out, {"128 rows take more than is meant", "the run has fewer"}));
  EXPECT_FALSE(says(little.out, {"the run has more"}));
  const Ran least = must({"plan", "ping-95m", "--card", "a100-80", "--memory", "0.3", "--grow"});
  EXPECT_TRUE(says(least.out, {" times  "}));
  EXPECT_FALSE(says(least.out, {"e+"}));
}

TEST_F(PlanCommand, BadInputIsOneSentence) {
  expect_bad_input({"plan", "--card", "h20"}, {"--card h20", "did you mean 'h200'?", "a100-80"});
  expect_bad_input({"plan", "--card", "A100"},
                   {"--card A100: which one?", "a100-40, a100-40-pcie, a100-80, a100-80-pcie"});
  expect_bad_input({"plan", "--card", "nothing like it"}, {"no such card is known", "gb200", "cpu"});
  expect_bad_input({"plan", "--memory", "0"}, {"--memory"});
  expect_bad_input({"plan", "nowhere.toml", "--card", "h200"}, {"nowhere.toml"});
  expect_bad_input({"plan", "--card", "h200", "precision.matmul=fp8", "precision.fp8_products=[\"mlp\"]"},
                   {"mlp is no product"});
  expect_bad_input({"peaks", "everything"}, {"everything"});
}

TEST_F(PlanCommand, ForManyGpusTellsEveryModeAndHowItScales) {
  const Words words = {"plan", "gqa-180m", "--card", "h200", "--gpus", "64", "--network", "ndr"};
  const Json j = json_of(words);
  ASSERT_EQ(j.at("modes").size(), 4u) << "fsdp of all and of a node's 8";
  EXPECT_EQ(j.at("choice"), "zero1") << j.at("why");
  EXPECT_EQ(j.at("gpus_per_node"), 8);
  for (const Json& mode : j.at("modes")) {
    std::int64_t sum = 0;
    for (const auto& [kind, bytes] : mode.at("memory").items())
      if (kind != "total") sum += bytes.get<std::int64_t>();
    EXPECT_EQ(mode.at("memory").at("total"), sum);
    const double parts = mode.at("compute_ms").get<double>() + mode.at("exposed_ms").get<double>() +
                         mode.at("stragglers_ms").get<double>();
    EXPECT_NEAR(mode.at("step_ms").get<double>() / parts, 1, 1e-9);
    EXPECT_NEAR(mode.at("gpu_hours").get<double>() / mode.at("hours").get<double>(), 64, 1e-6);
  }
  std::vector<int> numbers;
  for (const Json& row : j.at("scaling")) numbers.push_back(row.at("gpus").get<int>());
  EXPECT_EQ(numbers, (std::vector<int>{1, 8, 64, 1024}));

  const Ran text = run(words);
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_TRUE(says(text.out, {"64 x H200 SXM, 8 nodes", "NDR InfiniBand", "ddp", "zero1", "fsdp", "stragglers",
                              "not hidden", "choice    parallel.mode=zero1", "reduce_shards of gradients",
                              "gather_shards of weights", "GPU-hours", "1024"}));

  Words traced = words;
  traced.insert(traced.end(), {"--trace", "step.json"});
  EXPECT_TRUE(says(run(traced).out, {"trace     step.json"}));
  EXPECT_GT(Json::parse(real_files().read(folder_ / "step.json")).at("traceEvents").size(), 200u);
  EXPECT_EQ(j.at("modes")[0].at("host_arena_bytes"), 0);
  EXPECT_GT(j.at("modes")[0].at("snapshot_bytes"), j.at("modes")[1].at("snapshot_bytes"));
  EXPECT_TRUE(says(text.out, {"palm", "copy to save"}));
  expect_bad_input({"plan", "--cards", "--trace", "step.json"}, {"--cards", "--trace"});
  real_files().replace(folder_ / "docs.jsonl", "{\"text\": \"a\"}\n");
  expect_bad_input({"plan", "quick", "--card", "h200", "data.train=docs.jsonl", "--trace", "docs.jsonl"},
                   {"--trace docs.jsonl", "no trace that redline wrote"});
  EXPECT_EQ(real_files().read(folder_ / "docs.jsonl"), "{\"text\": \"a\"}\n");
  for (int i = 0; i < 2; ++i) must({"plan", "quick", "--card", "h200", "data.train=.", "--trace", "below.json"});
  expect_bad_input({"plan", "--card", ""}, {"--card", "empty NAME"});
  real_files().replace(folder_ / "my.toml", "preset = \"quick\"\n");
  expect_bad_input({"plan", "--card", "h200", "--trace=", "my.toml"}, {"--trace", "empty FILE"});
  expect_bad_input({"plan", "--card", "h200", "--trace", "my.toml"}, {"my.toml", "no trace that redline wrote"});
  EXPECT_EQ(real_files().read(folder_ / "my.toml"), "preset = \"quick\"\n");
  real_files().replace(folder_ / "empty.json", "");
  must({"plan", "my.toml", "--card", "h200", "--trace", "empty.json"});
  expect_bad_input({"plan", "--card", "h200", "--gpus", "8", "--trace", "no/where/step.json"}, {"--trace", "no/where"});

  expect_bad_input({"plan", "--card", "h200", "--gpus", "0"}, {"--gpus", "from 1 to 1024"});
  expect_bad_input({"plan", "--card", "cpu", "--gpus", "4"}, {"add --card NAME"});
  expect_bad_input({"plan", "--card", "h200", "--gpus", "16", "--network", "nvlink"}, {"16 GPUs", "--gpus-per-node"});
  expect_bad_input({"plan", "--card", "h200", "--gpus", "16", "--network", "nrd"}, {"did you mean 'ndr'?"});
  expect_bad_input({"plan", "--card", "h200", "--network", "ndr"}, {"add --gpus N"});
  expect_bad_input({"plan", "--card", "h200", "--gpus", "16", "parallel.network=nrd"}, {"parallel.network", "ndr"});
  expect_bad_input({"plan", "--card", "h200", "--gpus", "16", "parallel.network=nvlink"},
                   {"parallel.network = \"nvlink\"", "16 GPUs"});
  // The flag sets the key, and beside it counts.
  const Words sixteen = {"plan", "llama-1.36b", "--card", "h200", "--gpus", "16", "parallel.network=ethernet"};
  const Json slow = json_of(sixteen), named = json_of(sixteen + Words{"--network", "hdr"});
  EXPECT_EQ(slow.at("network"), "ethernet");
  EXPECT_EQ(named.at("network"), "hdr");
  EXPECT_LT(slow.at("bus_bytes_per_s_between"), named.at("bus_bytes_per_s_between"));
}

TEST_F(PlanCommand, PeaksShowTheTableAndThisMachine) {
  const Json j = json_of({"peaks", "--device", "cpu"});
  EXPECT_GE(j.at("cards").size(), 15u);
  EXPECT_EQ(j.at("cards").at(0).at("tflops").at("bf16"), 312);
  EXPECT_TRUE(j.at("cards").at(0).at("tflops").at("fp8").is_null()) << "an A100 has none";
  const Json& machine = j.at("machine");
  EXPECT_GT(machine.at("measured_flops").get<double>(), 1e7);
  EXPECT_GT(machine.at("copy_bytes_per_s").get<double>(), 1e7);
  EXPECT_TRUE(machine.at("card").is_null());
  const Ran text = run({"peaks", "--device", "cpu"});
  EXPECT_TRUE(says(text.out, {"h200", "989.5", "This machine: CPU", "measured"}));
}

TEST_F(PlanCommand, AnAutomaticBatchSizeIsFoundOnceAndWrittenDown) {
  const Words tiny = {"model.layers=1",     "model.hidden=32",      "model.heads=2",      "model.head_dim=16",
                      "model.ffn=48",       "train.seq_len=64",     "train.batch_size=2", "train.accumulate=3",
                      "train.eval_every=0", "train.eval_batches=1", "checkpoint.every=2", "optim.warmup_steps=1"};
  const auto train = [&](const char* out, Words more) {
    Words words = {"train", "--device", "cpu", "--out", out};
    words.insert(words.end(), tiny.begin(), tiny.end());
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  const Ran first = train("a", {"train.max_steps=2", "train.batch_size=auto"});
  ASSERT_EQ(first.status, 0) << first.err;
  EXPECT_TRUE(says(first.out, {"train.batch_size = auto: ", "measured"}));
  const std::string config = real_files().read(folder_ / "a/config.toml");
  EXPECT_EQ(config.find("batch_size = \"auto\""), std::string::npos) << config;

  const Ran on = train("a", {"train.max_steps=4", "train.batch_size=auto", "--resume"});
  ASSERT_EQ(on.status, 0) << on.err;
  EXPECT_TRUE(says(on.out, {"as the run began"}));
  EXPECT_EQ(on.out.find("measured;"), std::string::npos) << "nothing is searched again";

  // The same run without a break and with the numbers themselves.
  const auto number = [&](const std::string& key) {
    const std::size_t at = config.find("\n" + key + " = ") + key.size() + 4;
    return "train." + key + "=" + config.substr(at, config.find(' ', at) - at);
  };
  Words numbers = {"train.max_steps=2"};
  for (const char* key : {"batch_size", "accumulate", "recompute"}) numbers.push_back(number(key));
  ASSERT_EQ(train("b", numbers).status, 0);
  numbers[0] = "train.max_steps=4";
  numbers.push_back("--resume");
  ASSERT_EQ(train("b", numbers).status, 0);
  const auto weights = [&](const char* run) {
    return real_files().read(folder_ / run / "checkpoints/step_00000004/model.safetensors");
  };
  EXPECT_TRUE(weights("a") == weights("b")) << "a resumed run differs";

  expect_bad_input(train("a", {"train.batch_size=auto", "train.max_steps=2"}), {"already holds a run"});
  const Ran dry = train("c", {"train.batch_size=auto", "train.max_steps=2", "--dry-run"});
  EXPECT_EQ(dry.status, 0) << dry.err;
  EXPECT_TRUE(says(dry.out, {"expected"}));
  EXPECT_FALSE(exists("c"));
}

}  // namespace
}  // namespace redline::cli
