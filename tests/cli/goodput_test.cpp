// Where the time of a run went, timed from outside: the parts add up within 1%, across a kill and resumes.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "base/clock.h"
#include "cli/program.h"
#include "io/json.h"
#include "testing/paths.h"

namespace redline::cli {
namespace {

const Words kResumedRun = Words{"--device", "cpu", "--out", "a", "--resume", "--preset", "quick"} + kTinyModel +
                          Words{"train.eval_every=5", "train.eval_batches=8", "train.sample_every=5",
                                "train.sample_tokens=100", "optim.warmup_steps=1"};

class GoodputCommand : public ProgramTest {
 protected:
  static Words train(const Words& more) { return Words{"train"} + kResumedRun + more; }
  io::Json report() {
    const Ran ran = must({"report", "a", "--json"});
    return io::parse_json(ran.out, "stdout")["runs"][0];
  }
  // Kills it when it has made steps for that long.
  void train_and_kill(const Words& more, double seconds) {
    const pid_t child = start_program(folder_.path(), train(more));
    ASSERT_GE(child, 0);
    const auto rows = [&] { return real_files().read(folder_ / "a/metrics.jsonl"); };
    const std::string before = rows();
    while (rows().size() <= before.size() && ::waitpid(child, nullptr, WNOHANG) == 0) pause(0.01);
    pause(seconds);
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child) << real_files().read(folder_ / "stderr");
    ASSERT_TRUE(WIFSIGNALED(status)) << real_files().read(folder_ / "stderr");
  }
  static void pause(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }
};

TEST_F(GoodputCommand, PartsAddUpToTheWallTimeAcrossAKillAndResumes) {
  const double start = unix_seconds();
  const Ran first = must(train({"train.max_steps=10"}));
  EXPECT_TRUE(says(first.out, "% in steps"));
  train_and_kill({"train.max_steps=1000000", "checkpoint.every=1000000"}, 3);
  constexpr double kStill = 1.5;
  pause(kStill);
  const Ran last = run(train({"train.max_steps=20"}));
  const double wall = unix_seconds() - start;
  ASSERT_EQ(last.status, 0) << last.err;
  EXPECT_TRUE(says(last.out, "; this session: "));

  const io::Json goodput = report()["goodput"];
  double sum = 0;
  for (const auto& [part, seconds] : goodput["seconds"].items()) {
    EXPECT_GE(seconds.get<double>(), 0) << part;
    sum += seconds.get<double>();
  }
  EXPECT_NEAR(sum, goodput["wall_seconds"].get<double>(), 1e-6);
  EXPECT_NEAR(sum, wall, 0.01 * wall + 0.1) << "the end of a process comes after its last row";
  ASSERT_EQ(goodput["sessions"].size(), 3u);
  EXPECT_EQ(goodput["sessions"][2]["first_step"], 10);
  const io::Json& seconds = goodput["seconds"];
  for (const char* part : {"steps", "evaluation", "sampling", "saving", "start_up"})
    EXPECT_GT(seconds[part].get<double>(), 0) << part;
  EXPECT_GT(seconds["done_again"].get<double>(), 1) << "all that the killed one made, but for its last second";
  EXPECT_LT(seconds["done_again"].get<double>(), wall - kStill);
  EXPECT_GT(seconds["standing_still"].get<double>(), kStill);
  EXPECT_LT(seconds["standing_still"].get<double>(), kStill + 2.5);
}

TEST_F(GoodputCommand, TornTotalsCostASentence) {
  ASSERT_EQ(run(train({"train.max_steps=5"})).status, 0);
  const std::string text = real_files().read(folder_ / "a/goodput.jsonl");
  write("a/goodput.jsonl", text.substr(0, text.size() - 20));
  const io::Json json = report();
  EXPECT_GT(json["goodput"]["wall_seconds"].get<double>(), 0);
  EXPECT_NE(json["problems"].dump().find("goodput.jsonl ends in half a line"), std::string::npos);
  ASSERT_EQ(run(train({"train.max_steps=10"})).status, 0);
  EXPECT_EQ(report()["problems"].size(), 0u);
  EXPECT_EQ(report()["goodput"]["sessions"].size(), 2u);
}

}  // namespace
}  // namespace redline::cli
