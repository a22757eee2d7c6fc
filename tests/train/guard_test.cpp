// Updates that are not made: a run bears some, goes back where it may, ends with the way out where it may not, and is
// the same run bit for bit where nothing happens, and where it is stopped in between.
#include "train/guard.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "base/hash.h"
#include "io/json.h"
#include "testing/temp_folder.h"
#include "train/run_folder.h"
#include "train/tiny_run.h"

namespace redline::train {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Knows batches by their tokens, and makes the norm of those that are bad so many times what it is: NaN times, or a
// spike.
template <class Device>
class Spoiling {
 public:
  explicit Spoiling(std::set<std::uint64_t> bad = {}, float factor = kNan) : bad_(std::move(bad)) {
    device.others = [this](std::span<const std::byte> bytes) {
      if (bytes.size() == kTokens && last_ != kTokens) tokens_ = hash64(bytes);  // before targets and positions
      last_ = bytes.size();
    };
    device.states = [this, factor](StepState& state) {
      last_ = 0;
      if (state.counts.pairs == 0) {  // of a micro-step
        seen.push_back(tokens_);
        spoiled_ = spoiled_ || bad_.contains(tokens_);
        return;
      }
      if (spoiled_) state.counts.pairs /= factor;
      spoiled_ = false;
      if (static_cast<std::int64_t>(state.step) + 1 == stop_in && updates_ >= stop_after) stop = SIGTERM;
      ++updates_;
    };
  }

  Ran run(const config::Config& config, const Path& folder, bool resume = false,
          std::optional<std::int64_t> from_step = {}) {
    TrainOptions options;
    options.stop = &stop;
    options.from_step = from_step;
    return run_on(device, options, config, folder, resume, real_files());
  }

  Device device{2};
  StopFlag stop = 0;
  std::int64_t stop_in = 0, stop_after = 0;  // the step that is the last, once so many updates were given
  std::vector<std::uint64_t> seen;           // batches in their order

 private:
  static constexpr std::size_t kTokens = 2 * 64 * 4;
  std::set<std::uint64_t> bad_;
  std::uint64_t tokens_ = 0;
  std::size_t last_ = 0;
  bool spoiled_ = false;
  std::int64_t updates_ = 0;
};
using Watched = Spoiling<testing::WatchedDevice>;

// The batches of steps of a run that nothing happens to: each step has two micro-batches.
std::set<std::uint64_t> batches_of(std::vector<std::size_t> steps) {
  static const std::vector<std::uint64_t> all = [] {
    testing::TempFolder temp;
    Watched plain;
    plain.run(tiny_run({"train.max_steps=30", "train.eval_every=0"}), temp.path());
    return plain.seen;
  }();
  std::set<std::uint64_t> of;
  for (const std::size_t step : steps) of.insert(all[2 * step - 1]);
  return of;
}

const std::vector<std::string> kExperts = {"model.family=olmoe", "model.experts=4", "model.experts_per_token=2"};

config::Config guarded(std::vector<std::string> more) {
  more.insert(more.begin(), {"train.max_steps=20", "train.eval_every=0"});
  return tiny_run(more);
}

std::vector<std::string> checkpoints(const Path& run) { return real_files().list(run / "checkpoints"); }

const StepMetrics& at(const Ran& ran, std::int64_t step) {
  for (auto m = ran.seen.steps.rbegin(); m != ran.seen.steps.rend(); ++m)
    if (m->step == step) return *m;
  throw std::out_of_range("no such step");
}

TEST(Guard, CountsAStreakAndTakesTheCheckpointBeforeThePresentForGood) {
  config::Guard settings{.skips = 2, .rollbacks = 1};
  GuardState state;
  Guard guard(settings, state);
  const std::vector<std::int64_t> documents = {4, 2, 4};
  guard.begin(0);
  EXPECT_FALSE(guard.may_go_back());
  const auto save = [&](std::int64_t step) {
    guard.before_save(step);
    guard.saved(step);
  };
  guard.made(0, documents);
  save(5);
  EXPECT_EQ(guard.good(), std::nullopt);
  EXPECT_EQ(guard.back_to(), 5);  // for want of a better one
  save(10);
  EXPECT_EQ(guard.good(), 5);
  EXPECT_EQ(guard.left_out(10, documents), Guard::Verdict::skip);
  save(15);
  EXPECT_EQ(guard.good(), 5) << "step 10 was followed by an update that was not made";
  EXPECT_EQ(guard.left_out(11, documents), Guard::Verdict::skip);
  EXPECT_EQ(guard.left_out(12, documents), Guard::Verdict::go_back);
  guard.made(13, documents);
  EXPECT_EQ(guard.left_out(14, documents), Guard::Verdict::skip) << "the streak has ended";
  EXPECT_EQ(state.skipped, 4);

  const std::vector<PassedBatch> passed = guard.go_back({.drawn = 5}, 5, true);
  ASSERT_EQ(passed.size(), 2u);
  EXPECT_EQ(passed[0].draw, 13) << "the last update broke the parameters";
  EXPECT_EQ(passed[1].draw, 14);
  EXPECT_EQ(passed[1].documents, (std::vector<std::int64_t>{2, 4}));
  EXPECT_EQ(state, (GuardState{.drawn = 5, .skipped = 4, .rollbacks = 1, .good = 5, .to_pass_over = {13, 14}}));
  EXPECT_EQ(guard_state_from(to_json(state), "here"), state);
  EXPECT_FALSE(guard.may_go_back()) << "once was all";
  EXPECT_FALSE(guard.passes_over());
  state.drawn = 13;
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(guard.passes_over());
    guard.passed_over();
  }
  EXPECT_FALSE(guard.passes_over());
  EXPECT_EQ(state.drawn, 15);
}

TEST(GuardedRun, ThatMeetsNothingHasTheBitsOfOneThatIsNot) {
  testing::TempFolder temp;
  const auto with = [&](const char* name, std::vector<std::string> settings) {
    settings.push_back("train.max_steps=25");
    return losses(run(guarded(settings), temp.path() / name).seen);
  };
  const std::vector<double> plain = with("plain", {"guard.skips=0"});
  EXPECT_EQ(with("guarded", {"guard.skips=9", "guard.rollbacks=9"}), plain);
  EXPECT_EQ(with("spikes", {"guard.spike=100"}), plain);
  EXPECT_TRUE(tensors(temp.path() / "guarded", 25) == tensors(temp.path() / "plain", 25));
  const auto weights = [&](const char* name) {
    return real_files().read(temp.path() / name / "checkpoints/step_00000025/model.safetensors");
  };
  EXPECT_TRUE(weights("spikes") == weights("plain"));
}

TEST(GuardedRun, SkipsAndGoesOn) {
  testing::TempFolder temp;
  Watched bad(batches_of({7, 8, 12}));
  const Ran ran = bad.run(guarded({"checkpoint.every=1", "checkpoint.keep=99", "guard.skips=2"}), temp.path());
  EXPECT_EQ(ran.result.steps, 20);
  ASSERT_EQ(ran.seen.steps.size(), 20u);
  ASSERT_EQ(ran.seen.skipped.size(), 3u);
  const Skipped& first = ran.seen.skipped[0];
  EXPECT_EQ(first.step, 7);
  EXPECT_EQ(first.reason, "not finite");
  EXPECT_TRUE(std::isnan(first.norm));
  EXPECT_FALSE(first.documents.empty());
  EXPECT_TRUE(says(first.text, {"step 7: the gradient norm is not finite"}));
  EXPECT_TRUE(says(ran.seen.skipped[1].text, {"left out", "2 in a row", "at most 2"}));
  EXPECT_TRUE(std::isfinite(at(ran, 7).loss));
  EXPECT_TRUE(std::isnan(at(ran, 7).grad_norm));
  EXPECT_EQ(at(ran, 6).skipped, 0);
  EXPECT_EQ(at(ran, 8).skipped, 2);
  EXPECT_EQ(at(ran, 20).skipped, 3);
  EXPECT_TRUE(tensors(temp.path(), 6) == tensors(temp.path(), 8)) << "nothing was touched";
  EXPECT_FALSE(tensors(temp.path(), 8) == tensors(temp.path(), 9));
}

// The next step is given before it is known that this one's update was not made.
TEST(GuardedRun, SkipsTheSameWhereTheDeviceRunsAhead) {
  testing::TempFolder temp;
  const config::Config c = guarded({"checkpoint.every=0", "guard.skips=2"});
  Watched cpu(batches_of({7, 8, 12}));
  Spoiling<testing::AheadDevice> ahead(batches_of({7, 8, 12}));
  const Ran one = cpu.run(c, temp.path() / "cpu"), other = ahead.run(c, temp.path() / "ahead");
  ASSERT_EQ(other.seen.skipped.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(other.seen.skipped[i].text, one.seen.skipped[i].text);
  EXPECT_EQ(losses(other.seen), losses(one.seen));
  EXPECT_TRUE(tensors(temp.path() / "ahead", 20) == tensors(temp.path() / "cpu", 20));
}

TEST(GuardedRun, EndsWhereSkipsAreUsedUpAndNamesTheWayBack) {
  testing::TempFolder temp;
  Watched bad(batches_of({12, 13, 14}));
  const std::string error = error_of([&] { bad.run(guarded({"guard.skips=2"}), temp.path() / "two"); });
  EXPECT_TRUE(says(error, {"step 14: the gradient norm is not finite", "nor the 2 before it (guard.skips)",
                           "--resume --from-step 5"}));
  Watched once(batches_of({3}));
  const std::string first = error_of([&] { once.run(guarded({"guard.skips=0"}), temp.path() / "none"); });
  EXPECT_TRUE(says(first, {"step 3: ", "--resume from the last checkpoint"}));
}

void expect_leaves_out_a_spike(std::vector<std::string> settings) {
  testing::TempFolder temp;
  settings.insert(settings.end(), {"train.max_steps=27", "checkpoint.every=1", "checkpoint.keep=99", "guard.spike=20"});
  Watched bad(batches_of({4, 24}), 1000);  // before there is a usual norm nothing is a spike
  const Ran ran = bad.run(guarded(settings), temp.path());
  EXPECT_EQ(ran.result.steps, 27);
  ASSERT_EQ(ran.seen.skipped.size(), 1u);
  const Skipped& skipped = ran.seen.skipped[0];
  EXPECT_EQ(skipped.step, 24);
  EXPECT_EQ(skipped.reason, "spike");
  EXPECT_GT(skipped.limit, 0);
  EXPECT_GT(skipped.norm, skipped.limit);
  EXPECT_TRUE(says(skipped.text, {"is above its limit of"}));
  EXPECT_TRUE(tensors(temp.path(), 23) == tensors(temp.path(), 24)) << "nor does the usual norm move";
  EXPECT_FALSE(tensors(temp.path(), 24) == tensors(temp.path(), 25));
}

TEST(GuardedRun, LeavesOutAnUpdateWhoseNormIsFarFromTheUsual) { expect_leaves_out_a_spike({}); }
// The gradient of the balance loss grows with the others: routers are left alone as well.
TEST(GuardedRun, LeavesOutASpikeOfAModelWithExperts) { expect_leaves_out_a_spike(kExperts); }

template <class Device>
void expect_goes_back(std::vector<std::string> settings = {}) {
  testing::TempFolder temp;
  const Path whole = temp.path() / "whole", parts = temp.path() / "parts";
  settings.insert(settings.end(), {"guard.skips=1", "guard.rollbacks=1"});
  const config::Config c = guarded(settings);
  const Ran plain = run(c, temp.path() / "plain");
  Spoiling<Device> bad(batches_of({12, 13}));
  const Ran ran = bad.run(c, whole);
  EXPECT_EQ(ran.result.steps, 20);
  ASSERT_EQ(ran.seen.rolled_back.size(), 1u);
  const RolledBack& back = ran.seen.rolled_back[0];
  EXPECT_GE(back.from, 13);
  EXPECT_EQ(back.to, 5) << "step 10 was followed by updates that were not made";
  ASSERT_EQ(back.passed_over.size(), 2u);
  EXPECT_EQ(back.passed_over[0].draw, 11);
  EXPECT_EQ(back.passed_over[1].draw, 12);
  EXPECT_FALSE(back.passed_over[0].documents.empty());
  for (std::int64_t step = 1; step <= 11; ++step) EXPECT_EQ(at(ran, step).loss, at(plain, step).loss) << step;
  for (std::int64_t step = 12; step <= 18; ++step) EXPECT_EQ(at(ran, step).tokens, at(plain, step + 2).tokens) << step;
  EXPECT_EQ(at(ran, 20).rollbacks, 1);
  EXPECT_EQ(checkpoints(whole), (std::vector<std::string>{"step_00000015", "step_00000020"}));

  // Stopped after the rollback, before and after the batches that it passes over: the rest is the same.
  for (const std::int64_t last : {7, 14}) {
    std::filesystem::remove_all(parts);
    Spoiling<Device> first(batches_of({12, 13}));
    first.stop_in = last;
    first.stop_after = 14;
    const Ran begun = first.run(c, parts);
    EXPECT_EQ(begun.result.outcome, Outcome::stopped);
    EXPECT_EQ(begun.seen.rolled_back.size(), 1u);
    if (last == 7) {
      EXPECT_EQ(checkpoints(parts).back(), "step_00000010.left");
    }
    Spoiling<Device> second(batches_of({12, 13}));
    const Ran rest = second.run(c, parts, true);
    EXPECT_TRUE(rest.seen.rolled_back.empty() && rest.seen.skipped.empty());
    EXPECT_TRUE(tensors(parts, 20) == tensors(whole, 20)) << last;
    EXPECT_EQ(at(rest, 20).rollbacks, 1);
  }
}
TEST(GuardedRun, GoesBackPassesOverAndFinishes) { expect_goes_back<testing::WatchedDevice>(); }
TEST(GuardedRun, GoesBackWhereTheDeviceRunsAhead) { expect_goes_back<testing::AheadDevice>(); }
TEST(GuardedRun, GoesBackWithExperts) { expect_goes_back<testing::WatchedDevice>(kExperts); }

TEST(GuardedRun, GoesBackInEightBitsAndBehindTheStepThatItResumedFrom) {
  testing::TempFolder temp;
  const Path whole = temp.path() / "whole", parts = temp.path() / "parts";
  const config::Config c = guarded({"guard.skips=0", "guard.rollbacks=2", "precision.matmul=fp8"});
  Watched bad(batches_of({12, 17}));
  const Ran ran = bad.run(c, whole);
  ASSERT_EQ(ran.seen.rolled_back.size(), 2u);
  EXPECT_EQ(ran.seen.rolled_back[1].to, 10);
  Watched first(batches_of({12, 17})), second(batches_of({12, 17}));
  first.stop_in = 11;
  first.run(c, parts);
  const Ran rest = second.run(c, parts, true);
  ASSERT_EQ(rest.seen.rolled_back.size(), 2u);
  EXPECT_EQ(rest.seen.rolled_back[0].to, 10);
  EXPECT_TRUE(tensors(parts, 20) == tensors(whole, 20));
}

TEST(GuardedRun, ThatMayNotGoBackAgainEnds) {
  testing::TempFolder temp;
  Watched bad(batches_of({12, 16}));
  const std::string error = error_of([&] { bad.run(guarded({"guard.skips=0", "guard.rollbacks=1"}), temp.path()); });
  EXPECT_TRUE(says(error, {"step 15: "}));
}

// The parameters themselves, by a rate that no run survives: going back does not help, and the way out is named.
TEST(GuardedRun, WhoseParametersBreakGoesBackAndThenEnds) {
  testing::TempFolder temp;
  run(guarded({"train.max_steps=10"}), temp.path());
  Recorder seen;
  const config::Config broken = guarded({"optim.lr=1e30", "optim.min_lr=1e30", "optim.schedule=constant",
                                         "optim.warmup_steps=0", "optim.clip=0", "guard.rollbacks=1", "guard.skips=1"});
  const std::string error = error_of([&] { go_on(broken, temp.path(), false, false, &seen); });
  ASSERT_EQ(seen.rolled_back.size(), 1u) << error;
  EXPECT_EQ(seen.rolled_back[0].to, 5);
  EXPECT_TRUE(says(error, {"--from-step 5"}));
  Watched lower;
  EXPECT_EQ(lower.run(guarded({}), temp.path(), true, 5).result.steps, 20);
}

TEST(GuardedRun, KeepsItsStateOverAResume) {
  testing::TempFolder temp;
  const Path whole = temp.path() / "whole", parts = temp.path() / "parts";
  const config::Config c = guarded({"guard.skips=3", "guard.spike=100", "train.max_steps=27"});
  Watched straight(batches_of({7, 8, 9})), first(batches_of({7, 8, 9})), second(batches_of({7, 8, 9}));
  straight.run(c, whole);
  first.stop_in = 8;
  EXPECT_EQ(first.run(c, parts).result.steps, 8);
  const Ran rest = second.run(c, parts, true);
  ASSERT_EQ(rest.seen.skipped.size(), 1u);
  EXPECT_TRUE(says(rest.seen.skipped[0].text, {"3 in a row"}));
  EXPECT_EQ(at(rest, 27).skipped, 3);
  EXPECT_TRUE(tensors(parts, 27) == tensors(whole, 27)) << "the usual norm is in it";
}

TEST(GuardedRun, BeginsToHoldNormsAgainstTheUsualWhenAResumeAsksForIt) {
  testing::TempFolder temp;
  run(guarded({"train.max_steps=5"}), temp.path());
  EXPECT_EQ(run(guarded({"train.max_steps=10", "guard.spike=50"}), temp.path(), true).result.steps, 10);
  EXPECT_EQ(run(guarded({"train.max_steps=15"}), temp.path(), true).result.steps, 15);
}

TEST(GuardedRun, KeepsAGoodCheckpointHoweverFewAreKept) {
  testing::TempFolder temp;
  Watched bad(batches_of({11, 17}));
  bad.run(guarded({"checkpoint.keep=1"}), temp.path());
  EXPECT_EQ(checkpoints(temp.path()), (std::vector<std::string>{"step_00000005", "step_00000020"}));
}

TEST(FromStep, GoesOnFromAnyCheckpointThatIsKept) {
  testing::TempFolder temp;
  const Path run_folder = temp.path() / "run";
  const auto until = [](int steps) {
    return guarded({fmt::format("train.max_steps={}", steps), "checkpoint.keep=9", "optim.schedule=constant"});
  };
  run(until(20), temp.path() / "straight");
  run(until(15), run_folder);
  Watched device;
  const std::string error = error_of([&] { device.run(until(20), run_folder, true, 7); });
  EXPECT_TRUE(says(error, {"no checkpoint", "steps 5, 10, 15"}));
  Watched first;
  first.stop_in = 7;
  const Ran begun = first.run(until(20), run_folder, true, 5);
  EXPECT_EQ(begun.seen.steps[0].step, 6);
  EXPECT_TRUE(any_has(begun.seen.notes, "newer checkpoints (steps 10, 15)"));
  EXPECT_EQ(checkpoints(run_folder),
            (std::vector<std::string>{"step_00000005", "step_00000007", "step_00000010.left", "step_00000015.left"}));
  const Ran rest = run(until(20), run_folder, true);
  EXPECT_EQ(rest.seen.steps[0].step, 8) << "what was left is not taken up";
  EXPECT_TRUE(tensors(run_folder, 20) == tensors(temp.path() / "straight", 20));
  EXPECT_EQ(checkpoints(run_folder), (std::vector<std::string>{"step_00000005", "step_00000007", "step_00000010",
                                                               "step_00000015", "step_00000020"}));
}

TEST(FromStep, ADamagedCheckpointIsNamedAndNoOtherIsTaken) {
  testing::TempFolder temp;
  run(guarded({"train.max_steps=10"}), temp.path());
  real_files().truncate(temp.path() / "checkpoints/step_00000005/model.safetensors", 100);
  Watched device;
  const std::string error = error_of([&] { device.run(guarded({}), temp.path(), true, 5); });
  EXPECT_TRUE(says(error, {"--from-step 5", "cannot be used"}));
  EXPECT_EQ(checkpoints(temp.path()), (std::vector<std::string>{"step_00000005", "step_00000010"}));
}

}  // namespace
}  // namespace redline::train
