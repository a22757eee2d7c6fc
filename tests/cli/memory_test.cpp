// A run that does not fit, as it is typed: it says what moves and trains to the same bits, goes on under another limit,
// and is refused with exit 2 where that is asked for or nothing would fit.
#include <gtest/gtest.h>

#include "cli/program.h"
#include "io/json.h"

namespace redline::cli {
namespace {

class MemoryLimits : public ProgramTest {
 protected:
  static Words train(const std::string& out, const std::string& steps, const Words& more) {
    return words_of("train --device cpu --out " + out + " train.max_steps=" + steps) +
           words_of(
               "train.eval_every=0 train.eval_batches=1 optim.warmup_steps=1 data.train=ping model.layers=4 "
               "model.hidden=64 model.heads=2 model.head_dim=32 model.ffn=96 train.seq_len=64 train.batch_size=2 "
               "model.vocab=512 optim.schedule=constant train.average=ema optim.name=adamw kernels.logits_rows=64") +
           more;
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

}  // namespace
}  // namespace redline::cli
