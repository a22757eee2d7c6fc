// A page is served to this machine alone: foreign names, other methods, long and slow requests get a sentence or
// nothing, and keep nobody waiting.
#include "report/page_server.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "report/page.h"
#include "report/run_record.h"
#include "report/run_summary.h"
#include "testing/ask.h"
#include "testing/says.h"

namespace redline::report {
namespace {

using testing::ask;
using testing::get;
using testing::says;

int stopped = 0;
ServedPage a_page(bool can_stop = false) {
  ServedPage page{[] { return std::string("<p>a page</p>"); }, [] { return std::string("17"); }};
  if (can_stop) {
    page.stop = [] { return fmt::format("stopped {}", ++stopped); };
    page.token = "secret";
  }
  return page;
}

std::string answered(const std::string& line, const std::string& headers = "Host: localhost\r\n", bool stop = false) {
  return answer(line + "\r\n" + headers, a_page(stop));
}

TEST(PageServer, AnswersWithThePageAndItsState) {
  const std::string whole = answered("GET / HTTP/1.1");
  EXPECT_TRUE(says(whole, {"HTTP/1.1 200 OK\r\n", "text/html", "Content-Length: 13\r\n", "\r\n\r\n<p>a page</p>",
                           "Cache-Control: no-store", "frame-ancestors 'none'"}));
  EXPECT_TRUE(answered("GET /?a=b HTTP/1.1").starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(answered("GET /state HTTP/1.1").ends_with("\r\n\r\n17"));
  const std::string head = answered("HEAD / HTTP/1.1");
  EXPECT_TRUE(says(head, "Content-Length: 13"));
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << "without a body";
  for (const char* path : {"/x", "/../etc/passwd", "/stop", "//", "http://localhost/"})
    EXPECT_TRUE(answered(fmt::format("GET {} HTTP/1.1", path)).starts_with("HTTP/1.1 404")) << path;
}

TEST(PageServer, OtherMethodsAndWhatIsNoRequestAreRefused) {
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "get", "CONNECT"})
    EXPECT_TRUE(answered(fmt::format("{} / HTTP/1.1", method)).starts_with("HTTP/1.1 405")) << method;
  for (const char* line : {"", "GET", "GET /", "GET / HTTP/2", "\x16\x03\x01", "GET /HTTP/1.1"})
    EXPECT_TRUE(answered(line).starts_with("HTTP/1.1 400")) << line;
}

TEST(PageServer, AForeignNameIsRefused) {
  for (const char* host : {"127.0.0.1", "127.0.0.1:80", "localhost:8080", "LOCALHOST", "[::1]", "[::1]:8080"})
    EXPECT_TRUE(answered("GET / HTTP/1.1", fmt::format("Host: {}\r\n", host)).starts_with("HTTP/1.1 200")) << host;
  for (const char* host : {"evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "",
                           "127.0.0.1:", "127.0.0.1:x", "[::1", "localhost:1:2", "10.0.0.1", "user@localhost"})
    EXPECT_TRUE(answered("GET / HTTP/1.1", fmt::format("Host: {}\r\n", host)).starts_with("HTTP/1.1 421")) << host;
  EXPECT_TRUE(answered("GET / HTTP/1.1", "").starts_with("HTTP/1.1 421")) << "without a Host";
  EXPECT_TRUE(answered("GET / HTTP/1.1", "Host: localhost\r\nhost: evil.example\r\n").starts_with("HTTP/1.1 421"));
}

TEST(PageServer, StoppingTakesAPostWithTheToken) {
  const int before = stopped;
  const std::string with = "Host: localhost\r\nX-Redline-Token: ";
  EXPECT_TRUE(answered("POST /stop HTTP/1.1", with + "secret\r\n").starts_with("HTTP/1.1 405")) << "not asked for";
  EXPECT_TRUE(answered("GET /stop HTTP/1.1", with + "secret\r\n", true).starts_with("HTTP/1.1 405"));
  EXPECT_TRUE(answered("POST /stop HTTP/1.1", "Host: localhost\r\n", true).starts_with("HTTP/1.1 403"));
  EXPECT_TRUE(answered("POST /stop HTTP/1.1", with + "secre\r\n", true).starts_with("HTTP/1.1 403"));
  EXPECT_TRUE(answered("POST /stop HTTP/1.1", "Host: evil.example\r\nX-Redline-Token: secret\r\n", true)
                  .starts_with("HTTP/1.1 421"));
  EXPECT_EQ(stopped, before);
  EXPECT_TRUE(says(answered("POST /stop HTTP/1.1", with + "secret\r\n", true), {"200 OK", "stopped"}));
  EXPECT_EQ(stopped, before + 1);
}

TEST(PageServer, WhatCannotBeReadIsASentence) {
  ServedPage page = a_page();
  page.html = []() -> std::string { fail_user("runs/a: there is no such folder"); };
  EXPECT_TRUE(says(answer("GET / HTTP/1.1\r\nHost: localhost", page), {"503 ", "runs/a: there is no such folder"}));
}

TEST(PageServer, SilentLongAndSlowGuestsKeepNobodyWaiting) {
  StopFlag over = 0;
  ServedPage page = a_page();
  page.html = [] { return std::string(std::size_t{8} << 20, 'x'); };  // more than a socket takes at once
  PageServer server(page, 0);
  std::jthread serving([&] { server.serve(steady_seconds() + 60, &over); });
  std::string problem;
  std::vector<dist::Descriptor> silent;
  for (int i = 0; i < 8; ++i)
    silent.push_back(*dist::connect_to("127.0.0.1", server.port(), steady_seconds() + 5, problem));
  ASSERT_GT(::send(silent[0].number(), "GET / HT", 8, MSG_NOSIGNAL), 0);
  const double began = steady_seconds();
  EXPECT_TRUE(get(server.port(), "/state").ends_with("\r\n\r\n17"));
  EXPECT_GT(get(server.port(), "/").size(), std::size_t{8} << 20);
  EXPECT_TRUE(ask(server.port(), std::string(20 << 10, 'a')).starts_with("HTTP/1.1 431"));
  EXPECT_LT(steady_seconds() - began, 8);
  EXPECT_THROW(PageServer(a_page(), server.port()), UserError) << "the port is taken";
  over = 1;
}

TEST(PageServer, APageThatIsServedAsksForItsStateAndNoOtherDoes) {
  const auto page = [](const Followed* followed) {
    RunRecord run;
    run.name = "a";
    return run_page({run}, {summarise(run, {})}, {}, followed);
  };
  const Followed followed{"state17", 0, true};
  EXPECT_TRUE(says(page(&followed), {"connect-src 'self'", "state17", "fetch(\"state\")"}));
  const std::string written = page(nullptr);
  EXPECT_EQ(written.find("fetch("), written.npos);
  EXPECT_EQ(written.find("connect-src"), written.npos);
}

}  // namespace
}  // namespace redline::report
