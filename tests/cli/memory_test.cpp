// A run that does not fit, as it is typed: it says what moves and trains to the same bits, goes on under another limit,
// and is refused with exit 2 where that is asked for or nothing would fit.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <sstream>

#include "cli/program.h"
#include "io/json.h"

namespace redline::cli {
namespace {

class MemoryLimits : public ProgramTest {
 protected:
  const Words small_ = words_of(
      "train.eval_every=0 train.eval_batches=1 optim.warmup_steps=1 data.train=ping model.layers=4 "
      "model.hidden=64 model.heads=2 model.head_dim=32 model.ffn=96 train.seq_len=64 train.batch_size=2 "
      "model.vocab=512 optim.schedule=constant train.average=ema optim.name=adamw kernels.logits_rows=64");
  Words train(const std::string& out, const std::string& steps, const Words& more) const {
    return words_of("train --device cpu --out " + out + " train.max_steps=" + steps) + small_ + more;
  }
  std::string file(const std::string& run, const std::string& name) {
    return real_files().read(folder_ / run / "checkpoints" / "step_00000004" / name);
  }
};

TEST_F(MemoryLimits, ARunUnderALimitHasTheBitsOfOneWithoutAndGoesOnUnderAnother) {
  must(train("whole", "4", {}));
  const Ran first = must(train("small", "2", {"memory.limit=4MiB"}));
  EXPECT_TRUE(says(first.out, {"memory.fit = auto", "lie in the host's memory", "slower by the plan"})) << first.out;
  const Ran second = must(words_of("train --device cpu --resume --out small train.max_steps=4 memory.limit=5MiB"));
  EXPECT_TRUE(says(second.out, {"memory.fit = auto"})) << second.out;
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "average.safetensors"})
    EXPECT_EQ(file("small", name), file("whole", name)) << name;
}

TEST_F(MemoryLimits, NoneRefusesAndWhatNothingFitsIntoIsRefused) {
  expect_bad_input(train("a", "2", {"memory.limit=4MiB", "memory.fit=none"}),
                   {"memory.limit allows", "memory.fit = \"auto\""});
  expect_bad_input(train("a", "2", {"memory.limit=200KiB"}), {"memory.limit allows"});
  expect_bad_input(train("a", "2", {"memory.limit=1KiB"}), {"memory.limit allows 1.00 KiB"});
  EXPECT_FALSE(exists("a"));
  expect_bad_input(train("a", "2", {"memory.limit=4GB"}), {"memory.limit", "4GB", "GiB"});
}

TEST_F(MemoryLimits, PlanShowsTheWayAndTheNextBest) {
  const Ran ran = must(words_of("plan llama-1.36b --card rtx-4090 --json precision.matmul=bf16 memory.limit=20GiB"));
  const io::Json plan = io::Json::parse(ran.out);
  ASSERT_TRUE(plan.at("fit").is_object()) << ran.out;
  const io::Json& ways = plan.at("fit").at("ways");
  ASSERT_GE(ways.size(), 2u);
  EXPECT_FALSE(plan.at("fits").get<bool>()) << "as asked";
  EXPECT_EQ(plan.at("arena_bytes"), ways[0].at("arena_bytes"));
  EXPECT_LE(plan.at("arena_bytes").get<double>(), 20 * 0x1p30);
  EXPECT_EQ(plan.at("expected").at("step_ms"), ways[0].at("step_ms"));
  EXPECT_LE(ways[0].at("step_ms").get<double>(), ways[1].at("step_ms").get<double>());
}

// A plan and a run say how much of the host's memory would do, and that is enough.
TEST_F(MemoryLimits, WhatTheHostLacksIsTold) {
  const Words limits = words_of("train.batch_size=1 memory.limit=2200KiB");
  const Words little = limits + Words{"memory.host_limit=1MiB"};
  const auto amount_of = [](const std::string& text) {
    const std::size_t end = text.find(" of the host's memory it would fit (memory.host_limit is 1MiB)");
    if (end == text.npos) return std::string();
    const std::size_t begin = text.rfind("with ", end) + 5;
    return text.substr(begin, end - begin);
  };
  const Ran refused = run(train("a", "2", little));
  const Words plan = words_of("plan --card cpu train.max_steps=2") + small_;
  const Ran planned = must(plan + little);
  for (const std::string& text : {refused.err, planned.out}) {
    ASSERT_FALSE(amount_of(text).empty()) << text;
    const Words enough = limits + Words{"memory.host_limit=" + amount_of(text)};
    EXPECT_TRUE(says(must(train("b", "2", enough)).out, {"lie in the host's memory"}));
    std::filesystem::remove_all(folder_ / "b");
  }
  const io::Json json = io::Json::parse(must(plan + little + Words{"--json"}).out);
  EXPECT_GT(json.at("fit").at("more_host").at("bytes").get<double>(), 0x1p20);
  EXPECT_TRUE(says(json.at("why").get<std::string>(), {"nothing fits", "memory.host_limit is 1MiB", "can lie"}));
  // Where bytes that move let the step fit, no line says that nothing does.
  const Ran fits = must(plan + limits);
  EXPECT_TRUE(says(fits.out, {"choice    train.batch_size=1 train.accumulate=", ", with bytes moved as `fit` says"}))
      << fits.out;
  EXPECT_EQ(fits.out.find("smaller"), std::string::npos) << fits.out;
}

// The line of the batch says what is computed again as it runs, in a plan and in a run's header.
TEST_F(MemoryLimits, TheBatchSaysWhatIsComputedAgain) {
  const auto batch_of = [](const std::string& text) {
    const std::size_t begin = text.find("\nbatch ");
    return begin == text.npos ? text : text.substr(begin, text.find("recomputed", begin) - begin);
  };
  const Words plan = words_of("plan --card cpu train.max_steps=2") + small_ + Words{"train.batch_size=8"};
  const Words limit = words_of("train.batch_size=8 memory.fit=none train.recompute=auto memory.limit=8MiB");
  EXPECT_TRUE(says(batch_of(must(plan).out), "nothing is"));
  EXPECT_TRUE(says(batch_of(must(plan + Words{"train.recompute=block"}).out), "; layers are"));
  for (const Ran& ran : {must(plan + limit), must(train("again", "2", limit))}) {
    EXPECT_TRUE(says(ran.out, {"as asked the run needs", "computed again"})) << ran.out;
    EXPECT_TRUE(says(batch_of(ran.out), "the first ")) << ran.out;
    EXPECT_FALSE(says(batch_of(ran.out), "nothing is")) << ran.out;
  }
}

// 64 rows at once fit in no way, and a step of the same rows cut otherwise does: the plan has it, not "nothing fits".
TEST_F(MemoryLimits, PlanCutsAStepThatFitsInNoWay) {
  const Words words = words_of("plan qwen3-1.8b model.layers=3 --card rtx-4090 memory.limit=8GiB") +
                      words_of("train.batch_size=64 train.accumulate=1");
  const io::Json plan = io::Json::parse(must(words + Words{"--json"}).out);
  EXPECT_EQ(plan.at("fit").at("ways").size(), 0u) << "as it is cut";
  ASSERT_TRUE(plan.at("moved_cut").is_object()) << plan.dump();
  Words again = words + Words{"--json"};
  for (const io::Json& key : plan.at("moved_cut").at("set")) again.push_back(key.get<std::string>());
  const io::Json cut = io::Json::parse(must(again).out);
  ASSERT_GT(cut.at("fit").at("ways").size(), 0u);
  EXPECT_EQ(cut.at("fit").at("ways")[0].at("step_ms"), plan.at("moved_cut").at("step_ms"));
  EXPECT_TRUE(says(must(words).out, {"choice    train.batch_size=", "host's memory", "slower by the plan"}));
}

TEST_F(MemoryLimits, PlanAnswersWhichCardIsNeeded) {
  write("config.json", R"({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 3072, "vocab_size": 151936, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
    "tie_word_embeddings": true, "max_position_embeddings": 40960})");
  const Words words =
      words_of("plan config.json train.batch_size=8 train.seq_len=2048 --cards") + Words{"train.max_tokens=1000000000"};
  const io::Json table = io::Json::parse(must(words + Words{"--json"}).out);
  EXPECT_EQ(table.at("tokens").get<double>() > 0.99e9, true);
  std::map<std::string, io::Json> cards;
  for (const io::Json& row : table.at("cards")) cards[row.at("card")] = row;
  for (const char* id : {"rtx-3090", "rtx-4090", "rtx-5090", "a6000", "l40s", "rtx-pro-6000", "gh200", "h200"})
    ASSERT_TRUE(cards.contains(id)) << id;
  for (const auto& [id, row] : cards) {
    EXPECT_EQ(row.at("measured").get<bool>(), id == "h200");
    ASSERT_TRUE(row.at("fits").get<bool>()) << id;
    EXPECT_LE(row.at("total_bytes").get<double>(), row.at("memory_bytes").get<double>()) << id;
    EXPECT_GT(row.at("hours").get<double>(), 0) << id;
  }
  EXPECT_GT(cards["h200"].at("tokens_per_s").get<double>(), 3 * cards["rtx-3090"].at("tokens_per_s").get<double>());
  EXPECT_TRUE(says(must(words).out, {"rtx-5090", "as asked", "no other card"}));
  const std::string moving = must(words + words_of("train.batch_size=64")).out;
  EXPECT_TRUE(says(moving, {"as asked (1)\n", "\n(1) "})) << "words too long for the table stand below it";
  std::istringstream lines(moving);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  expect_bad_input(words + Words{"--card", "h200"}, {"--cards", "--card"});
}

}  // namespace
}  // namespace redline::cli
