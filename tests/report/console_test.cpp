// The console shows the choices and a line of progress that fits, and says every important thing once.
#include "report/console.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <thread>

#include "report/small_run.h"
#include "testing/says.h"

namespace redline::report {
namespace {

using testing::says;

int times(const std::string& text, const std::string& part) {
  int n = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

train::StepMetrics shown_step(std::int64_t step) {
  train::StepMetrics m;
  m.step = step;
  m.loss = 2.34567;
  m.grad_norm = 1.2345;
  m.lr = 3e-4;
  m.step_ms = 152.3;
  m.tokens_per_s = 13400;
  m.tflops = 0.0512;
  m.mfu = 0.482;
  m.mfu_palm = 0.501;
  m.padding = 0.031;
  return m;
}

TEST(ProgressLine, ReadsAsPromised) {
  EXPECT_EQ(
      progress_line(shown_step(40), 120, 12),
      "step  40/120  loss 2.3457  grad 1.23  lr 3.0e-4  152 ms  13.4k tok/s  51.2 GFLOP/s  mfu 48.2/50.1%  pad  3%  "
      "eta   12 s");
}

TEST(ProgressLine, WithoutAKnownNumberOfStepsHasTheStepAlone) {
  EXPECT_TRUE(progress_line(shown_step(40), 0, 12).starts_with("step 40  loss 2.3457  "));
}

TEST(ProgressLine, SaysHowOftenTheDataWereRead) {
  train::StepMetrics m = shown_step(40);
  m.epoch = 1.372;
  EXPECT_NE(progress_line(m, 120, 12).find("epoch 1.37"), std::string::npos);
}

TEST(ProgressLine, HasTheLargestLoadOfAnExpert) {
  train::StepMetrics m = shown_step(40);
  m.router.emplace(model::RouterFigures{2, 0, {0}, {0.5}, {{0.25, 1.834}}}, false);
  EXPECT_TRUE(says(progress_line(m, 120, 12), "pad  3%  load 1.83  eta"));
}

TEST(Header, SaysHowManyExpertsThereAreAndWhatATokenTakes) {
  SmallRun run(100);
  run.config.model.experts = 32;
  run.config.model.experts_per_token = 4;
  run.config.model.expert_ffn = 768;
  run.header.parameters = 1'073'000'000;
  run.header.active_parameters = 181'000'000;
  std::string all;
  for (const std::string& line : header_lines(run.header)) all += line.substr(line.find_first_not_of(' ')) + " ";
  EXPECT_TRUE(says(all, {"32 experts of 768, 4 a token", "1.07 B parameters, 181 M of them active"}));
  EXPECT_FALSE(says(all, "ffn"));
}

TEST(Header, SaysWhatTheDataHoldAndHowOftenTheyAreRead) {
  SmallRun run(100);
  const auto data_line = [&] {
    std::string all;
    for (const std::string& line : header_lines(run.header))  // in one line, however it was wrapped
      all += line.substr(line.find_first_not_of(' ')) + " ";
    return all;
  };
  EXPECT_TRUE(says(data_line(), "ping (generated), packed;"));
  run.header.training_data = data::EpochSize{12'345, 6'800'000, 0};
  run.header.held_out_data = data::EpochSize{1, 500'000, 0};
  run.header.epochs = 5.781;
  EXPECT_TRUE(says(data_line(),
                   {"12,345 documents", "6.80 M tokens", "the run reads them 5.78 times", "held out: 1 document,"}));
  EXPECT_FALSE(says(data_line(), "train.epochs"));
  run.config.train.epochs = 10;
  EXPECT_TRUE(says(data_line(), "though train.epochs is 10.00"));
  run.header.epochs = 0.05;
  EXPECT_TRUE(says(data_line(), "the run reads 5.0% of them"));
}

TEST(Header, SaysWhatALossCoversAndWhenTheFirstSaveComes) {
  SmallRun run(100);
  const auto header = [&] { return fmt::format("{}", fmt::join(header_lines(run.header, 10'000), "\n")); };
  run.config.train.eval_tokens = 65'536;
  run.config.checkpoint = {};
  EXPECT_TRUE(says(header(), {"held out: a loss covers up to 65,536 tokens", "saves", "the first after 15 min"}));
  EXPECT_FALSE(says(header(), "after step"));
  run.header.held_out_data = data::EpochSize{3, 60'000, 0};
  run.config.checkpoint.every = 30;
  run.header.first_step = 40;
  EXPECT_TRUE(says(header(), {"held out: 3 documents", "a loss covers all", "after step 60 or after 15 min",
                              "every 30 steps or 15 min, whichever is due first"}));
  run.config.checkpoint.minutes = 0;
  EXPECT_TRUE(says(header(), {"the first after step 60, then every 30 steps, and at the end"}));
  run.config.train.eval_tokens = 0;
  run.config.train.eval_batches = 8;
  run.config.checkpoint.every = 100;  // the last step's
  EXPECT_TRUE(says(header(), {"the first 8 batches, whose tokens change", "at the end only", "killed"}));
}

TEST(Header, SaysWhatTheProgramLacksAndWhatThatCosts) {
  SmallRun run(100);
  const auto lines = [&] { return fmt::format("{}", fmt::join(header_lines(run.header, 10'000), "\n")); };
  EXPECT_FALSE(says(lines(), "without"));
  run.header.left_out = {{"Parquet", "no Arrow", "such files cannot be read", false}};
  EXPECT_TRUE(says(lines(), {"without Parquet", "no Arrow", "cannot be read"}));
}

TEST(Header, SaysHowStepsGrowAndWhatTokensComeTo) {
  SmallRun run(100);
  const auto header = [&] {
    std::string all;
    for (const std::string& line : header_lines(run.header)) all += line.substr(line.find_first_not_of(' ')) + " ";
    return all;
  };
  EXPECT_FALSE(says(header(), "grows"));
  EXPECT_FALSE(says(header(), "warm-up"));
  run.config.train.accumulate = 4;
  run.config.train.accumulate_from = 2;
  run.config.train.accumulate_ramp_steps = 10;
  run.config.optim.warmup_tokens = 100'000;
  run.config.optim.decay_tokens = 81'920;
  run.config.optim.schedule = "wsd";
  EXPECT_TRUE(says(header(), {"a step grows from 2 to 4 micro-batches over 10 steps",
                              "15 steps (100,000 tokens) of warm-up", "the last 10 steps (81,920 tokens)"}));
}

// One line says how the run learns.
TEST(Header, SaysOptimizerRateWarmUpAndSchedule) {
  SmallRun run(1000);
  const auto rate = [&] {
    for (const std::string& line : header_lines(run.header, 10'000))
      if (line.starts_with("rate")) return line.substr(8);
    return std::string("no line");
  };
  config::Optim& o = run.config.optim;
  o = {};
  o.lr = 3e-4;
  EXPECT_EQ(rate(), "AdamW, rate 3e-4, by a cosine to 0 at the end");
  o.name = "muon";
  o.muon_beta2 = 0.95;
  o.lr = 2e-3;
  o.min_lr = 2e-4;
  o.warmup_steps = 500;
  o.schedule = "wsd";
  o.decay_fraction = 0.65;
  EXPECT_EQ(rate(), "NorMuon, rate 2e-3 after 500 steps of warm-up, straight to 2e-4 over the last 65%");
  o.muon_beta2 = 0;
  o.warmup_steps = 0;
  o.warmup_fraction = 0.1;
  o.schedule = "linear";
  o.lr = 1.414e-2;
  EXPECT_EQ(rate(), "Muon, rate 1.41e-2 after 100 steps of warm-up, straight to 2e-4 at the end");
  o.schedule = "constant";
  o.schedule_start = 400;
  EXPECT_TRUE(says(rate(), {"after 60 steps", "the same to the end", "from step 400"}));
}

// What the line is for is there in a run of any length: mfu both ways, tokens a second, the rate, padding, what is
// left.
TEST(ProgressLine, ALongRunOnACardLosesOnlyTheRateOfFlops) {
  train::StepMetrics m = shown_step(100'000);
  m.step_ms = 2554;
  m.tokens_per_s = 76953;
  m.tflops = 602.6;
  const std::string line = progress_line(m, 150'000, 86400 * 4.4);
  EXPECT_TRUE(says(line, {"mfu 48.2/50.1%", "77.0k tok/s", "lr 3.0e-4", "pad  3%", "grad 1.23", "eta 4d 09h"}));
  EXPECT_LT(line.size(), kConsoleColumns);
}

TEST(ProgressLine, ANarrowTerminalKeepsWhatIsLeft) {
  const std::string narrow = progress_line(shown_step(40), 120, 86400 * 4.4, 92);
  EXPECT_LE(narrow.size(), 92u);
  EXPECT_TRUE(says(narrow, {"grad 1.23", "lr 3.0e-4", "mfu 48.2%"})) << "the rate and the norm are the last to go";
  const std::string line = progress_line(shown_step(100'000), 150'000, 86400 * 4.4, 79);
  EXPECT_LE(line.size(), 79u);
  EXPECT_TRUE(says(line, {"loss 2.3457", "13.4k tok/s", "mfu 48.2%", "eta 4d 09h"}));
}

TEST(ProgressLine, FitsAtExtremeValues) {
  const double most = std::numeric_limits<double>::max();
  for (const double v : {0.0, 1e-300, 12345.678, most, -most, double{INFINITY}, double{NAN}}) {
    for (const std::int64_t n :
         {std::int64_t{1}, std::int64_t{1'000'000'000}, std::numeric_limits<std::int64_t>::max()}) {
      train::StepMetrics m;
      m.step = n;
      m.loss = m.grad_norm = m.lr = m.step_ms = m.tokens_per_s = m.tflops = m.mfu = m.mfu_palm = m.padding = v;
      EXPECT_LT(progress_line(m, n, v).size(), kConsoleColumns) << v << " " << n;
    }
  }
}

TEST(ProgressLine, LosesNothingAtLargeButRealValues) {
  train::StepMetrics m = shown_step(1'000'000);
  m.loss = 123.4567;
  m.grad_norm = 98765.4;
  m.step_ms = 1e6;
  const std::string line = progress_line(m, 10'000'000, 86400.0 * 30);
  EXPECT_LE(line.size(), kConsoleColumns);
  EXPECT_TRUE(says(line, "eta 30d 00h"));
}

TEST(Console, HeaderNamesTheChoices) {
  const SmallRun run(120);
  Captured out;
  Console(out.stream(), false).on(train::Started{run.header});
  EXPECT_TRUE(
      says(out.text(), {"llama", "4.93 M parameters", "fp32", "2048 tokens a step", "120 steps", "ping (generated)",
                        "400 MiB", "parameters 300 MiB", "other 4.00 KiB", "104 GFLOP/s (measured)", "runs/a"}));
}

// What is too long goes on below, between two words; only a word may be longer than the line.
TEST(Console, TheHeaderBreaksBetweenWords) {
  SmallRun run(120);
  run.header.folder = "runs/" + std::string(90, 'x');
  std::string unbroken;
  for (const std::string& line : header_lines(run.header, 10'000)) unbroken += " " + line.substr(8);
  for (const std::size_t columns : {10u, 40u, 60u, 80u, 120u}) {
    std::string text;
    for (const std::string& line : header_lines(run.header, columns)) {
      const bool one_word = line.find(' ', 8) == line.npos;
      EXPECT_TRUE(one_word || line.size() <= std::max<std::size_t>(columns, 32)) << line;
      text += " " + line.substr(8);
    }
    EXPECT_EQ(text, unbroken) << columns;
  }
  Captured out;
  Console(out.stream(), false).on(train::Started{SmallRun(120).header});
  const std::string text = out.text();
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != text.npos; at = end + 1)
    EXPECT_LE(end - at, 80u) << text;
}

TEST(Console, TheLastLineHasTimeAndTokens) {
  const auto ended = [](std::string sentence, train::Finished figures) {
    figures.text = std::move(sentence);
    return figures;
  };
  const train::Finished done{{}, false, false, 200, 26'200'000, 192}, resumed{{}, true, true, 30, 1'000'000, 42};
  EXPECT_EQ(in_words(ended("200 steps done, held-out loss 3.1416", done)),
            "200 steps done in 3m 12s, 26.2 M tokens, held-out loss 3.1416");
  EXPECT_EQ(in_words(ended("1 step done", done)), "1 step done in 3m 12s, 26.2 M tokens");
  EXPECT_EQ(in_words(train::Finished{"a: nothing is left to do"}), "a: nothing is left to do");
  Captured out;
  Console(out.stream(), false).on(ended("stopped by signal 2 after step 80; continue with --resume", resumed));
  EXPECT_EQ(out.text(),
            "stopped by signal 2 after step 80, the last 30 in 42 s, 1.00 M tokens in all; continue with --resume\n");
}

TEST(Console, TheLastLineSaysWhereTheTimeWent) {
  train::Account account;
  account.of(train::Part::steps) = 941;
  account.of(train::Part::saving) = 21;
  account.of(train::Part::start_up) = 30;
  account.of(train::Part::evaluation) = 4.9;
  account.of(train::Part::sampling) = 3.1;
  EXPECT_EQ(in_words(account), "94.1% in steps, 3.0% start-up, 2.1% saving");
  train::Finished done{{"200 steps done, held-out loss 3.1416"}, false, false, 200, 26'200'000, 992, account};
  EXPECT_EQ(in_words(done),
            "200 steps done in 16m 32s, 26.2 M tokens, held-out loss 3.1416; 94.1% in steps, 3.0% start-up, "
            "2.1% saving");
  done.account->joules = 1.512e6;
  done.account->tokens = 1'200'000;
  done.resumed = true;
  EXPECT_TRUE(
      in_words(done).ends_with("; this session: 94.1% in steps, 3.0% start-up, 2.1% saving; 0.42 kWh, 1.26 J a token"))
      << in_words(done);
  EXPECT_EQ(in_words(train::Account{}), "0.0% in steps");
}

TEST(Console, EveryLineSaysWhatCannotBeWritten) {
  const SmallRun run(100);
  Captured out;
  Console console(out.stream(), true);
  console.on(train::Started{run.header});
  console.set_failing({"metrics.jsonl"});
  console.on(train::Stepped{shown_step(1)});
  EXPECT_EQ(times(out.text(), "  cannot write metrics.jsonl\n"), 1) << out.text();
  console.set_failing({"metrics.jsonl", "events.jsonl"});
  console.on(train::Stepped{shown_step(10)});
  EXPECT_EQ(times(out.text(), "  cannot write 2 files\n"), 1) << out.text();
  console.set_failing({});
  console.on(train::Stepped{shown_step(20)});
  EXPECT_EQ(times(out.text(), "cannot write"), 2);
  const std::string text = out.text();
  const std::size_t end = text.find("  cannot write metrics.jsonl\n");
  EXPECT_LE(end - text.rfind('\n', end - 1) + 28, kConsoleColumns);  // with the newline before it
}

TEST(Console, AnEvaluationSaysWhatIsLeftOfIt) {
  Captured out;
  Console console(out.stream(), true);
  for (std::int64_t batch = 1; batch <= 3; ++batch) {
    console.on(train::Evaluating{batch, 60});
    std::this_thread::sleep_for(std::chrono::milliseconds(60));  // a live line is not rewritten sooner
  }
  EXPECT_EQ(times(out.text(), "evaluating, batch 1/60\x1b"), 1);
  EXPECT_EQ(times(out.text(), "evaluating, batch 3/60, eta "), 1) << out.text();
  console.on(train::Evaluating{1, 0});
  EXPECT_EQ(times(out.text(), "evaluating, batch 1\x1b"), 1) << "as many as there are";
}

TEST(Console, InAFileLinesAreASecondApartAndTheEndsAreThere) {
  const SmallRun run(100);
  Captured out;
  Console console(out.stream(), false);
  console.on(train::Started{run.header});
  for (std::int64_t step = 1; step <= 100; ++step) console.on(train::Stepped{shown_step(step)});
  EXPECT_EQ(times(out.text(), "step   1/100"), 1);
  EXPECT_EQ(times(out.text(), "step 100/100"), 1);
  EXPECT_LE(times(out.text(), "/100"), 10);  // 2, unless this test takes seconds
  EXPECT_FALSE(says(out.text(), "\r"));
  EXPECT_FALSE(says(out.text(), "\x1b"));
}

// By train.max_hours: how many steps there will be comes later, and what is left is the time.
TEST(Console, LearnsTheStepsOfARunOnItsWay) {
  SmallRun run(0);
  run.config.train.max_hours = 2;
  run.header.seconds_left = 7200.4;
  Captured out;
  Console console(out.stream(), true);
  console.on(train::Started{run.header});
  EXPECT_EQ(times(out.text(), "a step, for 2h 00m"), 1) << out.text();
  console.on(train::Stepped{shown_step(1)});
  EXPECT_EQ(times(out.text(), "step 1  loss"), 1) << out.text();
  EXPECT_EQ(times(out.text(), "eta 2h 00m"), 1) << out.text();
  console.on(train::Planned{{{"room for 30 steps"}}, 30});
  EXPECT_EQ(times(out.text(), "room for 30 steps\n"), 1);
  console.on(train::Stepped{shown_step(30)});
  EXPECT_EQ(times(out.text(), "step 30/30  loss"), 1) << out.text();
}

TEST(Console, OnATerminalEachTenthStays) {
  const SmallRun run(100);
  Captured out;
  Console console(out.stream(), true);
  console.on(train::Started{run.header});
  for (std::int64_t step = 1; step <= 100; ++step) console.on(train::Stepped{shown_step(step)});
  int kept = 0;
  const std::string text = out.text();
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != text.npos; at = end + 1)
    kept += text.substr(at, end - at).find("/100 ") != std::string::npos;
  EXPECT_EQ(kept, 11);  // the first, and each tenth
}

// Data that are trained on as well are not held out, and nothing calls them so.
TEST(Console, WhatIsTrainedOnIsNotCalledHeldOut) {
  SmallRun run(100);
  run.header.trained_on = {"eval"};
  run.header.loss_trained_on = true;
  run.header.held_out_data = data::EpochSize{1, 500'000, 0};
  Captured out;
  Console console(out.stream(), false);
  console.on(train::Started{run.header});
  console.on(train::Evaluated{0, 5.5});
  EXPECT_EQ(times(out.text(), "loss on training data 5.5000 before the first step\n"), 1);
  EXPECT_TRUE(says(out.text(), "evaluated, and trained on: 1 document"));
  EXPECT_FALSE(says(out.text(), "held"));
  run.header.trained_on = {"code"};  // not the set whose loss is the run's
  run.header.loss_trained_on = false;
  console.on(train::Started{run.header});
  EXPECT_TRUE(says(out.text(), "held out: 1 document"));
  train::StepMetrics m = shown_step(60);
  m.eval_loss = 1.25;
  m.eval_sets = {{"web", 1.25, {}}, {"code", 0.5, {}}};
  console.on(train::Stepped{m});
  EXPECT_TRUE(says(out.text(), "web 1.2500, code 0.5000 (trained on) after step 60\n"));
}

TEST(Header, SaysHowManyIdsTheDataHave) {
  SmallRun run(100);
  run.config.model.vocab = 50304;
  run.header.data_vocabulary = 50257;
  EXPECT_TRUE(says(header_lines(run.header, 400)[0], {"vocabulary 50304", "50257"}));
  run.header.data_vocabulary = 50304;
  EXPECT_FALSE(says(header_lines(run.header, 400)[0], "in the data"));
}

TEST(Console, EvaluationsAndCheckpointsHaveTheirOwnLines) {
  const SmallRun run(100);
  Captured out;
  Console console(out.stream(), false);
  console.on(train::Started{run.header});
  console.on(train::Evaluated{0, 5.5});
  train::StepMetrics m = shown_step(50);
  m.eval_loss = 1.25;
  console.on(train::Evaluated{50, 1.25});
  console.on(train::Stepped{m});
  console.on(train::Saved{50, "runs/a/checkpoints/step_00000050", 0.5});
  console.on(train::Saved{60, "step_00000060", 3.4, 0.25});
  console.on(train::Warning{"something odd"});
  m.step = 60;
  m.eval_sets = {{"web", 1.25, {}}, {"code", 0.5, {}}};
  console.on(train::Stepped{m});
  EXPECT_EQ(times(out.text(), "held-out loss web 1.2500, code 0.5000 after step 60\n"), 1);
  EXPECT_EQ(times(out.text(), "held-out loss 5.5000 before the first step\n"), 1);
  EXPECT_EQ(times(out.text(), "held-out loss 1.2500 after step 50\n"), 1);
  EXPECT_EQ(times(out.text(), "saved step 50 in 500 ms: runs/a/checkpoints/step_00000050\n"), 1);
  EXPECT_EQ(times(out.text(), "saved step 60 in 3.4 s, of which training waited 250 ms: step_00000060\n"), 1);
  EXPECT_EQ(times(out.text(), "warning: something odd\n"), 1);
}

}  // namespace
}  // namespace redline::report
