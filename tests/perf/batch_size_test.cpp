// The choice of a batch size by plans; and train.batch_size = "auto": the steps stay what they were, the numbers are
// what was measured to be fastest.
#include "perf/batch_size.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "model/lowering.h"
#include "perf/machines.h"
#include "testing/says.h"
#include "testing/watched_device.h"
#include "train/memory_advice.h"
#include "train/tiny_run.h"

namespace redline::perf {
namespace {

using testing::says;

TEST(Choose, KeepsTheRowsOfAStepAndFits) {
  const config::Config c = config_of("llama-1.36b", {});
  const Machine machine = machine_named("a100-80");
  const Choice choice = choose(c, machine);
  ASSERT_GT(choice.best.size(), 3u);
  EXPECT_FALSE(choice.changed);
  for (const Plan& p : choice.best) {
    EXPECT_EQ(p.setting.rows(), 96);
    EXPECT_TRUE(p.fits);
    EXPECT_LE(p.memory.total(), machine.memory);
    EXPECT_LE(p.expected.tokens_per_s, choice.best[0].expected.tokens_per_s);
  }
  EXPECT_EQ(choice.best[0].setting.recompute, "none");
  const config::Config chosen = with_setting(c, choice.best[0].setting);
  EXPECT_EQ(chosen.optim.lr, c.optim.lr);
  EXPECT_FALSE(make_plan(c, machine).fits) << "24 rows do not, hence the choice of fewer";
  EXPECT_TRUE(says(why(choice, machine), {"24 rows would need"}));
}

TEST(Choose, FindsSmallMicroBatchesOfAHugeStep) {
  const config::Config c = config_of("quick", {"train.batch_size=256", "train.accumulate=256", "train.recompute=none"});
  Machine machine = machine_named("h200");
  const Plan eight = make_plan(with_setting(c, {8, 8192, "none"}), machine);
  machine.memory = eight.memory.total();
  const Choice choice = choose(c, machine);
  ASSERT_FALSE(choice.best.empty());
  EXPECT_EQ(choice.best[0].setting, (Setting{8, 8192, "none"}));
}

TEST(Choose, RecomputesWhereNothingElseFits) {
  const config::Config c =
      config_of("llama-1.36b", {"train.batch_size=1", "train.accumulate=1", "train.seq_len=16384"});
  Machine machine = machine_named("h200");
  machine.memory = make_plan(with_setting(c, {1, 1, "mlp"}), machine).memory.total() - 1;
  const Choice choice = choose(c, machine);
  ASSERT_FALSE(choice.best.empty());
  EXPECT_EQ(choice.best[0].setting, (Setting{1, 1, "block"}));
  EXPECT_TRUE(says(why(choice, machine), {"keeping everything would need"}));

  config::Config fixed = config_of(
      "llama-1.36b", {"train.batch_size=1", "train.accumulate=1", "train.seq_len=16384", "train.recompute=none"});
  EXPECT_TRUE(choose(fixed, machine).best.empty()) << "recompute was set, so it is not chosen";
  const Choice freed = choose_or_relax(fixed, machine);
  ASSERT_FALSE(freed.best.empty());
  EXPECT_EQ(freed.best[0].setting.recompute, "block");
  EXPECT_EQ(freed.relaxed, std::vector<std::string>{}) << "its own recompute is all that had to go";
  EXPECT_TRUE(says(why(freed, machine), {"as it was asked for nothing fits", "train.recompute = \"none\""}));
}

struct Asked {
  const char* name;
  std::vector<std::string> settings;
};
const std::vector<std::string> k8b = {"model.layers=32",    "model.hidden=4096",  "model.heads=32",
                                      "model.kv_heads=8",   "model.head_dim=128", "model.ffn=14336",
                                      "model.vocab=128256", "train.seq_len=8192", "train.batch_size=2",
                                      "train.accumulate=1", "optim.name=adamw"};

// Whatever is advised is what `redline train` takes, and it fits.
TEST(ChooseOrRelax, AdvisesWhatIsAcceptedAndFits) {
  const std::vector<Asked> models = {
      {"quick", k8b},
      {"olmo2-1.5b", {"optim.name=adamw", "train.batch_size=4", "train.accumulate=1"}},
      {"qwen3-1.8b", {"train.batch_size=2", "train.accumulate=1", "train.recompute=none"}},
  };
  int relaxed = 0, nothing = 0;
  for (const Asked& model : models)
    for (const char* card : {"rtx-4090", "h200"}) {
      const std::string name = fmt::format("{} on {}", model.name, card);
      const Machine machine = machine_named(card);
      const Choice choice = choose_or_relax(config_of(model.name, model.settings), machine);
      const std::string said = why(choice, machine);
      if (choice.best.empty()) {
        ++nothing;
        ASSERT_GT(choice.enough_gpus, 1) << name;
        EXPECT_TRUE(says(said, {fmt::format("--gpus {}", choice.enough_gpus), "model"})) << name;
        continue;
      }
      relaxed += choice.asked_for.has_value();
      std::vector<std::string> settings = model.settings;
      for (const std::string& key : keys_to_set(choice, choice.best[0].setting)) settings.push_back(key);
      const Plan plan = make_plan(config_of(model.name, settings), machine);
      EXPECT_TRUE(plan.fits) << name << ": " << said;
      EXPECT_EQ(plan.memory.total(), choice.best[0].memory.total()) << name;
      for (const Plan& p : choice.too_large) EXPECT_GT(p.memory.total(), machine.memory) << name;
    }
  EXPECT_GE(relaxed, 2);
  EXPECT_GE(nothing, 1);
}

// 18 bytes a parameter are more than the card has, and 14 or 12 are less.
TEST(ChooseOrRelax, CoarserMomentsComeBeforeAShorterRowAndASmallerModel) {
  const Machine h200 = machine_named("h200");
  const Choice large = choose_or_relax(config_of("quick", k8b), h200);
  ASSERT_FALSE(large.best.empty()) << why(large, h200);
  EXPECT_EQ(large.relaxed, std::vector<std::string>{"optim.moments=bf16"});
  EXPECT_TRUE(says(why(large, h200), {"nothing fits", "optim.moments=bf16"}));

  config::Config endless = config_of("quick", k8b);  // as a plan may have it
  endless.train.max_steps = 0;
  EXPECT_EQ(choose_or_relax(endless, h200).relaxed, large.relaxed);

  const Machine small = machine_named("rtx-4090");
  const Choice on_4090 =
      choose_or_relax(config_of("olmo2-1.5b", {"optim.name=adamw", "train.batch_size=2", "train.accumulate=1"}), small);
  ASSERT_FALSE(on_4090.best.empty()) << why(on_4090, small);
  EXPECT_TRUE(says(fmt::format("{}", fmt::join(on_4090.relaxed, " ")), {"optim.moments="}));
}

TEST(ChooseOrRelax, WhatWouldNeedMoreNeedsMoreThanThereIs) {
  const config::Config c =
      config_of("llama-1.36b", {"train.batch_size=4", "train.accumulate=1", "train.recompute=none"});
  Machine machine = machine_named("h200");
  const Plan two = make_plan(with_setting(c, {2, 2, "none"}), machine);
  machine.memory = two.memory.total() - 1;
  const Choice choice = choose_or_relax(c, machine);
  ASSERT_FALSE(choice.best.empty());
  EXPECT_EQ(choice.best[0].setting.batch_size, 1);
  EXPECT_TRUE(says(why(choice, machine), {fmt::format("2 rows would need {:.2f} GiB", gib(two.memory.total()))}));
}

TEST(Choose, ChangesTheRowsOfAStepOnlyWhereTheyCannotBeCutWell) {
  // 509 is a prime: micro-batches of one row, or other rows a step.
  const config::Config c = config_of("quick", {"train.batch_size=509", "train.seq_len=64", "train.recompute=none"});
  Machine machine = machine_named("h200");
  const Plan quarter = make_plan(with_setting(c, {128, 4, "none"}), machine);
  machine.memory = quarter.memory.total();
  const Choice choice = choose(c, machine);
  ASSERT_FALSE(choice.best.empty());
  EXPECT_TRUE(choice.changed);
  const Setting& s = choice.best[0].setting;
  EXPECT_NEAR(static_cast<double>(s.rows()), 509, 32);
  const config::Config chosen = with_setting(c, s);
  const double factor = std::sqrt(static_cast<double>(s.rows()) / 509);
  EXPECT_DOUBLE_EQ(chosen.optim.lr, c.optim.lr * factor);
  EXPECT_DOUBLE_EQ(chosen.optim.min_lr, c.optim.min_lr * factor);
}

TEST(Choose, HasAnAnswerForAnyNumberOfRows) {
  // A prime times a prime, both above what micro-batches can be: only the configuration's own way is left.
  const config::Config c =
      config_of("quick", {"train.batch_size=16777213", "train.accumulate=1048573", "train.seq_len=1"});
  Machine cpu = machine_named("h200");
  cpu.kind = device::Kind::cpu;
  const Choice choice = choose(c, cpu);
  EXPECT_TRUE(choice.best.empty());
  EXPECT_TRUE(says(why(choice, cpu), {"nothing fits"}));
}

TEST(Choose, LeavesOutWhatACardsKernelsDoNotTake) {
  const config::Config c = config_of("quick", {"train.batch_size=4096", "train.accumulate=16"});
  const Choice choice = choose(c, machine_named("h200"));
  ASSERT_FALSE(choice.best.empty());
  for (const auto* plans : {&choice.best, &choice.too_large})
    for (const Plan& p : *plans) EXPECT_LE(p.setting.batch_size, model::most_rows(c));
}

config::Config automatic(std::vector<std::string> overrides = {}) {
  overrides.push_back("train.batch_size=auto");
  return testing::tiny_run(overrides);  // 2 rows x 2
}

TEST(AutoBatch, KeepsTheFastestThatWasRunAndTheRowsOfAStep) {
  device::CpuDevice device(1);
  const config::Config asked = automatic({"train.accumulate=4"});
  ASSERT_TRUE(asked.train.automatic_batch_size);
  AutoBatchOptions options;
  std::vector<std::string> names;
  options.search.progress = [&](const std::string& name, std::size_t number, std::size_t of) {
    names.push_back(name);
    EXPECT_EQ(number, names.size());
    EXPECT_LE(number, of);
  };
  const AutoBatch found = find_batch_size(asked, device, options);
  EXPECT_GT(found.tried.size(), 1u);
  EXPECT_EQ(names.size(), found.tried.size());
  for (const Trial& t : found.tried) {
    EXPECT_EQ(t.setting.rows(), 8);
    ASSERT_EQ(t.state, TrialState::measured);
    EXPECT_GT(t.measured.tokens_per_s, 0);
    EXPECT_LE(t.measured.tokens_per_s, found.tried[0].measured.tokens_per_s);
  }
  EXPECT_EQ(setting_of(found.config), found.tried[0].setting);
  EXPECT_FALSE(found.config.train.automatic_batch_size);
  EXPECT_EQ(found.config.optim, asked.optim);
  EXPECT_EQ(device.allocated_bytes(), 0);
}

TEST(AutoBatch, TakesThePlansWordWhereNothingMayRun) {
  device::CpuDevice device(1);
  AutoBatchOptions options;
  options.measure = false;
  options.search.progress = [](const std::string&, std::size_t, std::size_t) { FAIL() << "nothing may run"; };
  const AutoBatch found = find_batch_size(automatic(), device, options);
  EXPECT_EQ(found.tried[0].state, TrialState::planned);
  EXPECT_EQ(setting_of(found.config).rows(), 4);
}

// In the middle of a step that is timed.
TEST(AutoBatch, ASignalDropsTheStepThatIsTimed) {
  testing::WatchedDevice device(1);
  StopFlag stop = 0;
  device.given = [&](int n) {
    EXPECT_EQ(n, 1) << "went on";
    stop = 15;
  };
  AutoBatchOptions options;
  options.search.stop = &stop;
  const AutoBatch found = find_batch_size(automatic(), device, options);
  EXPECT_EQ(found.tried[0].state, TrialState::planned);
}

TEST(AutoBatch, ASignalEndsTheSearchWithWhatIsKnown) {
  device::CpuDevice device(1);
  const std::atomic<int> stop = 15;
  AutoBatchOptions options;
  options.search.stop = &stop;
  const AutoBatch found = find_batch_size(automatic(), device, options);
  EXPECT_EQ(found.tried[0].state, TrialState::planned);
  EXPECT_EQ(setting_of(found.config).rows(), 4);
}

TEST(AutoBatch, SaysWhatTheLeastWouldNeed) {
  device::CpuDevice device(1);
  const config::Config c =
      automatic({"model.hidden=65536", "model.ffn=262144", "model.heads=512", "model.head_dim=128"});
  EXPECT_TRUE(
      says(testing::error_of([&] { find_batch_size(c, device, {}); }), {"nothing fits", "of 64 tokens", "model"}));
}

// What `train` would name where the batch is given is named where it is not, and fits to the word.
TEST(AutoBatch, NamesTheTypesWithWhichSomethingFits) {
  device::CpuDevice device(1);
  const auto of = [&](std::vector<std::string> more, std::int64_t limit) {
    more.insert(more.begin(), {"optim.moments=8bit", "train.recompute=block", "memory.fit=none",
                               fmt::format("memory.limit={}KiB", limit / 1024)});
    return automatic(more);
  };
  const std::int64_t limit =
      train::memory_needed(with_setting(of({"precision.gradients=bf16"}, 1 << 30), {1, 4, "block"}), device.kind());
  const std::string said = testing::error_of([&] { find_batch_size(of({}, limit + 1024), device, {}); });
  EXPECT_TRUE(says(said, {"nothing fits", "precision.gradients=bf16", " would fit"})) << said;
  const AutoBatch found = find_batch_size(of({"precision.gradients=bf16"}, limit + 1024), device, {});
  EXPECT_EQ(setting_of(found.config).batch_size, 1);
}

TEST(AutoBatch, ARunThatGoesOnTakesItsOwnNumbers) {
  const config::Config asked = automatic();
  const config::Config same = with_setting(asked, {4, 1, "mlp"});
  EXPECT_EQ(adopt_batch_size(asked, same), same);
  const config::Config changed = with_setting(asked, {3, 1, "none"});
  EXPECT_DOUBLE_EQ(changed.optim.lr, asked.optim.lr * std::sqrt(0.75));
  EXPECT_EQ(adopt_batch_size(asked, changed), changed) << "the learning rate to the bit";
  const config::Config insists = automatic({"train.recompute=block"});
  EXPECT_EQ(setting_of(adopt_batch_size(insists, same)), (Setting{4, 1, "block"}));
}

TEST(Grow, ShowsMoreRowsAndThoseThatFillTheMemory) {
  const config::Config c = config_of("ping-95m");
  const Machine machine = machine_named("a100-80");
  const Growth g = grow(c, machine);
  ASSERT_EQ(g.rows.size(), 4u);
  const std::int64_t wanted[] = {128, 192, 256, 384};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(g.rows[i].setting, (Setting{wanted[i], 1, "none"}));
  EXPECT_TRUE(g.rows[1].fits);
  EXPECT_FALSE(g.rows[3].fits);
  EXPECT_LT(g.rows[1].expected.tokens_per_s, 1.1 * g.rows[0].expected.tokens_per_s);
  ASSERT_TRUE(g.filling.has_value());
  const auto share = [&](const Plan& p) {
    return static_cast<double>(p.memory.total()) / static_cast<double>(machine.memory);
  };
  EXPECT_LE(share(*g.filling), kMostFilled);
  EXPECT_GE(share(*g.filling), kLeastFilled);
  const std::int64_t rows = g.filling->setting.batch_size;
  EXPECT_GT(share(make_plan(with_setting(c, {rows + 1, 1, "none"}), machine)), kMostFilled) << "not the most";
  EXPECT_DOUBLE_EQ(with_setting(c, g.filling->setting).optim.lr,
                   c.optim.lr * std::sqrt(static_cast<double>(rows) / 128));
}

// Rows grow within the user's own limit.
TEST(Grow, KeepsWithinMemoryLimit) {
  config::Config c = config_of("gqa-180m");
  c.memory.limit = "24GiB";
  const Growth g = grow(c, machine_named("h200"));
  ASSERT_TRUE(g.filling.has_value());
  EXPECT_TRUE(g.filling->fits);
  EXPECT_TRUE(says(why(choose_or_relax(c, machine_named("h200")), machine_named("h200")), {"memory.limit = 24GiB"}));
}

TEST(Grow, NothingWhereNotEvenARowFits) {
  Machine machine = machine_named("a100-80");
  machine.memory = std::int64_t{1} << 30;
  const Growth g = grow(config_of("llama-1.36b"), machine);
  EXPECT_FALSE(g.filling.has_value());
  EXPECT_FALSE(g.rows.at(0).fits);
}

}  // namespace
}  // namespace redline::perf
