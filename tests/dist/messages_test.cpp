// Frames and meetings without sockets: what comes is bounded, and what no rank sends is told.
#include "dist/messages.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "testing/says.h"

namespace redline::dist {
namespace {

TEST(Frames, AreTheMessagesInAnyPieces) {
  const std::string bytes = frame_of(Kind::gather, "abc") + frame_of(Kind::goodbye, "") + frame_of(Kind::warning, "w");
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    Frames frames(Other::rank);
    std::string heard;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      frames.add(bytes.substr(at, piece));
      while (const auto message = frames.next()) heard += fmt::format("{}{} ", int(message->kind), message->body);
    }
    EXPECT_EQ(heard, fmt::format("{}abc {} {}w ", int(Kind::gather), int(Kind::goodbye), int(Kind::warning)));
    EXPECT_FALSE(frames.wrong());
  }
}

// Whoever has proven nothing gets no more of our memory than a hello takes, whatever length it claims.
TEST(Frames, AGuestCostsAFewHundredBytes) {
  for (int kind = 0; kind < 256; ++kind)
    for (const std::size_t claimed : {std::size_t{0}, std::size_t{40}, std::size_t{500}, kMostGuestBytes + 1,
                                      std::size_t{1} << 20, std::size_t{0xFFFFFFFF}}) {
      Frames frames(Other::guest);
      std::string head;
      for (int shift = 0; shift < 32; shift += 8) head += static_cast<char>(claimed >> shift);
      head += static_cast<char>(kind);
      std::size_t taken = 0;
      for (std::size_t wanted = frames.wanted(); wanted > 0 && taken < 10'000; wanted = frames.wanted()) {
        frames.add(taken == 0 ? head : std::string(wanted, 'x'));
        taken += taken == 0 ? head.size() : wanted;
      }
      EXPECT_LE(taken, kMostGuestBytes + 5) << kind;
      const bool allowed = (kind == int(Kind::knock) && claimed <= 64) || (kind == int(Kind::hello) && claimed <= 512);
      EXPECT_EQ(frames.next().has_value(), allowed) << kind << " " << claimed;
      EXPECT_EQ(frames.wrong(), !allowed);
      EXPECT_FALSE(frames.next());
    }
}

// A rank that is too fast waits: beside the frame that comes, little is read ahead.
TEST(Frames, ReadLittleAhead) {
  Frames frames(Other::rank);
  const std::string beat = frame_of(Kind::beat, std::string(32, 'b'));
  std::size_t taken = 0;
  for (; frames.wanted() >= beat.size() && taken < (1u << 20); taken += beat.size()) frames.add(beat);
  EXPECT_LT(taken, std::size_t{70} << 10);
}

TEST(Frames, EveryKindHasOneDirection) {
  for (const Kind kind : {Kind::gather, Kind::warning, Kind::fail}) {
    EXPECT_TRUE(longest_body(kind, Other::rank));
    for (const Other from : {Other::guest, Other::host, Other::rank_zero}) EXPECT_FALSE(longest_body(kind, from));
  }
  for (const Kind kind : {Kind::result, Kind::end, Kind::welcome, Kind::come_in}) {
    EXPECT_TRUE(longest_body(kind, Other::rank_zero));
    for (const Other from : {Other::guest, Other::host, Other::rank}) EXPECT_FALSE(longest_body(kind, from));
  }
}

TEST(Bodies, MustFit) {
  const std::string body = BodyWriter().number(-7).text("abc").take();
  BodyReader whole(body);
  EXPECT_EQ(whole.number(), -7);
  EXPECT_EQ(whole.text(), "abc");
  whole.end();
  EXPECT_THROW(BodyReader(body.substr(0, 7)).number(), MachineError);
  EXPECT_THROW(BodyReader(BodyWriter().number(4).take() + "abc").text(), MachineError);
  EXPECT_THROW(BodyReader(BodyWriter().number(-1).take() + "abc").text(), MachineError);
  EXPECT_THROW(BodyReader(body).end(), MachineError);
  EXPECT_THROW(BodyReader(body).number(0, 3), MachineError);
}

std::string problem_of(Meetings& meetings, int rank, const std::string& channel, std::int64_t number,
                       std::int64_t kind = kBarrier, std::string part = "") {
  try {
    meetings.add(rank, channel, number, kind, std::move(part));
  } catch (const MachineError& e) {
    return e.what();
  }
  return "";
}

TEST(RankMeetings, EndWhenAllHaveCome) {
  Meetings meetings(3);
  EXPECT_FALSE(meetings.add(2, "a", 0, kAllGather, "two"));
  EXPECT_FALSE(meetings.add(2, "b", 0, kBarrier, ""));
  EXPECT_FALSE(meetings.add(0, "a", 0, kAllGather, "zero"));
  EXPECT_EQ(meetings.add(1, "a", 0, kAllGather, "one"), (std::vector<std::string>{"zero", "one", "two"}));
  EXPECT_EQ(meetings.open(), 1u);
}

TEST(RankMeetings, WhatNoRankSendsIsTold) {
  Meetings meetings(2);
  EXPECT_FALSE(meetings.add(0, "", 0, kBarrier, ""));
  EXPECT_TRUE(testing::says(problem_of(meetings, 1, "", 0, kBroadcast), {"broadcast", "barrier", "same program"}));
  for (const std::int64_t kind : {std::int64_t{-1}, std::int64_t{3}, INT64_MAX, INT64_MIN})
    EXPECT_TRUE(testing::says(problem_of(meetings, 1, "", 0, kind), {"kind", std::to_string(kind)}));
  for (const std::int64_t number : {std::int64_t{1}, std::int64_t{-1}, INT64_MAX})  // out of its order
    EXPECT_TRUE(testing::says(problem_of(meetings, 1, "", number), {"meeting " + std::to_string(number), "0"}));
  EXPECT_NE(problem_of(meetings, 0, "", 0), "");  // twice
  EXPECT_TRUE(testing::says(problem_of(meetings, 1, std::string(65, 'c'), 0), "channels"));
}

TEST(RankMeetings, AreBoundedInNumber) {
  Meetings many(2), wide(2);
  std::string problem;
  int taken = 0;
  for (; problem.empty() && taken < 1000; ++taken) problem = problem_of(many, 1, "", taken);
  EXPECT_LT(taken, 100);
  EXPECT_TRUE(testing::says(problem, "at a time"));
  problem.clear();
  for (taken = 0; problem.empty() && taken < 1000; ++taken) problem = problem_of(wide, 1, std::to_string(taken), 0);
  EXPECT_LT(taken, 100);
  EXPECT_LE(wide.open(), 100u);
}

}  // namespace
}  // namespace redline::dist
