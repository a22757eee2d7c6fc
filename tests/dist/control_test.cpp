// Ranks as threads that meet over this machine's loopback. Where a process would end, a handler notes it.
#include "dist/control.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "dist/door.h"
#include "dist/token.h"
#include "testing/hostile_guest.h"
#include "testing/says.h"

namespace redline::dist {
namespace {

using testing::free_port;
using testing::says;

const std::string kToken(64, 't');

// What became of a rank.
struct Fate {
  std::string thrown, said, told;
  int status = -1;  // of end(); -1: it was not called
  std::vector<int> at_fault = {};
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
    p.token = kToken;
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
    o.at_fault = [&fate](int whose) { fate.at_fault.push_back(whose); };
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

// A rank by hand, up to its welcome.
Connection come_in(const Place& place, const std::string& version) {
  const double deadline = steady_seconds() + 10;
  std::string problem;
  std::optional<Descriptor> socket;
  while (!socket && steady_seconds() < deadline) socket = connect_to(place.address, place.port, deadline, problem);
  if (!socket) fail_machine("{}", problem);
  Connection connection(std::move(*socket), Other::host);
  Knock knock(run_secret(place));
  connection.queue(Kind::knock, knock.body());
  connection.send_until(deadline);
  const auto greeting = connection.receive_until(deadline);
  if (!greeting || !knock.answered_by(*greeting)) fail_machine("rank 0 has not proven that it is rank 0");
  connection.trust(Other::rank_zero);
  connection.queue(Kind::hello, knock.hello({version, place.host, place.rank, place.ranks}));
  connection.send_until(deadline);
  return connection;
}

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
  EXPECT_TRUE(says(ranks[0].told, {"0hot;", "2hot;"}));
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
  EXPECT_EQ(ranks[0].at_fault, std::vector{2});
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
  EXPECT_TRUE(says(all, {"redline: error: rank 1 on host1 is gone"}));
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
  EXPECT_TRUE(says(ranks[1].said, {"rank 0 on a is gone"}));
  EXPECT_EQ(ranks[1].at_fault, std::vector{0});
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
  EXPECT_EQ(ranks[0].at_fault, std::vector{1});
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
        const Connection silent = come_in(place, options.version);
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
    EXPECT_EQ(ranks[0].at_fault, std::vector{failing});
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
  for (const int rank : {0, 2}) EXPECT_TRUE(says(ranks[rank].thrown, {"rank 1 of 3 did not come"}));
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

// Strangers of every kind, many of them silent, while rank 0 waits; the ranks that then come meet as ever.
TEST(Door, StrangersAreShownOut) {
  Ranks ranks(3);
  std::atomic<bool> met = false;
  std::vector<Connection> kept;
  ranks.run(
      [&](Control& control) {
        control.barrier();
        met = true;
        control.goodbye();
      },
      [&](Place& place, ControlOptions&) {
        if (place.rank != 1) return;  // rank 1 comes after the strangers
        for (const std::string& bytes : testing::hostile_bytes()) {
          std::string problem;
          std::optional<Descriptor> socket;
          for (const double deadline = steady_seconds() + 10; !socket && steady_seconds() < deadline;)
            socket = connect_to("127.0.0.1", place.port, deadline, problem);
          ASSERT_TRUE(socket) << problem;
          ::send(socket->number(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
          kept.emplace_back(std::move(*socket), Other::host);
        }
        for (int i = 0; i < 300; ++i) {  // more than may wait at a time, and all of them silent
          std::string problem;
          if (auto socket = connect_to("127.0.0.1", place.port, steady_seconds() + 10, problem))
            kept.emplace_back(std::move(*socket), Other::host);
        }
      });
  ranks.expect_well();
  EXPECT_TRUE(met);
  EXPECT_GT(kept.size(), 300u);
  EXPECT_TRUE(says(ranks[0].told, {"token", "shown out"}));
}

// Nothing that is sent to a stranger tells the token, the job or who is there.
TEST(Door, TellsStrangersNothing) {
  Ranks ranks(2);
  std::string heard;
  ranks.run([](Control& control) { control.goodbye(); },
            [&](Place& place, ControlOptions&) {
              if (place.rank == 0) return;
              std::string problem;
              std::optional<Descriptor> socket;
              for (const double deadline = steady_seconds() + 10; !socket && steady_seconds() < deadline;)
                socket = connect_to("127.0.0.1", place.port, deadline, problem);
              ASSERT_TRUE(socket) << problem;
              const std::string knock = frame_of(Kind::knock, std::string(kNonceBytes, 'n'));
              ::send(socket->number(), knock.data(), knock.size(), MSG_NOSIGNAL);
              wait_readable(socket->number(), steady_seconds() + 10);
              char bytes[4096];
              const auto n = ::recv(socket->number(), bytes, sizeof bytes, 0);
              heard.assign(bytes, n > 0 ? static_cast<std::size_t>(n) : 0);
            });
  ranks.expect_well();
  EXPECT_EQ(heard.size(), 5 + kNonceBytes + kProofBytes);
  for (const std::string& secret : {kToken.substr(0, 8), std::string("test"), std::string("host"), std::string("1.0")})
    EXPECT_EQ(heard.find(secret), heard.npos) << secret;
}

TEST(Door, WithoutTheTokenNobodyIsARank) {
  Ranks ranks(2);
  ranks.run([](Control&) { FAIL() << "they do not know each other"; },
            [](Place& place, ControlOptions& options) {
              options.join_seconds = 1;
              if (place.rank == 1) place.token = std::string(64, 'u');
            });
  for (const int rank : {0, 1}) EXPECT_TRUE(says(ranks[rank].thrown, {"token", "REDLINE_TOKEN", "same for all ranks"}));
  EXPECT_TRUE(says(ranks[0].thrown, "rank 1 of 2 did not come"));
}

// Somebody listens on the first of the ports that a run may take, answers a knock and cannot prove anything; the ranks
// find each other on the next.
TEST(Door, WhoeverListensInRankZerosPlaceHearsNothing) {
  Ranks ranks(2);
  std::string problem, heard;
  const auto taken = listen_at("127.0.0.1", ranks.port(), problem);
  ASSERT_FALSE(taken.empty()) << problem;
  std::atomic<bool> over = false;
  std::thread impostor([&] {
    while (!over) {
      wait_readable(taken[0].number(), steady_seconds() + 0.05);
      auto socket = accept_from(taken[0]);
      if (!socket) continue;
      Connection guest(std::move(*socket), Other::guest);
      guest.receive_until(steady_seconds() + 2);
      guest.queue(Kind::greeting, std::string(kNonceBytes + kProofBytes, 'x'));
      guest.send_until(steady_seconds() + 2);
      if (const auto more = guest.receive_until(steady_seconds() + 2)) heard += more->body;
    }
  });
  ranks.run(
      [](Control& control) {
        control.barrier();
        control.goodbye();
      },
      [](Place& place, ControlOptions&) { place.ports = 4; });
  over = true;
  impostor.join();
  ranks.expect_well();
  EXPECT_EQ(heard, "");
}

TEST(Door, IsWhereTheRanksComeAndNowhereElse) {
  std::string problem;
  EXPECT_FALSE(listen_at("127.0.0.1", free_port(), problem).empty());
  EXPECT_TRUE(testing::network_listeners(::getpid()).empty());
  {
    const auto here = listen_at("127.0.0.1", free_port(), problem);
    EXPECT_TRUE(testing::network_listeners(::getpid()).empty());
  }
  {
    const auto named = listen_at("localhost", free_port(), problem);
    EXPECT_FALSE(named.empty()) << problem;
    EXPECT_TRUE(testing::network_listeners(::getpid()).empty());
  }
  EXPECT_TRUE(listen_at("192.0.2.1", free_port(), problem).empty());  // of nobody (RFC 5737)
  Ranks ranks(2);
  Place place = ranks.place(0);
  place.address = "192.0.2.1";
  place.local_ranks = 1;
  try {
    Control::join(place, ranks.options(0));
    FAIL() << "no error";
  } catch (const UserError& e) {
    EXPECT_TRUE(says(e.what(), {"192.0.2.1", "MASTER_ADDR", "REDLINE_LISTEN"}));
  }
}

// A rank that has proven itself and then sends what no rank sends: rank 0 neither crashes nor believes it, and ends
// with a sentence and a status that is no success.
struct Mad {
  const char* name;
  std::vector<std::string> frames;
  std::vector<std::string> says;
  int status = 1;
};
class MadRanks : public ::testing::TestWithParam<Mad> {};

std::string part_of(std::int64_t number, std::int64_t kind, const std::string& channel = "") {
  return frame_of(Kind::gather, BodyWriter().text(channel).number(number).number(kind).text("x").take());
}
std::vector<std::string> many_parts() {
  std::vector<std::string> all;
  for (int i = 0; i < 1000; ++i) all.push_back(part_of(i, kBarrier));
  return all;
}

TEST_P(MadRanks, EndTheRunWithASentence) {
  Ranks ranks(2);
  ranks.run(
      [](Control& control) {
        try {
          control.barrier();
        } catch (const MachineError&) {
        }
        wait_until_ended(control);
      },
      [](Place& place, ControlOptions& options) {
        if (place.rank != 1) return;
        Connection mad = come_in(place, options.version);
        const double deadline = steady_seconds() + 10;
        while (const auto message = mad.receive_until(deadline))
          if (message->kind == Kind::welcome) break;
        for (const std::string& frame : GetParam().frames)
          ::send(mad.descriptor(), frame.data(), frame.size(), MSG_NOSIGNAL);
        while (mad.receive_until(deadline)) {
        }
        throw MachineError("mad");
      });
  EXPECT_EQ(ranks[0].status, GetParam().status);
  for (const std::string& part : GetParam().says) EXPECT_TRUE(says(ranks[0].said, part));
}

INSTANTIATE_TEST_SUITE_P(
    Sending, MadRanks,
    ::testing::Values(
        Mad{"disagreeing_parts", {part_of(0, kBarrier), part_of(0, kAllGather)}, {"rank 1 on host1"}},
        Mad{"a_kind_beyond_the_table", {part_of(0, 123456789)}, {"rank 1 on host1", "123456789"}},
        Mad{"a_negative_kind", {part_of(0, -1)}, {"rank 1 on host1", "-1"}},
        Mad{"meetings_out_of_order", {part_of(7, kBarrier)}, {"rank 1 on host1", "meeting 7"}},
        Mad{"many_meetings", many_parts(), {"rank 1 on host1"}},
        Mad{"an_end_with_success",
            {frame_of(Kind::end, BodyWriter().number(0).text("done").take())},
            {"rank 1 on host1"}},
        Mad{"a_failure_with_success",
            {frame_of(Kind::fail, BodyWriter().number(0).text("done").take())},
            {"rank 1 on host1", "done"}},
        Mad{"a_failure_with_an_odd_status",
            {frame_of(Kind::fail, BodyWriter().number(std::int64_t{1} << 32).text("odd").take())},
            {"rank 1 on host1", "odd"}},
        Mad{"a_failure_of_the_user", {frame_of(Kind::fail, BodyWriter().number(2).text("bad").take())}, {"bad"}, 2},
        Mad{"a_result", {frame_of(Kind::result, BodyWriter().text("").number(0).text("").text("").take())}, {"rank 1"}},
        Mad{"an_unknown_kind", {std::string("\0\0\0\0\x7f", 5)}, {"rank 1 on host1", "no rank sends"}},
        Mad{"a_length_beyond_bounds", {std::string("\xff\xff\xff\xff\5", 5)}, {"rank 1 on host1", "no rank sends"}},
        Mad{"a_short_beat", {frame_of(Kind::beat, "abc")}, {"rank 1 on host1", "cut short"}},
        Mad{"a_long_text", {frame_of(Kind::warning, BodyWriter().number(1'000'000).take())}, {"rank 1", "cut short"}}),
    [](const auto& one) { return std::string(one.param.name); });

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
  EXPECT_TRUE(says(ranks[0].thrown, {"two processes say that they are rank 1"}));
}

}  // namespace
}  // namespace redline::dist
