// Ranks as threads that meet over this machine's loopback. Where a process would end, a handler notes it.
#include "dist/control.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "dist/connection.h"
#include "testing/says.h"

namespace redline::dist {
namespace {

int free_port() {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ::bind(socket.number(), reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(socket.number(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

// What became of a rank.
struct Fate {
  std::string thrown, said, told;
  int status = -1;  // of end(); -1: it was not called
  double ended = 0;
};

class Ranks {
 public:
  explicit Ranks(int ranks) : port_(free_port()), fates_(static_cast<std::size_t>(ranks)) {}

  Place place(int rank) const {
    Place p;
    p.rank = p.local_rank = rank;
    p.ranks = p.local_ranks = static_cast<int>(fates_.size());
    p.host = "host" + std::to_string(rank);
    p.address = "127.0.0.1";
    p.port = port_;
    p.job = "test";
    return p;
  }
  ControlOptions options(int rank) {
    Fate& fate = fates_[static_cast<std::size_t>(rank)];
    ControlOptions o;
    o.version = "1.0";
    o.join_seconds = 20;
    o.warned = [&fate](int from, std::string_view text) {
      fate.told += std::to_string(from) + std::string(text) + ";";
    };
    o.say = [&fate](std::string_view sentence) { fate.said += sentence; };
    o.end = [&fate](int status) {
      fate.status = status;
      fate.ended = steady_seconds();
    };
    return o;
  }

  // Runs body(control) on every rank; `changed` may make a rank's place and options other than they should be.
  template <class Body, class Change>
  void run(const Body& body, const Change& change) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < static_cast<int>(fates_.size()); ++rank)
      threads.emplace_back([&, rank] {
        try {
          Place p = place(rank);
          ControlOptions o = options(rank);
          change(p, o);
          const auto control = Control::join(p, o);
          body(*control);
        } catch (const std::exception& e) {
          fates_[static_cast<std::size_t>(rank)].thrown = e.what();
        }
      });
    for (std::thread& t : threads) t.join();
  }
  template <class Body>
  void run(const Body& body) {
    run(body, [](Place&, ControlOptions&) {});
  }

  const Fate& operator[](int rank) const { return fates_[static_cast<std::size_t>(rank)]; }
  int port() const { return port_; }
  int ranks() const { return static_cast<int>(fates_.size()); }

  void expect_well() const {
    for (const Fate& fate : fates_) {
      EXPECT_EQ(fate.thrown, "");
      EXPECT_EQ(fate.said, "");
      EXPECT_EQ(fate.status, -1);
    }
  }
  // Rank 0 alone says a sentence with these parts, and the others end with the same status.
  void expect_end(int status, const std::vector<std::string>& parts, int gone = -1) const {
    for (int rank = 0; rank < ranks(); ++rank) {
      const Fate& fate = (*this)[rank];
      if (rank == gone) continue;
      EXPECT_EQ(fate.status, status) << "rank " << rank << " " << fate.thrown;
      EXPECT_TRUE(rank == 0 || fate.said.empty()) << fate.said;
    }
    for (const std::string& part : parts)
      EXPECT_NE((*this)[0].said.find(part), std::string::npos) << part << " in: " << (*this)[0].said;
  }

 private:
  int port_;
  std::vector<Fate> fates_;
};

void wait_until_ended(const Control& control) {
  for (const double deadline = steady_seconds() + 30; !control.ended() && steady_seconds() < deadline;)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

TEST(Control, AllKnowAll) {
  Ranks ranks(4);
  ranks.run([](Control& control) {
    const int rank = control.place().rank;
    EXPECT_EQ(control.hosts(), (std::vector<std::string>{"host0", "host1", "host2", "host3"}));
    for (int i = 0; i < 50; ++i) {
      const auto all = control.all_gather(fmt::format("{}.{}", i, rank));
      for (int r = 0; r < 4; ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], fmt::format("{}.{}", i, r));
      EXPECT_EQ(control.broadcast(fmt::format("from {}", rank)), "from 0");
      control.barrier();
    }
    const std::string large(3'000'000, static_cast<char>('a' + rank));  // more than a socket takes at once
    const auto all = control.all_gather(large);
    for (std::size_t r = 0; r < 4; ++r) EXPECT_EQ(all[r], std::string(3'000'000, static_cast<char>('a' + r)));
    control.goodbye();
  });
  ranks.expect_well();
}

TEST(Control, NobodyLeavesABarrierBeforeAllHaveCome) {
  Ranks ranks(3);
  std::atomic<int> come = 0;
  ranks.run([&](Control& control) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100 * control.place().rank));
    ++come;
    control.barrier();
    EXPECT_EQ(come, 3);
    control.goodbye();
  });
  ranks.expect_well();
}

TEST(Control, ChannelsDoNotWaitForEachOther) {
  Ranks ranks(3);
  ranks.run([](Control& control) {
    const int rank = control.place().rank;
    std::thread saving([&] {
      for (int i = 0; i < 20; ++i) {
        const auto all = control.all_gather(fmt::format("hash {} {}", i, rank), "saving");
        for (int r = 0; r < 3; ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], fmt::format("hash {} {}", i, r));
      }
      control.barrier("main is through");
    });
    for (int i = 0; i < 20; ++i) EXPECT_EQ(control.broadcast(std::to_string(i)), std::to_string(i));
    control.barrier("main is through");  // both threads of a rank come to it, one for each of two meetings
    saving.join();
    control.goodbye();
  });
  ranks.expect_well();
}

TEST(Control, WarningsReachRankZeroWithTheirRank) {
  Ranks ranks(3);
  ranks.run([](Control& control) {
    if (control.place().rank != 1) control.tell("hot");
    control.barrier();
    control.goodbye();
  });
  ranks.expect_well();
  EXPECT_TRUE(testing::says(ranks[0].told, {"0hot;", "2hot;"}));
  EXPECT_EQ(ranks[1].told + ranks[2].told, "");
}

TEST(Control, AProcessAloneNeedsNobody) {
  const auto control = Control::join(Place{}, {});
  EXPECT_EQ(control->all_gather("x"), std::vector<std::string>{"x"});
  EXPECT_EQ(control->broadcast("y"), "y");
  control->barrier();
  control->goodbye();
}

TEST(Control, ALostRankEndsAllWithItsName) {
  Ranks ranks(4);
  std::atomic<double> lost = 0;
  ranks.run([&](Control& control) {
    control.barrier();
    if (control.place().rank == 2) {  // its connection closes as that of a killed process would
      lost = steady_seconds();
      return;
    }
    EXPECT_THROW(control.all_gather("never"), MachineError);
  });
  ranks.expect_end(1, {"rank 2 on host2 is gone"}, 2);
  for (const int rank : {0, 1, 3}) EXPECT_LT(ranks[rank].ended - lost, 4);
}

// As it is without handlers: processes whose main threads never return.
TEST(Control, ProcessesEndThoughTheirThreadsHang) {
  const Ranks ranks(3);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  Descriptor read_end(ends[0]), write_end(ends[1]);
  pid_t processes[3];
  for (int rank = 0; rank < 3; ++rank) {
    processes[rank] = ::fork();
    if (processes[rank] == 0) {
      ::dup2(write_end.number(), STDERR_FILENO);
      const auto control = Control::join(ranks.place(rank), {"1.0", 20, {}, {}, {}});
      control->barrier();
      if (rank == 1) ::raise(SIGKILL);
      for (;;) ::pause();
    }
  }
  write_end.reset();
  const double begin = steady_seconds();
  for (const int rank : {1, 0, 2}) {
    int status = 0;
    ::waitpid(processes[rank], &status, 0);
    EXPECT_TRUE(rank == 1 || (WIFEXITED(status) && WEXITSTATUS(status) == 1)) << "rank " << rank;
  }
  EXPECT_LT(steady_seconds() - begin, 15);
  char said[4096] = {};
  [[maybe_unused]] const auto n = ::read(read_end.number(), said, sizeof said - 1);
  const std::string all = said;
  EXPECT_TRUE(testing::says(all, {"redline: error: rank 1 on host1 is gone"}));
  EXPECT_EQ(all.find("redline:"), all.rfind("redline:")) << all;  // one voice
}

TEST(Control, WhereRankZeroIsLostTheOthersSay) {
  Ranks ranks(3);
  ranks.run(
      [&](Control& control) {
        control.barrier();
        if (control.place().rank > 0) wait_until_ended(control);
      },
      [](Place& place, ControlOptions&) { place.host = place.rank == 0 ? "a" : "b"; });
  for (const int rank : {1, 2}) EXPECT_EQ(ranks[rank].status, 1);
  EXPECT_TRUE(testing::says(ranks[1].said, {"rank 0 on a is gone"}));
  EXPECT_EQ(ranks[2].said, "");  // one voice a machine
}

TEST(Control, ARankThatIsBehindIsNamed) {
  Ranks ranks(3);
  double begin = steady_seconds();
  ranks.run([&](Control& control) {
    control.barrier();
    control.progress(7);
    control.collective(control.place().rank == 1 ? 40 : 41);
    control.watch(3);
    wait_until_ended(control);
  });
  ranks.expect_end(1, {"rank 1 on host1 has made no progress", "step 7, collective 40", "collective 41"});
  EXPECT_GT(ranks[0].ended - begin, 2.9);
  EXPECT_LT(ranks[0].ended - begin, 3 + 5);
}

TEST(Control, RanksThatWaitForOneThatWorksAreLeftAlone) {
  Ranks ranks(2);
  ranks.run([&](Control& control) {
    control.progress(1);
    control.watch(2);
    if (control.place().rank == 0)  // an evaluation, say
      for (int i = 0; i < 5; ++i) {
        control.progress(1);
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
      }
    control.goodbye();
  });
  ranks.expect_well();
}

TEST(Control, ARankThatDoesNotAnswerIsNamed) {
  Ranks ranks(3);
  std::atomic<bool> over = false;
  ranks.run(
      [&](Control& control) {
        control.progress(3);
        control.watch(3);
        wait_until_ended(control);
        over = true;
      },
      [&](Place& place, ControlOptions& options) {
        if (place.rank != 1) return;
        // As a process that was stopped: it has said who it is, and nothing more.
        std::string problem;
        const double deadline = steady_seconds() + 10;
        std::optional<Descriptor> socket;
        while (!socket && steady_seconds() < deadline)
          socket = connect_to(place.address, place.port, deadline, problem);
        ASSERT_TRUE(socket) << problem;
        Connection silent(std::move(*socket));
        silent.queue(Kind::hello, BodyWriter()
                                      .text(place.job)
                                      .text(options.version)
                                      .text(place.host)
                                      .number(place.rank)
                                      .number(place.ranks)
                                      .take());
        silent.send_until(deadline);
        while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        throw MachineError("stopped");
      });
  ranks.expect_end(1, {"rank 1 on host1 has not answered"}, 1);
}

TEST(Control, AFailureOnOneRankEndsAllWithItsSentence) {
  for (const int failing : {0, 2}) {
    Ranks ranks(3);
    ranks.run([&](Control& control) {
      control.barrier();
      if (control.place().rank == failing) return control.fail("shard 7 is damaged", 2);
      EXPECT_THROW(control.barrier(), MachineError);
    });
    ranks.expect_end(2, {"shard 7 is damaged", failing == 0 ? "" : "rank 2 on host2: "});
  }
}

TEST(Control, RanksThatDoNotRunTheSameProgramEnd) {
  Ranks ranks(2);
  ranks.run([&](Control& control) {
    if (control.place().rank == 0)
      EXPECT_THROW(control.barrier(), MachineError);
    else
      EXPECT_THROW(control.all_gather("x"), MachineError);
  });
  ranks.expect_end(1, {"do not run the same program"});
}

TEST(Control, APortInUseIsNamed) {
  Ranks ranks(2);
  std::string problem;
  const auto taken = listen_at("127.0.0.1", ranks.port(), problem);
  ASSERT_FALSE(taken.empty()) << problem;
  try {
    Control::join(ranks.place(0), ranks.options(0));
    FAIL() << "no error";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find(fmt::format("port {}", ranks.port())), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("MASTER_PORT"), std::string::npos) << e.what();
  }
}

TEST(Control, OfSeveralPortsAFreeOneIsTaken) {
  Ranks ranks(3);
  std::string problem;
  const auto taken = listen_at("127.0.0.1", ranks.port(), problem);  // accepts and says nothing
  ASSERT_FALSE(taken.empty()) << problem;
  ranks.run(
      [](Control& control) {
        control.barrier();
        control.goodbye();
      },
      [](Place& place, ControlOptions&) { place.ports = 4; });
  ranks.expect_well();
}

TEST(Control, ARankThatDoesNotComeIsNamed) {
  Ranks ranks(3);
  ranks.run([](Control&) { FAIL() << "not all were there"; },
            [](Place& place, ControlOptions& options) {
              options.join_seconds = 1;
              if (place.rank == 1) throw MachineError("does not come");
            });
  for (const int rank : {0, 2}) EXPECT_TRUE(testing::says(ranks[rank].thrown, {"rank 1 of 3 did not come"}));
}

TEST(Control, WithoutRankZeroARankSaysWhereItLooked) {
  Ranks ranks(2);
  ControlOptions options = ranks.options(1);
  options.join_seconds = 0.5;
  try {
    Control::join(ranks.place(1), options);
    FAIL() << "no error";
  } catch (const MachineError& e) {
    EXPECT_NE(std::string(e.what()).find(fmt::format("127.0.0.1:{}", ranks.port())), std::string::npos) << e.what();
  }
}

TEST(Control, AnotherVersionIsRefused) {
  Ranks ranks(3);
  ranks.run([](Control&) { FAIL() << "they do not fit"; },
            [](Place& place, ControlOptions& options) {
              if (place.rank == 2) options.version = "0.9";
              if (place.rank == 1) options.join_seconds = 2;  // may come after rank 0 has gone
            });
  for (const int rank : {0, 2})
    for (const char* part : {"rank 2 on host2", "0.9", "1.0"})
      EXPECT_NE(ranks[rank].thrown.find(part), std::string::npos) << ranks[rank].thrown;
}

TEST(Control, AnotherNumberOfRanksIsRefused) {
  Ranks ranks(2);
  ranks.run([](Control&) { FAIL() << "they do not fit"; },
            [](Place& place, ControlOptions&) {
              if (place.rank == 1) place.ranks = 4;
            });
  for (const int rank : {0, 1})
    for (const char* part : {"rank 1 on host1", "4 ranks", "2 ranks"})
      EXPECT_NE(ranks[rank].thrown.find(part), std::string::npos) << ranks[rank].thrown;
}

TEST(Control, TwoProcessesOfOneRankAreRefused) {
  Ranks ranks(3);
  ranks.run([](Control&) { FAIL() << "they do not fit"; },
            [](Place& place, ControlOptions&) {
              if (place.rank == 2) place.rank = 1;
            });
  EXPECT_TRUE(testing::says(ranks[0].thrown, {"two processes say that they are rank 1"}));
}

}  // namespace
}  // namespace redline::dist
