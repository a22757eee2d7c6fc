// Runs on the card as a user starts them, each a process of its own: what was tuned by one is not tuned again by the
// next, and deterministic runs end in the same bytes, with recompute and when they were interrupted, too.
#include <cstdlib>
#include <filesystem>

#include "cli/program.h"
#include "testing/on_card.h"

namespace redline::cli {
namespace {

class TrainOnCard : public testing::OnCard<ProgramTest> {
 protected:
  Ran train(const Words& more) {
    Words words = {"train",
                   "--device",
                   "cuda",
                   "train.batch_size=16",  // products that are worth tuning
                   "train.max_steps=6",
                   "train.eval_every=0",
                   "checkpoint.every=3",
                   "checkpoint.keep=2"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  std::string weights_and_moments(const std::string& out) {
    const Path folder = last_checkpoint(out);
    return real_files().read(folder / "model.safetensors") + real_files().read(folder / "optimizer.safetensors");
  }
  Path last_checkpoint(const std::string& out) const { return folder_ / out / "checkpoints/step_00000006"; }
};

TEST_F(TrainOnCard, ASecondStartTunesNothing) {
  for (const std::string graphs : {"auto", "off"}) {
    const Path cache = folder_ / ("cache-" + graphs), file = cache / "redline/tuning.json";
    ::setenv("XDG_CACHE_HOME", cache.c_str(), 1);
    const auto tuned = [](const Ran& ran) { return (ran.out + ran.err).find("tuned ") != std::string::npos; };
    const Ran first = train({"--out", "first-" + graphs, "kernels.graphs=" + graphs});
    ASSERT_EQ(first.status, 0) << first.err;
    EXPECT_TRUE(tuned(first)) << first.out << first.err;
    const std::string kept = real_files().read(file);
    const Ran second = train({"--out", "second-" + graphs, "kernels.graphs=" + graphs});
    ASSERT_EQ(second.status, 0) << second.err;
    EXPECT_FALSE(tuned(second)) << second.out << second.err;
    EXPECT_EQ(real_files().read(file), kept);
  }
}

TEST_F(TrainOnCard, DeterministicRunsRepeatAndResumeToTheByte) {
  const auto expect_trained = [](const Ran& ran) { ASSERT_EQ(ran.status, 0) << ran.err; };
  expect_trained(train({"--out", "a", "kernels.deterministic=true"}));
  expect_trained(train({"--out", "b", "kernels.deterministic=true"}));
  expect_trained(train({"--out", "c", "kernels.deterministic=true", "train.recompute=block"}));
  if (HasFatalFailure()) return;
  const std::string whole = weights_and_moments("a");
  EXPECT_TRUE(weights_and_moments("b") == whole) << "the same run again";
  EXPECT_TRUE(weights_and_moments("c") == whole) << "with recompute";

  std::filesystem::remove_all(last_checkpoint("a"));  // as if it had ended behind the one before
  expect_trained(run({"train", "--device", "cuda", "--resume", "--out", "a"}));
  EXPECT_TRUE(weights_and_moments("a") == whole) << "resumed";
}

TEST_F(TrainOnCard, Fp8TakesTheProductsThatItMakesFasterAndKeepsThem) {
  const Path cache = folder_ / "cache-fp8";
  ::setenv("XDG_CACHE_HOME", cache.c_str(), 1);
  const auto list = [&](const std::string& out) {
    const std::string text = real_files().read(folder_ / out / "config.toml");
    const std::size_t at = text.find("fp8_products = ");
    return text.substr(at, text.find(']', at) - at);
  };
  const Ran first = train({"--out", "a", "precision.matmul=fp8"});
  ASSERT_EQ(first.status, 0) << first.err;
  EXPECT_NE((first.out + first.err).find(" of 12 products"), std::string::npos) << first.out << first.err;
  EXPECT_NE(list("a"), "fp8_products = [") << "it was chosen, if only to be none";

  std::filesystem::remove_all(last_checkpoint("a"));
  const Ran resumed = run({"train", "--device", "cuda", "--resume", "--out", "a"});
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_EQ((resumed.out + resumed.err).find("tuned "), std::string::npos) << "nothing is timed again";
  EXPECT_EQ((resumed.out + resumed.err).find("scales"), std::string::npos) << resumed.out << resumed.err;

  const Ran all = train({"--out", "b", "precision.matmul=fp8", "precision.fp8=all"});
  ASSERT_EQ(all.status, 0) << all.err;
  EXPECT_NE((all.out + all.err).find("12 of 12 products"), std::string::npos) << all.out << all.err;
}

TEST_F(TrainOnCard, DeterministicFp8RunsResumeToTheByte) {
  const Words how = {"kernels.deterministic=true", "precision.matmul=fp8", "train.accumulate=2", "--out"};
  for (const char* out : {"a", "b"}) {
    Words words = how;
    words.emplace_back(out);
    ASSERT_EQ(train(words).status, 0);
  }
  const auto all = [&](const std::string& out) {
    return weights_and_moments(out) + real_files().read(last_checkpoint(out) / "fp8.safetensors");
  };
  const std::string whole = all("a");
  EXPECT_TRUE(all("b") == whole) << "the same run again";
  std::filesystem::remove_all(last_checkpoint("a"));
  ASSERT_EQ(run({"train", "--device", "cuda", "--resume", "--out", "a"}).status, 0);
  EXPECT_TRUE(all("a") == whole) << "resumed";
}

}  // namespace
}  // namespace redline::cli
