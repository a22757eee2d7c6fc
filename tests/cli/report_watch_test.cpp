// `redline report --watch` as a user runs it: the page is served while a run goes on, its state changes with the run,
// and with --allow-stop whoever has the address stops the run.
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <ctime>
#include <thread>

#include "cli/program.h"
#include "testing/ask.h"
#include "testing/page_data.h"

namespace redline::cli {
namespace {

class ReportWatch : public ProgramTest {
 protected:
  static constexpr int kTries = 10'000;  // of 5 ms
  template <class Done>
  static bool wait_until(const Done& done) {
    for (int i = 0; i < kTries; ++i) {
      if (done()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  void start_run(const std::string& steps) {
    real_files().create_folders(folder_ / "training");
    run_ = start_program(folder_ / "training", Words{"train", "--device", "cpu", "--out", folder_ / "a",
                                                     "data.train=ping", "train.max_steps=" + steps} +
                                                   kTinyModel);
    ASSERT_TRUE(wait_until([&] { return exists("a/metrics.jsonl") && size_of("a/metrics.jsonl") > 0; }));
  }
  // The address up to its port, and what follows the #.
  void start_watch(const Words& more = {}) {
    watch_ = start_program(folder_.path(), Words{"report", "a", "--watch"} + more);
    ASSERT_TRUE(wait_until([&] { return exists("stdout") && says(text("stdout"), "until Ctrl-C"); })) << text("stderr");
    const std::string printed = text("stdout");
    ASSERT_TRUE(printed.starts_with("http://127.0.0.1:")) << printed;
    port_ = std::stoi(printed.substr(17));
    const std::size_t hash = printed.find('#');
    if (hash != printed.npos) token_ = printed.substr(hash + 1, printed.find('\n') - hash - 1);
  }
  static int end_of(pid_t child) {
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  std::string text(const std::string& name) { return real_files().read(folder_ / name); }
  std::uint64_t size_of(const std::string& name) { return real_files().size(folder_ / name); }

  pid_t run_ = -1, watch_ = -1;
  int port_ = 0;
  std::string token_;
};

TEST_F(ReportWatch, FollowsARunAndStopsIt) {
  start_run("1000000");
  start_watch({"--allow-stop"});
  const std::string page = testing::get(port_, "/");
  ASSERT_TRUE(page.starts_with("HTTP/1.1 200 OK")) << page.substr(0, 300);
  const io::Json data = testing::page_data(page);
  EXPECT_EQ(data["runs"][0]["run"], "a");
  EXPECT_EQ(data["runs"][0]["state"], "running");
  EXPECT_EQ(data["follow"]["can_stop"], true);
  EXPECT_NEAR(data["follow"]["written"].get<double>(), static_cast<double>(std::time(nullptr)), 60);
  EXPECT_EQ(token_.size(), 64u);
  EXPECT_EQ(page.find(token_), page.npos) << "the page is for everybody on this machine, the token is not";
  const std::string state = testing::get(port_, "/state");
  EXPECT_TRUE(wait_until([&] { return testing::get(port_, "/state") != state; })) << "the run has gone on";

  const auto stop = [&](const std::string& token) {
    return testing::ask(port_, "POST /stop HTTP/1.1\r\nHost: localhost\r\nX-Redline-Token: " + token + "\r\n\r\n");
  };
  EXPECT_TRUE(stop("wrong").starts_with("HTTP/1.1 403"));
  EXPECT_FALSE(exists("a/stop"));
  EXPECT_TRUE(says(stop(token_), {"200 OK", "a to stop"}));
  EXPECT_EQ(end_of(run_), kStopped);
  EXPECT_FALSE(exists("a/stop")) << "it is heard once";
  EXPECT_TRUE(says(text("training/stdout"), "continue with --resume"));
  const auto state_now = [&] { return testing::page_data(testing::get(port_, "/"))["runs"][0]["state"]; };
  EXPECT_TRUE(wait_until([&] { return state_now() == "stopped"; })) << "what has ended can be looked at";
  EXPECT_TRUE(says(stop(token_), {"200 OK", "Nothing is running"}));
  EXPECT_FALSE(exists("a/stop")) << "nobody would hear it";
  ::kill(watch_, SIGINT);
  EXPECT_EQ(end_of(watch_), kStopped);
  EXPECT_FALSE(exists("a/report.html")) << "nothing is written";
}

// A killed run writes nothing any more, and is running no more.
TEST_F(ReportWatch, SeesThatARunWasKilled) {
  start_run("1000000");
  start_watch();
  const auto state_now = [&] { return testing::page_data(testing::get(port_, "/"))["runs"][0]["state"]; };
  EXPECT_EQ(state_now(), "running");
  ::kill(run_, SIGKILL);
  EXPECT_EQ(end_of(run_), 1000 + SIGKILL);
  EXPECT_TRUE(wait_until([&] { return state_now() == "not finished"; }));
  ::kill(watch_, SIGTERM);
  EXPECT_EQ(end_of(watch_), kStopped);
}

TEST_F(ReportWatch, AStopFileFromBeforeTheRunAsksForNothing) {
  real_files().create_folders(folder_ / "a");
  write("a/stop", "");
  start_run("30");
  EXPECT_EQ(end_of(run_), 0) << text("training/stderr");
  EXPECT_FALSE(exists("a/stop"));
  start_watch();
  EXPECT_EQ(token_, "");
  EXPECT_EQ(testing::page_data(testing::get(port_, "/"))["follow"]["can_stop"], false);
  EXPECT_TRUE(testing::ask(port_, "POST /stop HTTP/1.1\r\nHost: localhost\r\nX-Redline-Token: \r\n\r\n")
                  .starts_with("HTTP/1.1 405"));
  ::kill(watch_, SIGTERM);
  EXPECT_EQ(end_of(watch_), kStopped);
}

TEST_F(ReportWatch, BadInputIsASentence) {
  expect_bad_input({"report", "nowhere", "--watch"}, {"nowhere", "no such folder"});
  expect_bad_input({"report", "a", "--allow-stop"}, {"--allow-stop", "needs --watch"});
  expect_bad_input({"report", "a", "--port", "8080"}, {"--port", "needs --watch"});
  expect_bad_input({"report", "a", "--watch", "--json"}, {"--watch", "--json"});
  expect_bad_input({"report", "a", "--watch", "--out", "x.html"}, {"--watch", "--out"});
}

}  // namespace
}  // namespace redline::cli
